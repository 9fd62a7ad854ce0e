from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import fleet, measure
from bench.job import nine_steps
from provision.core.model import Facts
from provision.core.resource import Resource, compare
from provision.core.shell import Script
from provision.resources import File
from provision.settings import Settings

ROOT = Path(__file__).parents[2]
STEPS = {resource.name: resource for resource in nine_steps.recipe(Settings())}


def test_ratios_are_computed_per_round() -> None:
    assert measure.ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        measure.ratios([1.0, 2.0], [1.0])


def test_timed_measures_until_last_process_ends(
    tmp_path: Path,
) -> None:
    wait_then_fail = "import sys; print('one'); sys.stdin.read(); sys.exit(3)"
    ended = measure.timed(
        [[sys.executable, "-c", wait_then_fail], [sys.executable, "-c", ""]],
        folder=tmp_path,
        env=os.environ,
    )
    assert ended.statuses == (3, 0)
    assert ended.stdout == "one\n"
    assert not ended.sample.ok
    assert ended.sample.wall_s > 0
    assert ended.sample.cpu_s > 0


def test_table_shows_wrong_runs() -> None:
    detail = {"turns_per_host": 8.0, "hosts_cpu_s": 0.5}
    samples = [
        measure.Sample(2.0, 0.5, 1.0, ok=False, detail=detail),
        measure.Sample(4.0, 0.5, 1.0, detail=detail),
    ]
    floor = [measure.Sample(1.0, 0.1, 0.2, detail=detail)] * 2
    cell = fleet.cell(samples, floor)
    assert cell["ratios"] == [2.0, 4.0]
    row = fleet.table({"results": {"10": {"cells": {"tool": cell}}}}).splitlines()[-1]
    assert row == "| 10 | tool | 3.00 | 3.00 (2.00 to 4.00) | 0.50, 0.50 | 4 | 1 |"


def test_disturbance_is_that_of_worst_cell() -> None:
    cores = os.cpu_count() or 1

    def sample(others_cpu_s: float | None) -> measure.Sample:
        return measure.Sample(2.0, 0.5, 1.0, detail={"others_cpu_s": others_cpu_s})

    calm = fleet.Round({"a": sample(0.05 * cores), "b": sample(None)}, load=9.0)
    stormy = fleet.Round({"a": sample(0.05 * cores), "b": sample(0.4 * cores)}, load=0.0)
    assert calm.quiet
    assert (stormy.quiet, stormy.disturbance) == (False, 0.2)


@pytest.mark.parametrize("name", ["driver-file", "container"])
def test_nine_steps_converge(name: str, tmp_path: Path) -> None:
    resource = STEPS[name]
    for folder in ("nvidia", "bench"):
        (tmp_path / "var/lib" / folder).mkdir(parents=True)
    assert differs(resource, tmp_path)
    body = resource.ensure(Facts())
    assert body is not None
    for _ in range(2):
        run(body, tmp_path)
        assert not differs(resource, tmp_path)


@pytest.mark.parametrize("name", ["deploy.py", "playbook.yml"])
def test_peers_produce_the_same_state(name: str) -> None:
    text = (ROOT / "bench/peers" / name).read_text()
    for step in STEPS.values():
        if isinstance(step, File):
            assert step.path in text
            for line in str(step.content).splitlines():
                assert line in text
    assert nine_steps.DRIVER_VERSION in text
    assert nine_steps.IMAGE in text
    assert "mount --bind /var/lib/nvidia /var/lib/nvidia" in text
    assert "mount -o remount,exec /var/lib/nvidia" in text
    names = re.findall(r"name[:=] ?\"?([a-z-]+)", text)
    assert names == [
        "nvidia-dir",
        "bench-dir",
        "driver-file",
        "bind-mount",
        "exec-remount",
        "profile",
        "limits",
        "run",
        "container",
    ]


def run(body: Script, root: Path) -> str:
    text = "R=$ROOT\nset -eu\n" + body.render()
    done = subprocess.run(
        ["sh", "-c", text],
        env={**os.environ, "ROOT": str(root)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout


def differs(resource: Resource, root: Path) -> bool:
    return bool(compare(resource.read(run(resource.probe(), root)), resource.desired(Facts())))


def test_zone_without_capacity_costs_three_requests(tmp_path: Path) -> None:
    """The requests are the insert, the end of its operation, and the search for leftovers."""
    from bench import create
    from tests.specs import vm_spec

    spec = vm_spec(ttl_s=3600)
    (alone,) = create.failover(tmp_path, spec, (create.GOOD,), 1)
    (after,) = create.failover(tmp_path, spec, (*create.EMPTY, create.GOOD), 1)
    assert after.calls - alone.calls == 3 * len(create.EMPTY)
    assert 0 < alone.api_s < alone.wall_s
