"""The results of a benchmark from its samples: each cell, the best cell, advice. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.mps.bench.cell import Sample
from provision.mps.bench.grid import ALONE, MODES, WITHOUT, CellKey

_ALIKE = 0.03
"""Cells that differ by less are alike: the one with fewer clients is recommended."""
_NOISE = 0.10
"""How far the spread of a cell may make a plainer one alike: one slow round does not excuse a cell
that is twice as slow."""


@dataclass
class Samples:
    """Every sample of every cell, and every run without one, with its reason."""

    by_cell: dict[CellKey, list[Sample]] = field(default_factory=dict)
    failures: list[tuple[CellKey, str]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """A cell over all rounds. Times in seconds."""

    mode: str
    clients: int
    percentage: int | None
    makespan_s: tuple[float, ...]
    """Of each round."""
    p50_s: float
    p95_s: float
    peak_memory_mib: int | None
    ratio: float
    """Throughput in multiples of one process alone without MPS."""
    against_none: float | None
    """How many times faster than the same number of processes without MPS; None without MPS."""

    @property
    def median_s(self) -> float:
        """Median of the makespans."""
        return statistics.median(self.makespan_s)

    def as_dict(self) -> dict[str, Any]:
        """The cell as `--json` prints it."""
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


def cell_results(samples: Samples) -> tuple[CellResult, ...]:
    """The result of every cell that has a sample, by clients and mode.

    Empty without a sample of one process alone, since nothing can be compared then.
    """
    medians_s = {
        key: statistics.median(sample.makespan_s for sample in cell_samples)
        for key, cell_samples in samples.by_cell.items()
        if cell_samples
    }
    alone_s = medians_s.get(ALONE)
    if alone_s is None:
        return ()
    keys = sorted(medians_s, key=lambda key: (key.clients, MODES.index(key.mode)))
    return tuple(
        _cell_result(
            key, samples.by_cell[key], alone_s, medians_s.get(CellKey(WITHOUT, key.clients))
        )
        for key in keys
    )


def _cell_result(
    key: CellKey, samples: Sequence[Sample], alone_s: float, without_s: float | None
) -> CellResult:
    """The result of one cell; `without_s` is the median of as many clients without MPS."""
    makespans_s = tuple(sample.makespan_s for sample in samples)
    median_s = statistics.median(makespans_s)
    seconds = sorted(value for sample in samples for value in sample.seconds)
    peaks = [sample.peak_memory_mib for sample in samples if sample.peak_memory_mib is not None]
    return CellResult(
        mode=key.mode,
        clients=key.clients,
        percentage=key.percentage,
        makespan_s=makespans_s,
        p50_s=_percentile(seconds, 0.50),
        p95_s=_percentile(seconds, 0.95),
        peak_memory_mib=max(peaks) if peaks else None,
        ratio=key.clients * alone_s / median_s,
        against_none=None if without_s is None or key.percentage is None else without_s / median_s,
    )


def _percentile(values: Sequence[float], share: float) -> float:
    """The value at `share` of sorted `values`."""
    return values[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def best_cell(cells: Sequence[CellResult]) -> CellResult | None:
    """The cell to work in: the highest throughput, or within 3 % of it with fewer clients.

    Of cells with that many clients, the plainest mode whose median is within 3 % of the fastest
    one, or within 10 % and within the spread of the fastest one. None without cells.
    """
    if not cells:
        return None
    highest = max(cell.ratio for cell in cells)
    clients = min(cell.clients for cell in cells if cell.ratio >= highest * (1 - _ALIKE))
    rivals = [cell for cell in cells if cell.clients == clients]
    fastest = min(rivals, key=lambda cell: cell.median_s)
    spread_s = min(max(fastest.makespan_s), fastest.median_s * (1 + _NOISE))
    limit_s = max(fastest.median_s / (1 - _ALIKE), spread_s)
    alike = [cell for cell in rivals if cell.median_s <= limit_s]
    return min(alike, key=lambda cell: MODES.index(cell.mode))


def advice(cells: Sequence[CellResult]) -> str:
    """A sentence that recommends the best cell; it mentions only cells that have results."""
    best = best_cell(cells)
    if best is None:
        return "no cell has a result"
    compared = {cell.clients for cell in cells if cell.clients > 1 and cell.percentage is not None}
    if best.clients == 1:
        return _advice_for_one_process(cells, mps_was_compared=bool(compared))
    if best.percentage is None:
        return _advice_without_mps(best, mps_was_compared=best.clients in compared)
    return _advice_with_mps(best)


def _advice_without_mps(best: CellResult, *, mps_was_compared: bool) -> str:
    mps = "MPS adds nothing here" if mps_was_compared else "that number was not measured under MPS"
    return f"{best.clients} processes without MPS do {best.ratio:.1f} times the work of one; {mps}."


def _advice_with_mps(best: CellResult) -> str:
    limit = "" if best.percentage == 100 else f" with thread_percentage {best.percentage}"
    gain = (
        ""
        if best.against_none is None
        else f", {best.against_none:.1f} times as fast as without MPS"
    )
    work = f"{best.ratio:.1f} times the work of one process"
    return f"{best.clients} processes under MPS{limit}: {work}{gain}."


def _advice_for_one_process(cells: Sequence[CellResult], *, mps_was_compared: bool) -> str:
    """The advice where several processes do no more than one, or have no result."""
    if all(cell.clients == 1 for cell in cells):
        return (
            "Only runs of one process have a result: they do not show what sharing the GPU gives."
        )
    if not mps_was_compared:
        return (
            "One process does as much as several without MPS; several under MPS were not measured."
        )
    return (
        "One process does as much as several: MPS gains nothing here. "
        "A larger batch in one process may do more."
    )
