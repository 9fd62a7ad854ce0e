"""The report of a benchmark as one HTML file that needs nothing beside it. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provision.mps.bench.grid import COLUMNS, CellResult, row

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 2.5rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem; font-weight: 600 } h2 { font-size: 1.05rem; margin-top: 2rem } svg { width: 100%; height: auto }
div { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap }
td, th { padding: .2rem .9rem .2rem 0; text-align: right } td:nth-child(2), th:nth-child(2) { text-align: left }
th { font-weight: 600; border-bottom: 1px solid #ccc } tr.next td { border-top: 1px solid #eee }
tr.best td { font-weight: 600; background: #eef6f1 } p.advice { font-size: 1.05rem }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) auto; gap: 0 1.5rem; margin: 0 } dd { margin: 0 } dt { color: #666 }
"""
_LEGEND = (
    (
        "makespan",
        "seconds from the common start until the slowest is done: median of the rounds; spread: least and most",
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
"""What keys of the document are called here; the others speak for themselves."""
_SHOWN_APART = frozenset(
    ("cells", "failures", "best", "advice", "files", "complete", "why", "few_rounds", "disturbed")
)


def report(cells: Sequence[CellResult], document: Mapping[str, Any], *, svg: str | None) -> str:
    """The whole page: advice, chart, every cell, every failure, and what was measured on what."""
    about = {key: value for key, value in document.items() if key not in _SHOWN_APART}
    title = f"MPS on {document.get('gpu') or 'a GPU'}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style>",
        f"<h1>{_text(title)}</h1>",
        f'<p class="advice">{_text(document["advice"])}</p>',
        ""
        if document.get("complete", True)
        else f"<p>This is a part: {_text(document['why'])}.</p>",
        f"<p>{_text(document['few_rounds'])}.</p>" if document.get("few_rounds") else "",
        *(
            f"<p>Not alone: after round {entry['round']} the GPU was used by {_text(entry['by'])}.</p>"
            for entry in _disturbed(document)
        ),
        "" if svg is None else _figure(svg),
        "<h2>Cells</h2>",
        _table(cells, document.get("best") or {}),
        "<h2>What the columns say</h2>",
        _list(_LEGEND),
        *(
            ("<h2>Runs without a figure</h2>", _failures(document["failures"]))
            if document["failures"]
            else ()
        ),
        "<h2>Measured</h2>",
        _list((_LABELS.get(key, key), _value(value)) for key, value in about.items()),
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _disturbed(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return document.get("disturbed") or ()


def _figure(svg: str) -> str:
    """The chart without what stands before its element, with its meaning for those who do not see it."""
    label = "left: seconds until the slowest of n processes is done; right: the work that they do; the table below has the figures"
    return svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _list(entries: Iterable[tuple[str, str]]) -> str:
    return (
        "<dl>"
        + "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in entries)
        + "</dl>"
    )


def _table(cells: Sequence[CellResult], chosen: Mapping[str, Any]) -> str:
    """A row for each cell, a line above each number of clients."""
    head = "<tr>" + "".join(f'<th scope="col">{column}</th>' for column in COLUMNS) + "</tr>"
    rows, before = [], None
    for cell in cells:
        is_best = (cell.mode, cell.clients) == (chosen.get("mode"), chosen.get("clients"))
        kinds = " ".join(
            filter(
                None,
                ("next" if before not in (None, cell.clients) else "", "best" if is_best else ""),
            )
        )
        mark = f' class="{kinds}"' if kinds else ""
        rows.append(
            f"<tr{mark}>" + "".join(f"<td>{_text(value)}</td>" for value in row(cell)) + "</tr>"
        )
        before = cell.clients
    return "\n".join(
        ["<div><table><thead>", head, "</thead><tbody>", *rows, "</tbody></table></div>"]
    )


def _failures(failures: Sequence[Mapping[str, Any]]) -> str:
    lines = (
        f"<li>{_text(entry['mode'])} x {entry['clients']}: {_text(entry['why'])}</li>"
        for entry in failures
    )
    return "<ul>" + "".join(lines) + "</ul>"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def _text(text: str) -> str:
    return html.escape(text)
