"""Pilot runs, and the number of steps with which a benchmark fits its budget. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.core import durations
from provision.core.errors import UsageError
from provision.mps.bench.grid import ALONE, CellKey

FEWEST_STEPS, MOST_STEPS = 50, 50_000


@dataclass(frozen=True)
class Pilot:
    """How long a short run of one cell took. Times in seconds."""

    key: CellKey
    steps: int
    makespan_s: float
    """From the common start until the last client ended."""
    total_s: float
    """The whole run: start-up, daemon and clean-up included."""

    @property
    def overhead_s(self) -> float:
        """Seconds outside the makespan."""
        return max(0.0, self.total_s - self.makespan_s)


def pilot_candidates(keys: Sequence[CellKey]) -> tuple[tuple[CellKey, ...], ...]:
    """The cells to pilot: one process alone, and the largest cell without MPS and with it.

    Each entry lists a cell and the smaller ones that replace it in turn where it gives no figure:
    fewer processes may fit into the memory.
    """
    without = {key.clients: key for key in keys if key.percentage is None and key != ALONE}
    with_mps: dict[int, CellKey] = {}
    for key in keys:
        if key.percentage is not None:
            with_mps.setdefault(key.clients, key)
    arms = (tuple(arm[count] for count in sorted(arm, reverse=True)) for arm in (without, with_mps))
    return ((ALONE,), *(arm for arm in arms if arm))


def predict_s(
    keys: Sequence[CellKey], pilots: Sequence[Pilot], steps: int
) -> Mapping[CellKey, float]:
    """About how many seconds one run of each cell takes in all.

    Interpolates linearly between one process alone and the pilot without MPS, or with it. `pilots`
    must contain that of one process alone.
    """
    alone = next(pilot for pilot in pilots if pilot.key == ALONE)
    without = next((p for p in pilots if p.key.percentage is None and p is not alone), alone)
    with_mps = next((p for p in pilots if p.key.percentage is not None), without)
    predicted = {}
    for key in keys:
        largest = without if key.percentage is None else with_mps
        most = largest.key.clients
        part = (key.clients - 1) / (most - 1) if most > 1 else 1.0
        overhead_s = _interpolated(alone.overhead_s, largest.overhead_s, part)
        step_s = _interpolated(
            alone.makespan_s / alone.steps, largest.makespan_s / largest.steps, part
        )
        predicted[key] = overhead_s + steps * step_s
    return predicted


def _interpolated(first: float, last: float, part: float) -> float:
    """The value at `part` of the way, never below 0: more processes may take less than fewer."""
    return max(0.0, first + (last - first) * part)


def steps_for_budget(
    keys: Sequence[CellKey], pilots: Sequence[Pilot], *, rounds: int, budget_s: float
) -> int:
    """The number of steps with which `rounds` of all cells take about `budget_s` seconds.

    Raises `UsageError` when even `FEWEST_STEPS` take longer.
    """
    overhead_s = rounds * sum(predict_s(keys, pilots, 0).values())
    step_s = rounds * sum(predict_s(keys, pilots, 1).values()) - overhead_s
    steps = math.floor((budget_s - overhead_s) / step_s) if step_s > 0 else MOST_STEPS
    if steps < FEWEST_STEPS:
        least_s = round(overhead_s + FEWEST_STEPS * step_s)
        least = durations.rounded(least_s)
        raise UsageError(
            "the grid does not fit the budget",
            where=f"--budget {durations.rounded(budget_s)}",
            why=f"{rounds} rounds of {len(keys)} cells take at least {least}",
            fix=f"--budget {durations.rounded(least_s * 1.2)}",
        )
    return min(MOST_STEPS, steps if steps < 1000 else steps // 100 * 100)
