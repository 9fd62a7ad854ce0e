"""How a check of `mps.doctor` ends. Pure."""

from __future__ import annotations

from typing import NamedTuple

from provision.report.checks import Verdict


class Judged(NamedTuple):
    """The end of one check: what was found, why that is so, one thing to do."""

    status: Verdict
    what: str
    why: str = ""
    fix: str = ""


def ok(what: str) -> Judged:
    """In order."""
    return Judged(Verdict.OK, what)


def warn(what: str, why: str, fix: str) -> Judged:
    """It works, and will not for long, or not well."""
    return Judged(Verdict.WARN, what, why, fix)


def fail(what: str, why: str, fix: str) -> Judged:
    """It does not work."""
    return Judged(Verdict.FAIL, what, why, fix)


def unknown(what: str, why: str = "", fix: str = "") -> Judged:
    """It could not be looked at."""
    return Judged(Verdict.UNKNOWN, what, why, fix)
