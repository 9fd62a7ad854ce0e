"""The flags of `mps.bench` as values."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from provision.core.durations import parse_duration
from provision.core.errors import UsageError
from provision.mps.bench.grid import CLIENTS, LEAST_ROUNDS, MODES, WITHOUT

DEFAULT_STEPS = 3000
WORKLOADS = ("mlp", "driver")
_MOST_ROUNDS, _MOST_STEPS = 999, 9_999_999


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What to measure. Raises `UsageError` for options that exclude one another."""

    command: str | None = None
    """The user's own program; `{steps}` in it is replaced by the number of steps."""
    clients: tuple[int, ...] = CLIENTS
    modes: tuple[str, ...] = MODES
    rounds: int = LEAST_ROUNDS
    budget_s: float | None = None
    steps: int | None = None
    workload: str | None = None
    output: Path = Path("mps-bench")
    with_chart: bool = True
    pinned: bool = True
    """Each client is kept on cores of its own, where `taskset` can."""

    def __post_init__(self) -> None:
        if self.workload is not None and self.workload not in WORKLOADS:
            raise UsageError(
                f"unknown workload {self.workload!r}",
                where="--workload",
                why=f"workloads: {', '.join(WORKLOADS)}",
                fix="--workload mlp",
            )
        if self.command is not None and self.workload is not None:
            raise _excluded("--command and --workload", "both select what to run")
        if self.budget_s is not None and self.steps is not None:
            raise _excluded("--budget and --steps", "--budget finds the steps")
        if self.has_fixed_steps and self.steps is not None:
            raise UsageError(
                "--steps has no effect on this command",
                where=f"--command {self.command!r}",
                why="the command is run as it is: it has no place for the number of steps",
                fix="{steps} in --command",
            )
        if self.command is not None:
            command_words(self.command)

    @property
    def has_fixed_steps(self) -> bool:
        """True where the program takes no number of steps."""
        return self.command is not None and "{steps}" not in self.command


def _excluded(flags: str, why: str) -> UsageError:
    return UsageError(f"{flags} cannot be given together", why=why, fix="leave one of them out")


def command_words(command: str) -> tuple[str, ...]:
    """The words of a shell command. Raises `UsageError` for an open quote and for no words."""
    try:
        words, why = shlex.split(command), "there is no program in it"
    except ValueError as error:
        words, why = [], str(error).lower()
    if not words:
        raise UsageError(
            "this is not a command",
            where=f"--command {command!r}",
            why=why,
            fix='--command "python train.py"',
        )
    return tuple(words)


def parse_options(
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
) -> BenchOptions:
    """The flags as the user wrote them. Raises `UsageError`, which names the flag."""
    default = BenchOptions()
    return replace(
        default,
        command=command,
        clients=parse_clients(clients),
        modes=parse_modes(modes),
        rounds=_count("--rounds", rounds, LEAST_ROUNDS, most=_MOST_ROUNDS),
        budget_s=None if budget is None else parse_budget(budget),
        steps=None if steps is None else _count("--steps", steps, DEFAULT_STEPS, most=_MOST_STEPS),
        workload=workload,
        output=default.output if output is None else Path(output),
        with_chart=with_chart,
        pinned=pinned,
    )


def parse_modes(text: str | None) -> tuple[str, ...]:
    """The modes of `--modes` in the order of `MODES`; all of them for None.

    `none` is always included, since every cell is compared with it. Raises `UsageError` for an
    unknown mode.
    """
    if text is None:
        return MODES
    words = [word.strip() for word in text.split(",") if word.strip()] or [text]
    by_lower = {mode.lower(): mode for mode in MODES}
    unknown = [word for word in words if word.lower() not in by_lower]
    if unknown:
        raise UsageError(
            f"unknown mode {unknown[0]!r}",
            where="--modes",
            why=f"modes: {', '.join(MODES)}",
            fix="--modes none,mps,200/N",
        )
    chosen = {by_lower[word.lower()] for word in words} | {WITHOUT}
    return tuple(mode for mode in MODES if mode in chosen)


def parse_clients(text: str | None) -> tuple[int, ...]:
    """The numbers of clients of `--clients`, ascending; `CLIENTS` for None.

    1 is always included, since every cell is compared with it. Raises `UsageError` for anything
    but numbers from 1 to 999.
    """
    if text is None:
        return CLIENTS
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(re.fullmatch(r"[1-9]\d{0,2}", word, re.ASCII) for word in words):
        raise UsageError(
            f"{text[:40]!r} is not a list of numbers",
            where="--clients",
            why="each from 1 to 999, separated by commas",
            fix="--clients 1,4,16",
        )
    return tuple(sorted({1, *map(int, words)}))


def parse_budget(text: str) -> float:
    """The seconds of `90s`, `6m`, `1h30m` or `90`. Raises `UsageError` for anything else."""
    text = text.strip()
    try:
        seconds = parse_duration(f"{text}s" if text[-1:].isdigit() else text)
    except ValueError:
        seconds = 0
    if not seconds:
        raise UsageError(
            f"{text[:40]!r} is not a time span",
            where="--budget",
            why="written as 90s, 6m or 1h30m",
            fix="--budget 6m",
        )
    return float(seconds)


def _count(flag: str, text: str | None, default: int, *, most: int) -> int:
    if text is None:
        return default
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(most)) else 0
    if not 1 <= value <= most:
        raise UsageError(
            f"{text[:40]!r} is not a valid number",
            where=flag,
            why=f"allowed: a whole number from 1 to {most}",
            fix=f"{flag} {default}",
        )
    return value
