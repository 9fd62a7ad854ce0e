"""Words of the MPS control tool, as driver 580 says them."""

from __future__ import annotations

import time

REFUSED = "Insufficient privileges for UID {uid}. Control deamon settings can only be modified by the user who started it or by the root user.\n"


def missing(words: list[str]) -> str:
    """No such server, by the PID that was given."""
    return f"Server {words[0] if words else 0} not found\n"


def percentage(text: str) -> float | None:
    """A share above 0 and up to 100; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 < value <= 100.0 else None


def shown(text: str) -> str:
    """As it reads back, a line: whole gigabytes when there is one (`1500M` is `1G`), megabytes without a unit; else nothing."""
    number, unit = (text, "M") if text.isdigit() else (text[:-1], text[-1:].upper())
    if unit == "M" and number.isdigit():
        return f"{int(number) // 1024}G\n" if int(number) >= 1024 else f"{number}M\n"
    return f"{text}\n" if text else ""


def stamped(who: str, pid: int, text: str) -> str:
    """A line of control.log or server.log."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S") + f".{time.time_ns() // 1_000_000 % 1000:03d}"
    return f"[{moment} {who:>7} {pid:>5}] {text}\n"
