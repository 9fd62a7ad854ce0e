"""What one check of `mps.doctor` finds. Pure."""

from __future__ import annotations

from typing import NamedTuple

from provision.report.checks import Verdict


class Finding(NamedTuple):
    """What a check found, why that is so, and one thing to do about it."""

    status: Verdict
    what: str
    why: str = ""
    fix: str = ""


def ok(what: str) -> Finding:
    """All is well."""
    return Finding(Verdict.OK, what)


def warn(what: str, why: str, fix: str) -> Finding:
    """The finding for what works, but may soon fail or is slow."""
    return Finding(Verdict.WARN, what, why, fix)


def fail(what: str, why: str, fix: str) -> Finding:
    """The finding for what does not work."""
    return Finding(Verdict.FAIL, what, why, fix)


def unknown(what: str, why: str = "", fix: str = "") -> Finding:
    """The evidence is missing."""
    return Finding(Verdict.UNKNOWN, what, why, fix)
