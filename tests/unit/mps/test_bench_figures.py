"""A benchmark: flags, the grid, the order, the budget, results, document and page."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.commands.mps.bench.options import parse_budget, parse_clients, parse_modes
from provision.core.errors import UsageError
from provision.mps.bench.cell import ClientEnd, Sample
from provision.mps.bench.cores import core_sets, parse_cpu_list, threads_per_client
from provision.mps.bench.document import bench_document, table
from provision.mps.bench.grid import (
    MODES,
    CellKey,
    cells_over_limit,
    grid_cells,
    shuffled_rounds,
)
from provision.mps.bench.page import report_page
from provision.mps.bench.pilots import (
    FEWEST_STEPS,
    Pilot,
    pilot_candidates,
    predict_s,
    steps_for_budget,
)
from provision.mps.bench.results import Samples, advice, best_cell, cell_results


def sample(*seconds: float, memory: int | None = 500) -> Sample:
    ends = tuple(ClientEnd(index, 100.0, 100.0 + each, 0) for index, each in enumerate(seconds))
    return Sample(
        makespan_s=max(seconds),
        ends=ends,
        peak_memory_mib=memory,
        attached=frozenset(range(len(seconds))),
    )


def samples(runs_by_cell: dict[tuple[str, int], list[list[float]]]) -> Samples:
    return Samples(
        {CellKey(*key): [sample(*run) for run in runs] for key, runs in runs_by_cell.items()}
    )


# --- flags ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "modes"),
    [
        (None, MODES),
        ("mps", ("none", "mps")),
        ("200/n, MPS", ("none", "mps", "200/N")),
        ("none", ("none",)),
    ],
)
def test_modes_always_include_none(text: str | None, modes: tuple[str, ...]) -> None:
    assert parse_modes(text) == modes


@pytest.mark.parametrize(
    ("text", "clients"),
    [(None, (1, 2, 4, 8, 16)), ("16,4", (1, 4, 16)), ("1", (1,)), ("3,3", (1, 3))],
)
def test_clients_always_include_one(text: str | None, clients: tuple[int, ...]) -> None:
    assert parse_clients(text) == clients


@pytest.mark.parametrize("text", ["", "0", "4,x", "-1", "1000", "1;2"])
def test_invalid_clients_flag_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_clients(text)


@pytest.mark.parametrize(("text", "unknown"), [("mps,fast", "'fast'"), ("", "''"), (",", "','")])
def test_unknown_mode_is_refused(text: str, unknown: str) -> None:
    with pytest.raises(UsageError, match=f"unknown mode {unknown}"):
        parse_modes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("6m", 360), ("1h30m", 5400), ("45", 45), ("2m5s", 125)]
)
def test_budget_is_parsed_as_time_span(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "6 m", "-3m", "0"])
def test_invalid_budget_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_budget(text)


# --- the grid -------------------------------------------------------------------------------------


def test_grid_has_equal_modes_once() -> None:
    """For one client 100/N is 100 %, and for two 200/N is."""
    assert [str(key) for key in grid_cells(MODES, (1, 2, 16))] == [
        *("none x 1", "mps x 1", "none x 2", "mps x 2", "100/N x 2"),
        *("none x 16", "mps x 16", "100/N x 16", "200/N x 16"),
    ]


@pytest.mark.parametrize(
    ("mode", "clients", "percentage"),
    [
        ("none", 4, None),
        ("mps", 4, 100),
        ("100/N", 16, 7),
        ("200/N", 16, 13),
        ("200/N", 1, 100),
        ("100/N", 300, 1),
    ],
)
def test_thread_percentage_of_each_mode(mode: str, clients: int, percentage: int | None) -> None:
    assert CellKey(mode, clients).percentage == percentage


def test_each_round_has_every_cell_in_its_own_order() -> None:
    keys = grid_cells(MODES, (1, 4, 16))
    order = list(shuffled_rounds(keys, 3))
    assert Counter(order) == Counter((number, key) for number in (1, 2, 3) for key in keys)
    assert [number for number, _ in order] == sorted(number for number, _ in order)
    rounds = [tuple(key for number, key in order if number == wanted) for wanted in (1, 2, 3)]
    assert len(set(rounds)) == 3
    assert list(shuffled_rounds(keys, 3)) == order, "a run can be repeated"


@given(st.integers(0, 64), st.integers(1, 100), st.integers(0, 50))
def test_core_sets_are_disjoint_while_cores_suffice(cpus: int, clients: int, more: int) -> None:
    most = clients + more
    sets = core_sets(range(cpus), clients, most)
    assert len(sets) == clients
    if not cpus:
        assert set(sets) == {"-"}
        return
    used = Counter(cpu for each in sets for cpu in each.split(","))
    assert {each.count(",") + 1 for each in sets} == {max(1, cpus // most)}, (
        "each client gets as many cores as in the largest cell"
    )
    if clients <= cpus:
        assert max(used.values()) == 1
    else:
        assert max(used.values()) - min(used.values()) <= 1


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), ("0-", ()), ("a", ())]
)
def test_cpu_list_is_parsed(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@given(st.integers(1, 256), st.integers(1, 256))
def test_threads_never_oversubscribe_the_cores(cpus: int, clients: int) -> None:
    threads = threads_per_client(cpus, clients)
    assert threads == 1 or threads * clients <= cpus


# --- the budget -----------------------------------------------------------------------------------

KEYS = grid_cells(("none", "mps"), (1, 16))
RUNS = (
    Pilot(CellKey("none", 1), 200, 0.2, 5.2),
    Pilot(CellKey("none", 16), 200, 0.8, 8.8),
    Pilot(CellKey("mps", 16), 200, 0.3, 9.3),
)


def test_steps_fill_the_budget() -> None:
    steps = steps_for_budget(KEYS, RUNS, rounds=3, budget_s=600)
    assert steps > 1000
    assert steps % 100 == 0
    assert 0.98 * 600 < 3 * sum(predict_s(KEYS, RUNS, steps).values()) <= 600


def test_budget_below_the_least_suggests_a_larger_one() -> None:
    with pytest.raises(UsageError) as caught:
        steps_for_budget(KEYS, RUNS, rounds=3, budget_s=60)
    assert "3 rounds of 4 cells take at least 1m2" in caught.value.why
    assert (
        steps_for_budget(KEYS, RUNS, rounds=3, budget_s=parse_budget(caught.value.fix.split()[1]))
        >= FEWEST_STEPS
    )


def test_pilots_are_smallest_and_largest_cells() -> None:
    assert [[str(key) for key in arm] for arm in pilot_candidates(KEYS)] == [
        ["none x 1"],
        ["none x 16"],
        ["mps x 16", "mps x 1"],
    ]
    assert [[str(key) for key in arm] for arm in pilot_candidates(grid_cells(("none",), (1,)))] == [
        ["none x 1"]
    ]


def test_prediction_extrapolates_from_smaller_pilots() -> None:
    keys = grid_cells(("none", "mps"), (1, 4, 16))
    runs = (
        Pilot(CellKey("none", 1), 100, 1.0, 2.0),
        Pilot(CellKey("none", 4), 100, 4.0, 5.0),
        Pilot(CellKey("mps", 1), 100, 1.1, 3.1),
    )
    found = {str(key): round(seconds, 3) for key, seconds in predict_s(keys, runs, 100).items()}
    assert (found["none x 1"], found["none x 4"], found["none x 16"]) == (2.0, 5.0, 17.0)
    assert (found["mps x 1"], found["mps x 16"]) == (3.1, 3.1)


@given(
    st.integers(1, 64),
    st.integers(1, 64),
    st.floats(0.01, 50),
    st.floats(0.01, 50),
    st.integers(0, 5000),
)
def test_predicted_times_are_never_negative(
    most: int, piloted: int, alone_s: float, far_s: float, steps: int
) -> None:
    """More processes may take less than fewer; a line through them would soon be below zero."""
    keys = grid_cells(("none", "mps"), (1, most))
    runs = (
        Pilot(CellKey("none", 1), 200, alone_s, alone_s + 9),
        Pilot(CellKey("mps", piloted), 200, far_s, far_s + 1),
    )
    assert min(predict_s(keys, runs, steps).values()) >= 0.0


def test_only_cells_with_mps_exceed_client_limit() -> None:
    keys = grid_cells(("none", "mps", "200/N"), (1, 48, 49))
    assert [str(key) for key in cells_over_limit(keys, 48)] == ["mps x 49", "200/N x 49"]
    assert cells_over_limit(keys, None) == ()


# --- what came of it ------------------------------------------------------------------------------

SEED = samples(
    {
        ("none", 1): [[80.0]],
        ("none", 5): [[136.0] * 5],
        ("mps", 5): [[86.0] * 5],
        ("none", 10): [[221.0] * 10],
        ("mps", 10): [[124.0] * 9 + [120.0]],
    }
)
"""The table of the seed (Tesla P100)."""


def test_published_example_gives_published_ratios() -> None:
    cells = cell_results(SEED)
    by_key = {(cell.mode, cell.clients): cell for cell in cells}
    assert [round(cell.against_none or 0, 2) for cell in cells if cell.mode == "mps"] == [
        1.58,
        1.78,
    ]
    assert round(by_key["none", 10].ratio, 2) == 3.62
    assert round(by_key["mps", 10].ratio, 2) == 6.45
    chosen = best_cell(cells)
    assert chosen is by_key["mps", 10]
    assert advice(cells) == (
        "10 processes under MPS: 6.5 times the work of one process, "
        "1.8 times as fast as without MPS."
    )


def test_best_of_similar_cells_is_the_plainer_mode() -> None:
    cells = cell_results(
        samples(
            {
                ("none", 1): [[1.0]],
                ("none", 4): [[2.0] * 4],
                ("mps", 4): [[1.01] * 4],
                ("200/N", 4): [[1.0] * 4],
                ("mps", 8): [[2.0] * 8],
            }
        )
    )
    chosen = best_cell(cells)
    assert chosen is not None
    assert (chosen.mode, chosen.clients) == ("mps", 4)


def test_cap_faster_by_less_than_its_spread_is_not_best() -> None:
    """Three rounds of 16 light trainings on an H200, with a cap and without."""
    runs_by_cell = {
        ("none", 1): [[2.34]],
        ("none", 16): [[7.19] * 16],
        ("mps", 16): [[2.21] * 16, [2.21] * 16, [2.49] * 16],
        ("200/N", 16): [[2.06] * 16, [2.06] * 16, [4.14] * 16],
    }
    chosen = best_cell(cell_results(samples(runs_by_cell)))
    assert chosen is not None
    assert (chosen.mode, chosen.clients) == ("mps", 16)


def test_one_slow_round_does_not_make_a_slow_mode_best() -> None:
    runs_by_cell = {
        ("none", 1): [[1.0]],
        ("none", 8): [[4.0] * 8],
        ("mps", 8): [[2.0] * 8, [2.0] * 8, [5.0] * 8],
    }
    chosen = best_cell(cell_results(samples(runs_by_cell)))
    assert chosen is not None
    assert chosen.mode == "mps"


def test_one_process_is_best_where_sharing_gains_nothing() -> None:
    cells = cell_results(
        samples({("none", 1): [[1.0]], ("none", 2): [[2.2] * 2], ("mps", 2): [[2.1] * 2]})
    )
    assert "MPS gains nothing here" in advice(cells)


@pytest.mark.parametrize(
    ("runs_by_cell", "says"),
    [
        ({("none", 1): [[1.0]]}, "they do not show what sharing the GPU gives"),
        (
            {("none", 1): [[1.0]], ("mps", 1): [[1.0]]},
            "they do not show what sharing the GPU gives",
        ),
        (
            {("none", 1): [[1.0]], ("mps", 1): [[1.0]], ("none", 2): [[1.1] * 2]},
            "that number was not measured under MPS",
        ),
        ({("none", 1): [[1.0]], ("none", 2): [[2.1] * 2]}, "several under MPS were not measured"),
        (
            {
                ("none", 1): [[1.0]],
                ("none", 2): [[1.5] * 2],
                ("mps", 2): [[1.4] * 2],
                ("none", 4): [[2.0] * 4],
            },
            "that number was not measured",
        ),
        (
            {("none", 1): [[1.0]], ("none", 2): [[1.1] * 2], ("mps", 2): [[1.2] * 2]},
            "MPS adds nothing here",
        ),
    ],
)
def test_advice_is_limited_to_compared_cells(
    runs_by_cell: dict[tuple[str, int], list[list[float]]], says: str
) -> None:
    """Cells fail, runs are interrupted, and `--modes none` measures without MPS."""
    assert says in advice(cell_results(samples(runs_by_cell)))


def test_median_and_percentiles_include_all_rounds() -> None:
    cell = cell_results(samples({("none", 1): [[1.0], [9.0], [2.0]]}))[0]
    assert (cell.median_s, cell.p50_s, cell.p95_s, cell.ratio) == (2.0, 2.0, 9.0, 1.0)


def test_results_are_empty_without_one_process_alone() -> None:
    assert cell_results(samples({("mps", 4): [[1.0] * 4]})) == ()
    assert best_cell(()) is None


def test_document_is_json_with_stable_keys() -> None:
    SEED.failures.append((CellKey("mps", 16), "2 of 16 clients failed: out of memory"))
    try:
        document = bench_document(
            cell_results(SEED), SEED, {"gpu": "Tesla P100", "driver": "390.30"}
        )
    finally:
        SEED.failures.clear()
    assert json.loads(json.dumps(document)) == document
    assert {"gpu", "driver", "cells", "best", "failures"} <= set(document)
    assert {"mode", "clients", "makespan_s", "p50_s", "p95_s", "peak_memory_mib", "ratio"} <= set(
        document["cells"][0]
    )
    assert document["best"]["clients"] == 10


def test_table_marks_best_cell() -> None:
    cells = cell_results(SEED)
    lines = table(cells).splitlines()
    assert [line[0] for line in lines] == [" ", " ", " ", " ", " ", "*"]
    assert len({line.index("mode") if "mode" in line else len(line) for line in lines[:1]}) == 1
    assert max(map(len, lines)) <= 100


def test_page_is_self_contained_and_escapes_texts() -> None:
    hostile = "<script>alert(1)</script>"
    document = bench_document(cell_results(SEED), SEED, {"gpu": hostile, "program": hostile})
    text = report_page(cell_results(SEED), document, svg="<?xml?><svg>chart</svg>")
    assert hostile not in text
    assert ">chart</svg>" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "src=" not in text
    assert len(re.findall(r"<tr class=\"(?:next )?best\">", text)) == 1


@pytest.mark.slow
def test_chart_is_drawn_as_svg_and_png() -> None:
    chart = pytest.importorskip("provision.mps.bench.chart")
    drawn = chart.draw(cell_results(SEED), "Tesla P100")
    assert drawn["png"].startswith(b"\x89PNG")
    assert b"<svg" in drawn["svg"]
    assert "without MPS" in drawn["svg"].decode()
