"""The flags that tasks share, and the one place where their text becomes numbers. Invoke would turn a bad number into a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.app import Targets

DEFAULT_FORKS = 32


@dataclass(frozen=True)
class Flag:
    """A flag of a task; `default` False makes it a switch, None one that takes text."""

    name: str
    about: str
    default: bool | None = None


COMMON = (
    Flag("json", "print one JSON document on standard output, everything for people on standard error", default=False),
    Flag("debug", "show the traceback of a failure", default=False),
)
TARGETS = (
    Flag("host", "the host to act on, instead of the VM of the settings"),
    Flag("limit", "hosts of the inventory to act on: names with * and ?, separated by commas, ! before those to leave out"),
    Flag("forks", f"hosts worked on at the same time, {DEFAULT_FORKS} unless told otherwise"),
    Flag("serial", "work in batches of so many hosts, each after the one before"),
    Flag("max_fail", "start no further batch once more than so many hosts failed"),
    Flag("check", "say what would change, change nothing", default=False),
    Flag("diff", "show what differs", default=False),
)


def targets(taken: Mapping[str, Any]) -> Targets:
    """The hosts that were asked for and how. Raises UsageError."""
    from provision import app

    if taken.get("host") and taken.get("limit"):
        raise UsageError("--host and --limit exclude each other", where="--limit", why="--host names one host", fix="leave one of them out")
    return app.Targets(
        host=taken.get("host"),
        limit=taken.get("limit"),
        forks=number("--forks", taken.get("forks"), least=1) or DEFAULT_FORKS,
        serial=number("--serial", taken.get("serial"), least=1),
        max_fail=number("--max-fail", taken.get("max_fail"), least=0),
        check=bool(taken.get("check")),
        diff=bool(taken.get("diff")),
    )


def number(flag: str, text: str | None, *, least: int) -> int | None:
    """The whole number that a flag's text says, None when it was not given. Raises UsageError."""
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise UsageError(
            f"{text!r} is no number for it", where=flag, why=f"allowed: a whole number of at least {least}", fix=f"{flag}={max(least, 1)}"
        )
    return value
