"""Turns the texts of flags into numbers and targets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from provision.commands.shared.targets import Targets
from provision.core.errors import UsageError
from provision.core.fleet import DEFAULT_FORKS

_MAX_COUNT = 999
"""The largest accepted number: a typing error must not start a million processes."""


def parse_count(flag: str, text: str | None, *, least: int) -> int | None:
    """Return the whole number in a flag's text; None when the flag is not given.

    Raises `UsageError` for any other text, and for a number below `least` or above 999. Invoke's
    own conversion would end in a traceback.
    """
    if text is None:
        return None
    value = int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else least - 1
    if not least <= value <= _MAX_COUNT:
        raise UsageError(
            f"{text[:20]!r} is not a valid number",
            where=flag,
            why=f"allowed: a whole number from {least} to {_MAX_COUNT}",
            fix=f"{flag}={max(least, 1)}",
        )
    return value


def parse_targets(flags: Mapping[str, Any]) -> Targets:
    """Return the hosts to act on from the shared flags; raises `UsageError` for invalid values."""
    return Targets(
        host=flags.get("host"),
        limit=flags.get("limit"),
        forks=parse_count("--forks", flags.get("forks"), least=1) or DEFAULT_FORKS,
        serial=parse_count("--serial", flags.get("serial"), least=1),
        max_fail=parse_count("--max-fail", flags.get("max_fail"), least=0),
        check=bool(flags.get("check")),
        diff=bool(flags.get("diff")),
    )
