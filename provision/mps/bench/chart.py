"""The chart of a benchmark: the work of n processes with and without MPS. Imports matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from provision.core.errors import UsageError
from provision.mps.bench.grid import MODES, WITHOUT
from provision.mps.bench.results import CellResult

LABELS = {
    "none": "without MPS",
    "mps": "MPS",
    "100/N": "MPS, 100/N % of threads",
    "200/N": "MPS, 200/N % of threads",
}
_STYLES: dict[str, dict[str, Any]] = {
    "none": {"color": "#b3402a", "linestyle": "-", "marker": "s"},
    "mps": {"color": "#1f6f54", "linestyle": "-", "marker": "o"},
    "100/N": {"color": "#a06a00", "linestyle": ":", "marker": "^"},
    "200/N": {"color": "#2a5d8f", "linestyle": "--", "marker": "D"},
}
_LINE_STYLE: dict[str, Any] = {"markersize": 4, "linewidth": 1.4, "capsize": 2}
_SETTINGS: Any = {
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "provision",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_TITLE_CHARS = 100
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def check_installed() -> None:
    """Raise `UsageError` where matplotlib is missing."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "matplotlib is not installed",
            why="the chart needs matplotlib",
            fix="pip install 'provision-gpu[charts]'   (or --no-chart)",
        ) from error


def draw(cells: Sequence[CellResult], title: str) -> dict[str, bytes]:
    """The chart as {"svg": …, "png": …}.

    Left: seconds until the slowest process ends. Right: throughput in multiples of one process.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        seconds, work = figure.subplots(1, 2)
        for mode in MODES:
            _draw_mode(seconds, work, mode, cells)
        _finish_work_axes(work, cells)
        seconds.set_ylim(0, max(max(cell.makespan_s) for cell in cells) * 1.08)
        seconds.legend(frameon=False)
        for axes, label in (
            (seconds, "seconds until the slowest is done"),
            (work, "work done, in processes of one alone"),
        ):
            axes.set_xlabel("processes at once")
            axes.set_ylabel(label)
            axes.set_xticks(_ticks([cell.clients for cell in cells]))
            axes.grid(axis="y", color="#eeeeee")
        shown = title if len(title) <= _TITLE_CHARS else title[: _TITLE_CHARS - 1] + "…"
        figure.suptitle(shown, fontsize=10)
        return {kind: _saved(figure, kind) for kind in ("svg", "png")}


def _draw_mode(seconds: Any, work: Any, mode: str, cells: Sequence[CellResult]) -> None:
    """Draw one mode into both axes; every line with MPS begins at the cell of one client."""
    if not any(cell.mode == mode for cell in cells):
        return
    line = [
        cell
        for cell in cells
        if cell.mode == mode or (mode != WITHOUT and (cell.clients, cell.percentage) == (1, 100))
    ]
    line.sort(key=lambda cell: cell.clients)
    style = _STYLES[mode] | _LINE_STYLE
    counts = [cell.clients for cell in line]
    medians_s = [cell.median_s for cell in line]
    below = [cell.median_s - min(cell.makespan_s) for cell in line]
    above = [max(cell.makespan_s) - cell.median_s for cell in line]
    seconds.errorbar(counts, medians_s, yerr=[below, above], label=LABELS[mode], **style)
    work.errorbar(counts, [cell.ratio for cell in line], **style)


def _finish_work_axes(work: Any, cells: Sequence[CellResult]) -> None:
    """Add the line of perfect scaling, the legend and the scale."""
    from matplotlib.ticker import MaxNLocator

    most = max(cell.clients for cell in cells)
    label = "n processes do n times the work"
    work.plot([1, most], [1, most], color="#cccccc", linewidth=1, zorder=0, label=label)
    work.legend(frameon=False, loc="lower right")
    work.yaxis.set_major_locator(MaxNLocator(integer=True))
    work.set_ylim(0, max(cell.ratio for cell in cells) * 1.15)


def _ticks(counts: Sequence[int]) -> list[int]:
    """The numbers of processes to label, from the largest down, without overlapping labels."""
    most = max(counts)
    ticks: list[int] = []
    for count in sorted(set(counts), reverse=True):
        if not ticks or ticks[-1] - count >= most / 25:
            ticks.append(count)
    return ticks[::-1]


def _saved(figure: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=160, metadata=_NO_METADATA if kind == "svg" else None)
    return buffer.getvalue()
