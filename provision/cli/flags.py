"""The flags that tasks share, and the specification of a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from provision.commands.shared.result import TaskResult

TaskBody: TypeAlias = "Callable[..., TaskResult]"
"""A function `(run, *flags)` that calls a task's use case."""


class Flag(NamedTuple):
    """A flag of a task: a switch when `default` is False, a flag with a text when it is None."""

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
LIMIT = (
    "hosts of the inventory: names with * and ?, filters such as gpu=l4 or state=running, "
    "commas between, ! before what to leave out"
)
TARGETS = (
    Flag("host", "the host to act on, instead of the VM of the settings"),
    Flag("limit", LIMIT),
    Flag("forks", "hosts worked on at the same time, 32 by default"),
    Flag("serial", "the size of a batch of hosts; batches run one after another"),
    Flag("max_fail", "start no further host after more than this number have failed"),
    Flag("check", "report what would change, change nothing", default=False),
    Flag("diff", "show what differs", default=False),
)
_SEVERAL_HOSTS = ("forks", "serial", "max_fail")
_DRY_RUN = ("check", "diff")


class TaskSpec(NamedTuple):
    """A task's name, its shared flags, and what it prints and returns."""

    name: str
    """The full name: `vm.create`."""
    targets: bool = False
    """True when it takes the flags that select hosts."""
    settings: tuple[str, ...] = ()
    """The settings that have a flag of the same name."""
    words: str = ""
    """What the words after `--` are; empty when the task takes none."""
    words_required: bool = False
    runs_program: bool = False
    """True when it returns the status of the user's program, which owns standard output."""
    prints_result: bool = False
    """True when standard output is the result (a table, a file): notes go to standard error."""
    streams: bool = False
    """True when programs write to the terminal meanwhile: no live progress line."""
    dry_run: bool = True
    """True when it supports `--check` and `--diff`."""
    single_host: bool = False
    """True when it acts on one host: no flags for the order of several."""
    omits: tuple[str, ...] = ()
    """The flags for hosts that have no meaning here."""

    @property
    def host_flags(self) -> tuple[Flag, ...]:
        """The flags that select hosts, without those that this task does not support."""
        omitted = {
            *self.omits,
            *(() if self.dry_run else _DRY_RUN),
            *(_SEVERAL_HOSTS if self.single_host else ()),
        }
        return tuple(flag for flag in TARGETS if self.targets and flag.name not in omitted)

    @property
    def flags(self) -> tuple[Flag, ...]:
        """The flags that it shares with other tasks."""
        overrides = (Flag(key, f"instead of the setting provision.{key}") for key in self.settings)
        return (*overrides, *self.host_flags, *COMMON)
