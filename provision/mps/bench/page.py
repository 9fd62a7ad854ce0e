"""The report of a benchmark as one self-contained HTML file. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.mps.bench.document import COLUMNS, table_row
from provision.mps.bench.results import CellResult

_VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
_MAKESPAN = (
    "seconds from the common start until the slowest is done: median of the rounds; "
    "spread: least and most"
)
_LEGEND = (
    (
        "makespan",
        _MAKESPAN,
    ),
    ("p50, p95", "seconds of the single processes, over all rounds"),
    ("memory", "the most that the GPU held beyond what it held before"),
    ("ratio", "work done, in processes of one alone without MPS"),
    ("times none", "how many times faster than the same number of processes without MPS"),
)
_LABELS = {
    "gpu": "GPU",
    "gpu_uuid": "GPU's UUID",
    "gpu_memory": "GPU memory",
    "compute_mode": "compute mode",
    "cpus": "cores",
    "core_sets": "cores of its own for each",
    "topology": "where clients run",
}
"""Labels of the document's keys; a key without one is shown as it is."""
_SHOWN_ELSEWHERE = frozenset(
    ("cells", "failures", "best", "advice", "files", "complete", "why", "few_rounds", "disturbed")
)
_CHART_LABEL = (
    "left: seconds until the slowest of n processes is done; right: the work that they do; "
    "the table below has the figures"
)


def report_page(
    cells: Sequence[CellResult], document: Mapping[str, Any], *, svg: str | None
) -> str:
    """The whole page: advice, chart, every cell, every failure, what was measured on what."""
    title = f"MPS on {document.get('gpu') or 'a GPU'}"
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    about = [
        (_LABELS.get(key, key), _value_text(value))
        for key, value in document.items()
        if key not in _SHOWN_ELSEWHERE
    ]
    parts = [
        "<!doctype html>",
        f'<html lang="en"><meta charset="utf-8">{_VIEWPORT}',
        f"<title>{html.escape(title)}</title><style>\n{style}</style>",
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="advice">{html.escape(document["advice"])}</p>',
        *(f"<p>{html.escape(warning)}.</p>" for warning in _warnings(document)),
        "" if svg is None else _figure(svg),
        "<h2>Cells</h2>",
        _table(cells, document.get("best") or {}),
        "<h2>Columns</h2>",
        _definition_list(_LEGEND),
        _failures(document["failures"]),
        "<h2>Measured</h2>",
        _definition_list(about),
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _warnings(document: Mapping[str, Any]) -> Iterator[str]:
    """What limits the figures: an interrupted run, few rounds, other users of the GPU."""
    if not document.get("complete", True):
        yield f"Incomplete: {document['why']}"
    if document.get("few_rounds"):
        yield document["few_rounds"]
    for entry in document.get("disturbed") or ():
        yield f"GPU shared: after round {entry['round']} the GPU was used by {entry['by']}"


def _figure(svg: str) -> str:
    """The chart's element, without the XML declaration, with a label for screen readers."""
    return svg[svg.index("<svg") :].replace(
        "<svg", f'<svg role="img" aria-label="{_CHART_LABEL}"', 1
    )


def _definition_list(entries: Iterable[tuple[str, str]]) -> str:
    items = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in entries)
    return f"<dl>{''.join(items)}</dl>"


def _table(cells: Sequence[CellResult], best: Mapping[str, Any]) -> str:
    """A row for each cell, a line above each number of clients."""
    head = "<tr>" + "".join(f'<th scope="col">{column}</th>' for column in COLUMNS) + "</tr>"
    rows, previous = [], None
    for cell in cells:
        is_best = (cell.mode, cell.clients) == (best.get("mode"), best.get("clients"))
        is_next = previous not in (None, cell.clients)
        classes = " ".join(["next"] * is_next + ["best"] * is_best)
        values = "".join(f"<td>{html.escape(value)}</td>" for value in table_row(cell))
        rows.append(f'<tr class="{classes}">{values}</tr>' if classes else f"<tr>{values}</tr>")
        previous = cell.clients
    return "\n".join(
        ["<div><table><thead>", head, "</thead><tbody>", *rows, "</tbody></table></div>"]
    )


def _failures(failures: Sequence[Mapping[str, Any]]) -> str:
    """A list of the runs that gave no figure; empty where there is none."""
    if not failures:
        return ""
    lines = (
        f"<li>{html.escape(entry['mode'])} x {entry['clients']}: {html.escape(entry['why'])}</li>"
        for entry in failures
    )
    return f"<h2>Runs without a figure</h2>\n<ul>{''.join(lines)}</ul>"


def _value_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
