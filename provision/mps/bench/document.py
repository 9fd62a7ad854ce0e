"""The results of a benchmark as the document of `--json` and as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.mps.bench.results import CellResult, Samples, advice, best_cell
from provision.report.table import format_table

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
"""The heading of the columns that `table_row` fills."""
_BEST_KEYS = ("mode", "clients", "thread_percentage", "ratio", "times_none")


def bench_document(
    cells: Sequence[CellResult], samples: Samples, about: Mapping[str, Any]
) -> dict[str, Any]:
    """The document of `--json` and of mps-bench.json; `about` is what was measured on what."""
    best = best_cell(cells)
    return {
        **about,
        "cells": [cell.as_dict() for cell in cells],
        "failures": [
            {"mode": key.mode, "clients": key.clients, "why": why} for key, why in samples.failures
        ],
        "best": None if best is None else {key: best.as_dict()[key] for key in _BEST_KEYS},
        "advice": advice(cells),
    }


def table_row(cell: CellResult) -> tuple[str, ...]:
    """The texts of a cell in the order of `COLUMNS`."""
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


def table(cells: Sequence[CellResult]) -> str:
    """One line for each cell below a heading; the best one is marked with `*`."""
    best = best_cell(cells)
    rows = [COLUMNS, *(table_row(cell) for cell in cells)]
    width = max(len(first) for first, *_ in rows)
    marks = [" ", *("*" if cell is best else " " for cell in cells)]
    marked = [
        (f"{mark} {first.rjust(width)}", *others)
        for mark, (first, *others) in zip(marks, rows, strict=True)
    ]
    right = [index for index, name in enumerate(COLUMNS) if name != "mode"]
    return format_table(marked, right=right, width=0)
