"""The flags of `mps.bench` as values."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from provision.core.errors import UsageError
from provision.mps.bench import grid

WORKLOADS = ("mlp", "driver")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to measure. `command` is the user's own program; `{steps}` in it is replaced by the number of steps."""

    command: str | None = None
    clients: tuple[int, ...] = grid.CLIENTS
    modes: tuple[str, ...] = grid.MODES
    rounds: int = grid.LEAST_ROUNDS
    budget_s: float | None = None
    steps: int | None = None
    workload: str | None = None
    output: Path = Path("mps-bench")
    with_chart: bool = True
    pinned: bool = True
    """Each client is kept on cores of its own, where `taskset` can."""

    def __post_init__(self) -> None:
        if self.workload is not None and self.workload not in WORKLOADS:
            why = f"workloads: {', '.join(WORKLOADS)}"
            raise UsageError(
                f"unknown workload {self.workload!r}",
                where="--workload",
                why=why,
                fix="--workload mlp",
            )
        if self.command is not None and self.workload is not None:
            raise UsageError(
                "--command and --workload cannot be given together",
                why="both say what to run",
                fix="leave one of them out",
            )
        if self.budget_s is not None and self.steps is not None:
            raise UsageError(
                "--budget and --steps cannot be given together",
                why="--budget finds the steps",
                fix="leave one of them out",
            )
        if self.fixed and self.steps is not None:
            why = "the command is run as it is: it says nowhere where its number of steps stands"
            raise UsageError(
                "--steps says nothing to this command",
                where=f"--command {self.command!r}",
                why=why,
                fix="{steps} in --command",
            )
        if self.command is not None:
            words_of(self.command)

    @property
    def fixed(self) -> bool:
        """The program takes no number of steps."""
        return self.command is not None and "{steps}" not in self.command


def words_of(command: str) -> tuple[str, ...]:
    """The command as words. Raises `UsageError` for quotes that do not end, and for nothing at all, which would be fast."""
    try:
        words, why = shlex.split(command), "there is no program in it"
    except ValueError as error:
        words, why = [], str(error).lower()
    if not words:
        raise UsageError(
            "this is no command",
            where=f"--command {command!r}",
            why=why,
            fix='--command "python train.py"',
        )
    return tuple(words)


def mps_asked(
    *,
    command: str | None = None,
    clients: str | None = None,
    modes: str | None = None,
    rounds: str | None = None,
    budget: str | None = None,
    steps: str | None = None,
    workload: str | None = None,
    output: str | None = None,
    with_chart: bool = True,
    pinned: bool = True,
) -> Asked:
    """The flags of `mps.bench` as values. Raises `UsageError` naming the flag."""
    plain = Asked()
    return replace(
        plain,
        command=command,
        clients=grid.clients_of(clients),
        modes=grid.modes_of(modes),
        rounds=_count("--rounds", rounds, plain.rounds, most=999),
        budget_s=None if budget is None else grid.seconds_of(budget),
        steps=None if steps is None else _count("--steps", steps, grid.STEPS, most=9_999_999),
        workload=workload,
        output=plain.output if output is None else Path(output),
        with_chart=with_chart,
        pinned=pinned,
    )


def _count(flag: str, text: str | None, default: int, *, most: int) -> int:
    if text is None:
        return default
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(most)) else 0
    if not 1 <= value <= most:
        why = f"allowed: a whole number from 1 to {most}"
        raise UsageError(
            f"{text[:40]!r} is no number for it", where=flag, why=why, fix=f"{flag} {default}"
        )
    return value
