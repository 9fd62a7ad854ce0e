"""Numbers in the output of programs. Every function accepts any text. Pure."""

from __future__ import annotations

import re

from provision.core.errors import ProbeUnreadable

_MAX_DIGITS = 18
"""A longer number is neither a PID nor a size, and int() refuses thousands of digits."""


def parse_int(text: str) -> int | None:
    """A number of ASCII digits; None for anything else."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def parse_decimal(text: str) -> float | None:
    """A plain decimal number; None for anything else, `nan` and `1e3` included."""
    text = text.strip()
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) else None


def parse_version(text: str) -> tuple[int, int] | None:
    """The first two numbers of `9.0`, `12.2.1` or `580.126.09`; None for anything else."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.|\Z)", text.strip(), re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def unreadable_answer(program: str, line: str) -> ProbeUnreadable:
    """The error for an unexpected line in the output of `program`."""
    return ProbeUnreadable(
        f"the answer of {program} cannot be read",
        where=program,
        why=f"it printed: {line.strip()[:200]!r}",
        fix="invoke mps.doctor",
    )
