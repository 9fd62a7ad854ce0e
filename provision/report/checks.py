"""Results of checks: a record for each check, as a JSON document and as aligned lines.

Every task that checks (`doctor`, `mps.doctor`) prints the same document: `{"ok", "checks": [{id,
status, what, why, fix}]}`.
"""

from __future__ import annotations

import enum
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provision.report.text import clean

WIDTH = 100
"""Columns that text for people is wrapped to, unless the terminal has fewer."""


def columns() -> int:
    """The width of text for people: that of the terminal, at most WIDTH; WIDTH without terminal."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


class Verdict(enum.StrEnum):
    """How one check ended. `unknown` means that it could not be made, and counts as a failure."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One check: its result, the reason and one remedy."""

    id: str
    status: Verdict
    what: str
    why: str = ""
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """The check as `--json` prints it."""
        return {
            "id": self.id,
            "status": self.status.value,
            "what": self.what,
            "why": self.why,
            "fix": self.fix,
        }


def count(checks: Sequence[Check], verdict: Verdict) -> int:
    """How many checks ended with this verdict."""
    return sum(check.status is verdict for check in checks)


def checks_document(checks: Sequence[Check]) -> dict[str, Any]:
    """The document `{"ok", "checks"}`. `ok` is true when no check failed or is unknown."""
    ok = not count(checks, Verdict.FAIL) and not count(checks, Verdict.UNKNOWN)
    return {"ok": ok, "checks": [check.as_dict() for check in checks]}


def wrapped(text: str, indent: int, *, width: int = WIDTH) -> list[str]:
    """The text in lines of at most `width` columns, all but the first indented."""
    blank = " " * indent
    lines = [
        line
        for part in text.split("\n")
        for line in textwrap.wrap(
            clean(part), max(20, width - indent), break_long_words=False, break_on_hyphens=False
        )
        or [""]
    ]
    return [(blank if number else "") + line for number, line in enumerate(lines)]


def checks_lines(checks: Sequence[Check], *, width: int = WIDTH) -> list[str]:
    """A line for each check, reason and remedy below those that are not ok, and the totals."""
    names = max((len(check.id) for check in checks), default=0)
    lines: list[str] = []
    for check in checks:
        head = f"{check.status.value:<9}{check.id:<{names}}  "
        lines += [
            head + wrapped(check.what, len(head), width=width)[0],
            *wrapped(check.what, len(head), width=width)[1:],
        ]
        if check.status is Verdict.OK:
            continue
        for label, text in (("why: ", check.why), ("try: ", check.fix)):
            if text:
                first, *rest = wrapped(text, 14, width=width)
                lines += [f"{'':9}{label}{first}", *rest]
    totals = ", ".join(
        f"{number} {verdict.value}" for verdict in Verdict if (number := count(checks, verdict))
    )
    return [*lines, "", f"{len(checks)} checks: {totals}"]
