"""What tasks take: the flags they share, and the shape of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from provision.commands.shared.result import TaskResult

Body: TypeAlias = "Callable[..., TaskResult]"
"""What a task does: a function `(run, *flags)`."""


class Flag(NamedTuple):
    """A flag of a task; `default` False makes it a switch, None one that takes text."""

    name: str
    about: str
    default: bool | None = None


COMMON = (
    Flag(
        "json",
        "print one JSON document on standard output, everything for people on standard error",
        default=False,
    ),
    Flag("debug", "show the traceback of a failure", default=False),
)
LIMIT = "hosts of the inventory: names with * and ?, filters such as gpu=l4 or state=running, commas between, ! before what to leave out"
TARGETS = (
    Flag("host", "the host to act on, instead of the VM of the settings"),
    Flag("limit", LIMIT),
    Flag("forks", "hosts worked on at the same time, 32 unless told otherwise"),
    Flag("serial", "work in batches of so many hosts, each after the one before"),
    Flag("max_fail", "start no further host once more than so many have failed"),
    Flag("check", "say what would change, change nothing", default=False),
    Flag("diff", "show what differs", default=False),
)
_SEVERAL = ("forks", "serial", "max_fail")
_FORETELL = ("check", "diff")


class Shape(NamedTuple):
    """What a task takes beside its own flags, and how it ends."""

    name: str
    """The task's full name: `vm.create`."""
    targets: bool = False
    """It takes the flags that choose hosts."""
    settings: tuple[str, ...] = ()
    """Settings that have a flag of the same name here."""
    words: str = ""
    """What the words after `--` are; empty = none are taken."""
    words_required: bool = False
    program: bool = False
    """It returns the status of the user's program, whose standard output is not ours."""
    result: bool = False
    """What it prints is to be used (a table, a file): notes and progress stay out of standard
    output."""
    streams: bool = False
    """Programs write to the terminal while it works: nothing of ours may stand below their
    lines."""
    checks: bool = True
    """`--check` can foretell what it does."""
    one: bool = False
    """It acts on one host: nothing goes over several."""
    lacks: tuple[str, ...] = ()
    """Flags that choose hosts and mean nothing here."""

    @property
    def hosts(self) -> tuple[Flag, ...]:
        """The flags that choose hosts, those that would be refused or do nothing left out."""
        lacks = {*self.lacks, *(() if self.checks else _FORETELL), *(_SEVERAL if self.one else ())}
        return tuple(flag for flag in TARGETS if self.targets and flag.name not in lacks)

    @property
    def flags(self) -> tuple[Flag, ...]:
        """The flags it shares with others."""
        overrides = (Flag(key, f"instead of the setting provision.{key}") for key in self.settings)
        return (*overrides, *self.hosts, *COMMON)
