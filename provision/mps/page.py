"""The report of a benchmark as one HTML file that needs nothing beside it. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from provision.mps.bench import COLUMNS, CellResult, row

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2.5rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem; font-weight: 600 } h2 { font-size: 1.05rem; margin-top: 2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } td, th { padding: .25rem .9rem .25rem 0; text-align: right }
th { font-weight: 600; border-bottom: 1px solid #ccc } td:nth-child(2), th:nth-child(2) { text-align: left }
tr.best td { font-weight: 600; background: #eef6f1 } dl { display: grid; grid-template-columns: 11rem auto; margin: 0 } dd { margin: 0 }
dt { color: #666 } svg { width: 100%; height: auto } p.advice { font-size: 1.05rem } code { background: #f4f4f4; padding: 0 .25rem }
"""
_LEGEND = """
Makespan: seconds from the common start until the slowest is done, median of the rounds, and their spread.
p50, p95: of the single processes.
Memory: the most that the GPU held beyond what it held before. Ratio: work done, in processes of one alone without MPS.
Times none: how many times faster than the same number of processes without MPS.
"""

_SHOWN_APART = frozenset(("cells", "failures", "best", "advice", "files", "complete", "why"))


def report(cells: Sequence[CellResult], document: Mapping[str, Any], *, svg: str | None) -> str:
    """The whole page: advice, chart, every cell, every failure, and what was measured on what."""
    about = {key: value for key, value in document.items() if key not in _SHOWN_APART}
    title = f"MPS on {document.get('gpu') or 'a GPU'}"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><meta charset="utf-8"><title>{_text(title)}</title><style>{_STYLE}</style>',
        f"<h1>{_text(title)}</h1>",
        f'<p class="advice">{_text(document["advice"])}</p>',
        "" if document.get("complete", True) else f"<p>This is a part: {_text(document['why'])}.</p>",
        "" if svg is None else svg[svg.index("<svg") :],
        "<h2>Cells</h2>",
        _table(cells, document.get("best") or {}),
        f"<p>{_LEGEND}</p>",
        *(("<h2>Runs without a figure</h2>", _failures(document["failures"])) if document["failures"] else ()),
        "<h2>Measured</h2>",
        "<dl>" + "".join(f"<dt>{_text(key)}</dt><dd>{_text(_value(value))}</dd>" for key, value in about.items()) + "</dl>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _table(cells: Sequence[CellResult], chosen: Mapping[str, Any]) -> str:
    head = "<tr>" + "".join(f"<th>{column}</th>" for column in COLUMNS) + "</tr>"
    rows = []
    for cell in cells:
        is_best = (cell.mode, cell.clients) == (chosen.get("mode"), chosen.get("clients"))
        rows.append(f"<tr{' class=best' if is_best else ''}>" + "".join(f"<td>{_text(value)}</td>" for value in row(cell)) + "</tr>")
    return "\n".join(["<table>", head, *rows, "</table>"])


def _failures(failures: Sequence[Mapping[str, Any]]) -> str:
    lines = (f"<li>{_text(entry['mode'])} x {entry['clients']}: {_text(entry['why'])}</li>" for entry in failures)
    return "<ul>" + "".join(lines) + "</ul>"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)


def _text(text: str) -> str:
    return html.escape(text)
