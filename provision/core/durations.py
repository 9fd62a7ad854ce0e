"""Time spans: parsed from settings and flags, formatted for people. Pure."""

from __future__ import annotations

import re

DAY_S = 86_400
_UNITS_S = {"d": DAY_S, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII)


def parse_duration(text: str) -> int:
    """Seconds of a time span such as `45m` or `1d12h`. Raises `ValueError` for another text."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError("a time such as 10s, 15m or 1d12h")
    counts = (int(number or 0) for number in match.groups())
    return sum(count * unit_s for count, unit_s in zip(counts, _UNITS_S.values(), strict=True))


def exact(seconds: int) -> str:
    """A time span as settings write it: `8h`, `1d12h`, 5400 seconds as `1h30m`."""
    text, rest = "", seconds
    for unit, unit_s in _UNITS_S.items():
        count, rest = divmod(rest, unit_s)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def rounded(seconds: float) -> str:
    """A time span in its two largest units: `45s`, `5m07s`, `1h05m`, `3d04h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}h{rest // 60:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"


def measured(seconds: float) -> str:
    """How long something took: `0.61 s`, `12.3 s`, `2 min 05 s`."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def elapsed(seconds: float) -> str:
    """How long something has been running, in whole seconds: `3 s`, `2 min 05 s`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
