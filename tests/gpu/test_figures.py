"""The documented figures, measured on a real GPU with MPS and without, and the plan's choice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import RESULTS, Machine, frameworks

PROGRAM = Path(__file__).parents[2] / "provision" / "mps" / "bench" / "workloads" / "mlp.py"
ALONE = (
    "PROVISION_BENCH_CLIENT=0 PROVISION_BENCH_READY=/dev/null PROVISION_BENCH_GO=/dev/null "
    "PROVISION_BENCH_TIMES=/dev/null"
)
GRID = ("--clients", "1,5,10,16", "--rounds", "3", "--steps", "3000")

pytestmark = [
    pytest.mark.figures,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not frameworks()[1], reason="needs PyTorch: the experiment trains with it"),
]


def kept(machine: Machine, name: str) -> None:
    """Copy the benchmark's files to the folder for results, if there is one."""
    if RESULTS:
        Path(RESULTS).mkdir(parents=True, exist_ok=True)
        for path in (machine.project / "mps-bench").glob("mps-bench.*"):
            shutil.copy(path, Path(RESULTS) / f"{name}{path.suffix}")


@pytest.fixture(scope="module")
def measured(machine: Machine) -> dict[tuple[str, int], dict[str, Any]]:
    """The cells of the experiment, measured."""
    machine.ok("dev.up")
    document = machine.ok("mps.bench", *GRID, timeout_s=1200)
    kept(machine, "mps")
    assert (document["failures"], document["disturbed"]) == ([], [])
    return {(cell["mode"], cell["clients"]): cell for cell in document["cells"]}


def fastest(measured: dict[tuple[str, int], dict[str, Any]], clients: int) -> float:
    return float(
        min(
            cell["median_s"]
            for (mode, count), cell in measured.items()
            if count == clients and mode != "none"
        )
    )


@pytest.mark.parametrize(("clients", "times"), [(10, 1.5), (16, 3.0)])
def test_mps_speedup_reaches_documented_ratio(
    measured: dict[tuple[str, int], dict[str, Any]], clients: int, times: float
) -> None:
    assert measured["none", clients]["median_s"] / fastest(measured, clients) >= times


def test_sixteen_clients_with_mps_take_no_longer_than_one_alone(
    measured: dict[tuple[str, int], dict[str, Any]],
) -> None:
    assert fastest(measured, 16) <= 1.10 * measured["none", 1]["median_s"]


def test_plan_is_as_fast_as_the_best_cell(
    machine: Machine, measured: dict[tuple[str, int], dict[str, Any]]
) -> None:
    """Within 10 % of the best cell or inside its spread; the plan knows one short run alone."""
    (machine.project / "work.py").write_text(PROGRAM.read_text())
    (machine.project / "plan.sh").write_text(
        f"{ALONE} PROVISION_BENCH_STEPS=6000 exec python3 work.py\n"
    )
    plan = machine.ok("mps.plan", "--measure", "sh plan.sh")["plan"]
    clients, percentage = plan["clients"], plan["thread_percentage"]
    mine = [
        cell
        for (_, count), cell in measured.items()
        if (count, cell["thread_percentage"]) == (clients, percentage)
    ]
    best = max(measured.values(), key=lambda cell: float(cell["ratio"]))
    slowest_round = best["ratio"] * best["median_s"] / max(best["makespan_s"])
    assert [cell["ratio"] >= min(best["ratio"] / 1.10, slowest_round) for cell in mine] == [True], (
        plan,
        mine,
        best,
    )


def test_containers_topology_reaches_the_same_speedup(machine: Machine) -> None:
    """As on Dataflow: sixteen containers without MPS and with it."""
    machine.configure(
        mps={"topology": "containers"}, worker={**machine.settings["worker"], "processes": 16}
    )
    try:
        machine.ok("dev.up")
        words = ("--clients", "1,16", "--modes", "none,mps", "--rounds", "3", "--steps", "3000")
        document = machine.ok("mps.bench", *words, timeout_s=300)
        kept(machine, "mps-containers")
    finally:
        machine.configure()
    machine.ok("dev.up")
    found = {(cell["mode"], cell["clients"]): cell for cell in document["cells"]}
    assert (document["failures"], document["topology"]) == ([], "containers")
    assert found["mps", 16]["times_none"] >= 3.0
