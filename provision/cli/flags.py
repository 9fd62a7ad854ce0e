"""What tasks take: the flags they share, and the shape of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from provision.app import Done

Body: TypeAlias = "Callable[..., Done]"
"""What a task does: a function `(run, *flags)`."""


class Flag(NamedTuple):
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
    Flag("forks", "hosts worked on at the same time, 32 unless told otherwise"),
    Flag("serial", "work in batches of so many hosts, each after the one before"),
    Flag("max_fail", "start no further host once more than so many have failed"),
    Flag("check", "say what would change, change nothing", default=False),
    Flag("diff", "show what differs", default=False),
)


class Shape(NamedTuple):
    """What a task takes beside its own flags; `command` says what each field means."""

    name: str
    targets: bool
    words: str
    words_required: bool
    program: bool
    settings: tuple[str, ...]

    @property
    def flags(self) -> tuple[Flag, ...]:
        """The flags it shares with others."""
        overrides = (Flag(key, f"instead of the setting provision.{key}") for key in self.settings)
        return (*overrides, *(TARGETS if self.targets else ()), *COMMON)
