"""Texts of the MPS control tool and its logs, as driver 580 prints them."""

from __future__ import annotations

import time

QUIT_REFUSED = "Not enough privilege to execute quit command\n"
REFUSED = (
    "Insufficient privileges for UID {uid}. Control deamon settings can only be modified "
    "by the user who started it or by the root user.\n"
)


def server_not_found(words: list[str]) -> str:
    """The answer for an unknown server, with the PID that was given."""
    return f"Server {words[0] if words else 0} not found\n"


def parse_percentage(text: str) -> float | None:
    """A percentage above 0 and up to 100; None for any other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 < value <= 100.0 else None


def format_limit(text: str) -> str:
    """A memory limit as the tool prints it, a line; empty without a limit.

    From 1024 MB on it prints whole gigabytes: `1500M` reads `1G`.
    """
    number, unit = (text, "M") if text.isdigit() else (text[:-1], text[-1:].upper())
    if unit == "M" and number.isdigit():
        return f"{int(number) // 1024}G\n" if int(number) >= 1024 else f"{number}M\n"
    return f"{text}\n" if text else ""


def log_line(source: str, pid: int, text: str) -> str:
    """A line of control.log or server.log with its time."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S") + f".{time.time_ns() // 1_000_000 % 1000:03d}"
    return f"[{moment} {source:>7} {pid:>5}] {text}\n"
