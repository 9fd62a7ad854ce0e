"""The chart of a benchmark: how much work n processes do, with and without MPS. The only module that imports matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from provision.core.errors import UsageError
from provision.mps.bench.grid import MODES, CellResult

NAMES = {
    "none": "without MPS",
    "mps": "MPS",
    "100/N": "MPS, 100/N % of threads",
    "200/N": "MPS, 200/N % of threads",
}
_COLOURS = {"none": "#b3402a", "mps": "#1f6f54", "100/N": "#a06a00", "200/N": "#2a5d8f"}
_LINES = {"none": "-", "mps": "-", "100/N": ":", "200/N": "--"}
_MARKERS = {"none": "s", "mps": "o", "100/N": "^", "200/N": "D"}
_TITLE_CHARS = 100
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def check_installed() -> None:
    """Raises UsageError where matplotlib is missing: before the benchmark, not after it."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        why = "the chart needs matplotlib"
        raise UsageError(
            "matplotlib is not installed",
            why=why,
            fix="pip install 'provision-gpu[charts]'   (or --no-chart)",
        ) from error


def draw(cells: Sequence[CellResult], title: str) -> dict[str, bytes]:
    """The chart as {"svg": …, "png": …}. Left: seconds until the slowest is done. Right: work done, in processes of one alone."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with mpl.rc_context(
        {
            "font.size": 9,
            "svg.fonttype": "none",
            "svg.hashsalt": "provision",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    ):
        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        seconds, work = figure.subplots(1, 2)
        for mode in MODES:
            _line(
                seconds,
                work,
                mode,
                [
                    cell
                    for cell in cells
                    if cell.mode == mode or (cell.clients == 1 and cell.percentage == 100)
                ],
            )
        most = max(cell.clients for cell in cells)
        work.plot(
            [1, most],
            [1, most],
            color="#cccccc",
            linewidth=1,
            zorder=0,
            label="n processes do n times the work",
        )
        work.legend(frameon=False, loc="lower right")
        work.yaxis.set_major_locator(MaxNLocator(integer=True))
        work.set_ylim(0, max(cell.ratio for cell in cells) * 1.15)
        for axes, label in (
            (seconds, "seconds until the slowest is done"),
            (work, "work done, in processes of one alone"),
        ):
            axes.set_xlabel("processes at once")
            axes.set_ylabel(label)
            axes.set_xticks(_ticks([cell.clients for cell in cells]))
            axes.grid(axis="y", color="#eeeeee")
        seconds.set_ylim(0, max(max(cell.makespan_s) for cell in cells) * 1.08)
        seconds.legend(frameon=False)
        figure.suptitle(
            title if len(title) <= _TITLE_CHARS else title[: _TITLE_CHARS - 1] + "…", fontsize=10
        )
        return {kind: _saved(figure, kind) for kind in ("svg", "png")}


def _ticks(counts: Sequence[int]) -> list[int]:
    """Numbers of processes to be written below the axis: from the most down, those whose figures would not touch."""
    most = max(counts)
    found: list[int] = []
    for count in sorted(set(counts), reverse=True):
        if not found or found[-1] - count >= most / 25:
            found.append(count)
    return found[::-1]


def _line(seconds: Any, work: Any, mode: str, cells: Sequence[CellResult]) -> None:
    if not any(cell.mode == mode for cell in cells):
        return
    mine = sorted(
        (cell for cell in cells if cell.mode == mode or mode != "none"),
        key=lambda cell: cell.clients,
    )
    style: dict[str, Any] = {
        "color": _COLOURS[mode],
        "linestyle": _LINES[mode],
        "marker": _MARKERS[mode],
    }
    style |= {"markersize": 4, "linewidth": 1.4, "capsize": 2}
    counts = [cell.clients for cell in mine]
    middle = [cell.median_s for cell in mine]
    around = [
        [cell.median_s - min(cell.makespan_s) for cell in mine],
        [max(cell.makespan_s) - cell.median_s for cell in mine],
    ]
    seconds.errorbar(counts, middle, yerr=around, label=NAMES[mode], **style)
    work.errorbar(counts, [cell.ratio for cell in mine], **style)


def _saved(figure: Any, kind: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=160, metadata=_NO_METADATA if kind == "svg" else None)
    return buffer.getvalue()
