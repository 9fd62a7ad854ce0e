"""A benchmark of one GPU with and without MPS: which cells, in which order, how many steps, and what came of it. Pure.

Protocol: facts/mps.md §3.5. What is compared is always the same number of processes with and
without MPS; `ratio` is the throughput of a cell against one process alone without MPS, as in the
experiment of the seed.
"""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.core import durations
from provision.core.errors import UsageError
from provision.mps.bench.cell import Sample

WITHOUT = "none"
MODES = (WITHOUT, "mps", "100/N", "200/N")
"""Without MPS; MPS with all threads for each client; with a part that divides the GPU once, or
twice, among N clients."""
CLIENTS = (1, 2, 4, 8, 16)
LEAST_ROUNDS = 3
"""Fewer give neither a median nor a spread; they are run all the same, and said."""
STEPS = 3000
"""Steps of the seed's experiment."""
FEWEST_STEPS, MOST_STEPS = 50, 50_000
ALIKE = 0.03
"""Cells closer than this are alike: the one with fewer clients is recommended."""
NOISE = 0.10
"""As far as the spread of a cell may excuse a plainer one: a single bad round makes nothing alike
that is twice as slow."""


@dataclass(frozen=True, order=True)
class Key:
    """One cell: its mode and its number of clients."""

    mode: str
    clients: int

    @property
    def percentage(self) -> int | None:
        """Default active thread percentage of the cell; None without MPS. Rounded up, as `mps.plan` does."""
        match self.mode:
            case "none":
                return None
            case "mps":
                return 100
            case "100/N":
                return math.ceil(100 / self.clients)
            case _:
                return min(100, math.ceil(200 / self.clients))

    def __str__(self) -> str:
        return f"{self.mode} x {self.clients}"


@dataclass(frozen=True)
class Pilot:
    """What a short run of one cell took: steps, seconds from the barrier on, and seconds in all."""

    key: Key
    steps: int
    makespan_s: float
    whole_s: float

    @property
    def overhead_s(self) -> float:
        """Start-up, daemon and tidying."""
        return max(0.0, self.whole_s - self.makespan_s)


@dataclass
class Results:
    """Every sample of every cell, and every run that gave none, with its reason."""

    samples: dict[Key, list[Sample]] = field(default_factory=dict)
    failures: list[tuple[Key, str]] = field(default_factory=list)


def modes_of(text: str | None) -> tuple[str, ...]:
    """The modes that `--modes` names, in the order of MODES; `none` is always among them, since all is compared with it."""
    if text is None:
        return MODES
    asked = [word.strip() for word in text.split(",") if word.strip()] or [text]
    by_lower = {mode.lower(): mode for mode in MODES}
    unknown = [word for word in asked if word.lower() not in by_lower]
    if unknown:
        raise UsageError(
            f"unknown mode {unknown[0]!r}",
            where="--modes",
            why=f"modes: {', '.join(MODES)}",
            fix="--modes none,mps,200/N",
        )
    chosen = {by_lower[word.lower()] for word in asked} | {WITHOUT}
    return tuple(mode for mode in MODES if mode in chosen)


def clients_of(text: str | None) -> tuple[int, ...]:
    """The numbers of clients that `--clients` names, ascending; 1 is always among them, since all is compared with it."""
    if text is None:
        return CLIENTS
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(re.fullmatch(r"[1-9]\d{0,2}", word) for word in words):
        why = "each from 1 to 999, separated by commas"
        raise UsageError(
            f"{text[:40]!r} is no list of numbers",
            where="--clients",
            why=why,
            fix="--clients 1,4,16",
        )
    return tuple(sorted({1, *map(int, words)}))


def seconds_of(text: str) -> float:
    """Seconds of a budget such as `90s`, `6m` or `1h30m`; a number alone is seconds. Raises `UsageError` for another text."""
    try:
        seconds = durations.parse_duration(
            text.strip() + ("s" if text.strip()[-1:].isdecimal() else "")
        )
    except ValueError:
        seconds = 0
    if not seconds:
        raise UsageError(
            f"{text[:40]!r} is no span of time",
            where="--budget",
            why="written as 90s, 6m or 1h30m",
            fix="--budget 6m",
        )
    return float(seconds)


def grid(modes: Sequence[str], clients: Sequence[int]) -> tuple[Key, ...]:
    """Every cell. Modes that are the same for one number of clients (100/N for one client is mps) are run once."""
    keys: list[Key] = []
    for count in clients:
        percentages: set[int | None] = set()
        for mode in modes:
            key = Key(mode, count)
            if key.percentage not in percentages:
                percentages.add(key.percentage)
                keys.append(key)
    return tuple(keys)


def rounds_of(keys: Sequence[Key], rounds: int, seed: int = 0) -> Iterable[tuple[int, Key]]:
    """Every cell once in each round, each round in another order, so that a drift of the machine spreads over all cells.

    One process alone comes first of all: where it fails nothing can be compared, and neither could
    what a run that is cut leaves without it.
    """
    shuffled = random.Random(seed)  # noqa: S311 - an order, not a secret
    for number in range(1, rounds + 1):
        order = list(keys)
        shuffled.shuffle(order)
        if number == 1:
            order.sort(key=lambda key: key != Key(WITHOUT, 1))
        yield from ((number, key) for key in order)


def few_rounds(rounds: int) -> str | None:
    """What to say of figures from fewer rounds than a median and a spread want; None where there are enough."""
    if rounds >= LEAST_ROUNDS:
        return None
    return (
        f"{rounds} round{'s' if rounds > 1 else ''} only: a median and a spread want {LEAST_ROUNDS}"
    )


def core_sets(cpus: Sequence[int], clients: int, most: int) -> tuple[str, ...]:
    """A set of cores for each client, as `taskset -c` reads it: disjoint while there are enough, shared in turn otherwise.

    As many for each in every cell of a grid whose largest has `most` clients: what changes from
    cell to cell is who else is there.
    """
    if not cpus:
        return ("-",) * clients
    cpus = cpus[::-1]  # the first ones have the machine's interrupts: they are taken last
    share = len(cpus) // most
    if share:
        return tuple(
            ",".join(map(str, cpus[index * share : (index + 1) * share]))
            for index in range(clients)
        )
    return tuple(str(cpus[index % len(cpus)]) for index in range(clients))


def threads_each(cpus: int, most: int) -> int:
    """OpenMP threads of a client: as many as it has cores where there are `most` (docs/facts.md, measured: more costs up to 64 times)."""
    return max(1, cpus // max(1, most))


def cpu_list(text: str) -> tuple[int, ...]:
    """`0-3,8` of /proc/self/status as numbers; empty when it cannot be read."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if found is None:
            return ()
        cpus.extend(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(cpus)


def over_limit(keys: Sequence[Key], limit: int | None) -> tuple[Key, ...]:
    """The cells with MPS that have more clients than a server takes; none where its limit is not known."""
    return tuple(
        key
        for key in keys
        if limit is not None and key.percentage is not None and key.clients > limit
    )


def pilots(keys: Sequence[Key]) -> tuple[tuple[Key, ...], ...]:
    """The cells that tell how long all will take: one process, and the most of them without MPS and with it.

    Each with those that take its place where it gives no figure: fewer processes, which may fit
    where the most do not.
    """
    alone = Key(WITHOUT, 1)
    without = {key.clients: key for key in keys if key.percentage is None and key != alone}
    with_mps: dict[int, Key] = {}
    for key in keys:
        if key.percentage is not None:
            with_mps.setdefault(key.clients, key)
    arms = (tuple(arm[count] for count in sorted(arm, reverse=True)) for arm in (without, with_mps))
    return ((alone,), *(arm for arm in arms if arm))


def predicted_s(keys: Sequence[Key], runs: Sequence[Pilot], steps: int) -> dict[Key, float]:
    """About how long each cell takes, whole: straight lines from one process through the pilot without MPS, or with it."""
    alone = next(run for run in runs if run.key == Key(WITHOUT, 1))
    without = next((run for run in runs if run.key.percentage is None and run is not alone), alone)
    with_mps = next((run for run in runs if run.key.percentage is not None), without)
    found = {}
    for key in keys:
        far = without if key.percentage is None else with_mps
        part = (key.clients - 1) / (far.key.clients - 1) if far.key.clients > 1 else 1.0
        near_step_s, far_step_s = alone.makespan_s / alone.steps, far.makespan_s / far.steps
        overhead_s = alone.overhead_s + (far.overhead_s - alone.overhead_s) * part
        found[key] = max(0.0, overhead_s) + steps * max(
            0.0, near_step_s + (far_step_s - near_step_s) * part
        )
    return found


def steps_for(keys: Sequence[Key], runs: Sequence[Pilot], *, rounds: int, budget_s: float) -> int:
    """The number of steps with which `rounds` of all cells take about `budget_s`. Raises UsageError when none is small enough."""
    none_s = rounds * sum(predicted_s(keys, runs, 0).values())
    step_s = rounds * sum(predicted_s(keys, runs, 1).values()) - none_s
    steps = math.floor((budget_s - none_s) / step_s) if step_s > 0 else MOST_STEPS
    if steps < FEWEST_STEPS:
        least = round(none_s + FEWEST_STEPS * step_s)
        why = f"{rounds} rounds of {len(keys)} cells take at least {durations.rounded(least)}"
        raise UsageError(
            "the grid does not fit the budget",
            where=f"--budget {durations.rounded(budget_s)}",
            why=why,
            fix=f"--budget {durations.rounded(least * 1.2)}",
        )
    return min(MOST_STEPS, steps if steps < 1000 else steps // 100 * 100)


# --- what came of it ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """A cell over its rounds. Times in seconds; `ratio` = throughput in processes of one alone without MPS."""

    mode: str
    clients: int
    percentage: int | None
    makespan_s: tuple[float, ...]
    p50_s: float
    p95_s: float
    peak_memory_mib: int | None
    ratio: float
    against_none: float | None
    """How many times faster than the same number of processes without MPS."""

    @property
    def median_s(self) -> float:
        """Median of the makespans."""
        return statistics.median(self.makespan_s)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "mode": self.mode,
            "clients": self.clients,
            "thread_percentage": self.percentage,
            "makespan_s": [round(value, 3) for value in self.makespan_s],
            "median_s": round(self.median_s, 3),
            "p50_s": round(self.p50_s, 3),
            "p95_s": round(self.p95_s, 3),
            "peak_memory_mib": self.peak_memory_mib,
            "ratio": round(self.ratio, 3),
            "times_none": None if self.against_none is None else round(self.against_none, 3),
        }


def summary(results: Results) -> tuple[CellResult, ...]:
    """Every cell that gave a figure, by clients and mode. Without a figure for one process alone nothing can be compared: empty."""
    medians = {
        key: statistics.median(sample.makespan_s for sample in samples)
        for key, samples in results.samples.items()
        if samples
    }
    alone_s = medians.get(Key(WITHOUT, 1))
    if alone_s is None:
        return ()
    found = []
    for key in sorted(medians, key=lambda key: (key.clients, MODES.index(key.mode))):
        samples = results.samples[key]
        each = sorted(seconds for sample in samples for seconds in sample.seconds)
        peaks = [sample.peak_memory_mib for sample in samples if sample.peak_memory_mib is not None]
        without_s = medians.get(Key(WITHOUT, key.clients))
        found.append(
            CellResult(
                mode=key.mode,
                clients=key.clients,
                percentage=key.percentage,
                makespan_s=tuple(sample.makespan_s for sample in samples),
                p50_s=_percentile(each, 0.50),
                p95_s=_percentile(each, 0.95),
                peak_memory_mib=max(peaks) if peaks else None,
                ratio=key.clients * alone_s / medians[key],
                against_none=None
                if without_s is None or key.percentage is None
                else without_s / medians[key],
            )
        )
    return tuple(found)


def _percentile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def best(cells: Sequence[CellResult]) -> CellResult | None:
    """The cell to work in: the highest throughput, or within 3 % of it with fewer clients.

    Of that many clients the plainest mode whose median is within 3 % of the fastest, or within 10 %
    and in the fastest one's own spread.
    """
    if not cells:
        return None
    highest = max(cell.ratio for cell in cells)
    clients = min(cell.clients for cell in cells if cell.ratio >= highest * (1 - ALIKE))
    rivals = [cell for cell in cells if cell.clients == clients]
    fastest = min(rivals, key=lambda cell: cell.median_s)
    slowest_alike_s = max(
        fastest.median_s / (1 - ALIKE), min(max(fastest.makespan_s), fastest.median_s * (1 + NOISE))
    )
    return min(
        (cell for cell in rivals if cell.median_s <= slowest_alike_s),
        key=lambda cell: MODES.index(cell.mode),
    )


def advice(cells: Sequence[CellResult]) -> str:
    """What to do with the best cell, in a sentence. Of MPS it says no more than what was compared."""
    chosen = best(cells)
    if chosen is None:
        return "no cell gave a figure"
    shared = {cell.clients for cell in cells if cell.clients > 1 and cell.percentage is not None}
    if all(cell.clients == 1 for cell in cells):
        return (
            "One process at a time is all that gave a figure: that says nothing of sharing the GPU."
        )
    if chosen.clients == 1 and not shared:
        return (
            "One process does as much as several without MPS; several under MPS were not compared."
        )
    if chosen.clients == 1:
        return "One process does as much as several: MPS has nothing to share here. A larger batch in one process may do more."
    if chosen.percentage is None:
        mps = (
            "MPS adds nothing here"
            if chosen.clients in shared
            else "so many under MPS were not compared"
        )
        return f"{chosen.clients} processes without MPS do {chosen.ratio:.1f} times the work of one; {mps}."
    limit = "" if chosen.percentage == 100 else f" with thread_percentage {chosen.percentage}"
    faster = (
        ""
        if chosen.against_none is None
        else f", {chosen.against_none:.1f} times as fast as without MPS"
    )
    return f"{chosen.clients} processes under MPS{limit}: {chosen.ratio:.1f} times the work of one process{faster}."


COLUMNS = (
    "clients",
    "mode",
    "threads",
    "makespan",
    "spread",
    "p50",
    "p95",
    "memory",
    "ratio",
    "times none",
)
"""What `row` gives of a cell."""


def row(cell: CellResult) -> tuple[str, ...]:
    """A cell as people see it, in the order of `COLUMNS`."""
    return (
        str(cell.clients),
        cell.mode,
        "-" if cell.percentage is None else f"{cell.percentage} %",
        f"{cell.median_s:.2f} s",
        f"{min(cell.makespan_s):.2f}-{max(cell.makespan_s):.2f}",
        f"{cell.p50_s:.2f}",
        f"{cell.p95_s:.2f}",
        "-" if cell.peak_memory_mib is None else f"{cell.peak_memory_mib} MiB",
        f"{cell.ratio:.2f}",
        "-" if cell.against_none is None else f"{cell.against_none:.2f}",
    )


def table(cells: Sequence[CellResult], chosen: CellResult | None) -> str:
    """One line for each cell, for people; the chosen one is marked."""
    rows = [COLUMNS, *(row(cell) for cell in cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    marks = [" ", *("*" if cell is chosen else " " for cell in cells)]
    lines = []
    for mark, words in zip(marks, rows, strict=True):
        padded = [
            word.ljust(width) if name == "mode" else word.rjust(width)
            for name, word, width in zip(COLUMNS, words, widths, strict=True)
        ]
        lines.append("  ".join([f"{mark} {padded[0]}", *padded[1:]]).rstrip())
    return "\n".join(lines)


def document(
    cells: Sequence[CellResult], results: Results, about: Mapping[str, Any]
) -> dict[str, Any]:
    """The document of `--json`, of the file beside the chart, and of what is committed as a result."""
    chosen = best(cells)
    failures = [
        {"mode": key.mode, "clients": key.clients, "why": why} for key, why in results.failures
    ]
    return {
        **about,
        "cells": [cell.as_dict() for cell in cells],
        "failures": failures,
        "best": None
        if chosen is None
        else {
            key: chosen.as_dict()[key]
            for key in ("mode", "clients", "thread_percentage", "ratio", "times_none")
        },
        "advice": advice(cells),
    }
