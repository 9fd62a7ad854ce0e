"""A run killed at every step, before and after its effect, is recovered by any next command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provision.cloud.api.labels import IDLE_DELETE_LABEL
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.create import create_vm
from provision.cloud.lifecycle.delete import delete_vms_by_name
from provision.cloud.lifecycle.journal import MADE
from provision.core.model import Vm
from provision.testing.compute import ComputeEmulator, Fault, NullBackend, stock_out
from tests.emulator.killed_run import (
    KILLED_STATUS,
    OWNER,
    SPEC,
    VERBS,
    ZONES,
    KillPoint,
    collect,
    new_context,
    start,
)

pytestmark = pytest.mark.timeout(600)

LEFT = stock_out("us-central1-a", leaves_vm=True)
SCENARIOS: dict[str, tuple[str, tuple[Fault, ...], float]] = {
    "create": ("create", (), 0.0),
    "create, second zone": ("create", (LEFT,), 0.0),
    "create, slow": ("create", (stock_out("us-central1-a"),), 0.1),
    "create in a race": ("create in a race", (), 0.0),
    "delete": ("delete", (), 0.0),
    "delete, slow": ("delete", (), 0.1),
    "gc, stopped": ("gc", (), 0.0),
}
"""Command, faults, seconds that operations take."""
MOST_STEPS = 60
KILLED = {
    "create": 9,
    "create, second zone": 16,
    "create, slow": 14,
    "delete": 6,
    "delete, slow": 6,
    "gc, stopped": 6,
}
"""Number of steps of each scenario; a run is killed before and after each. The number of a race
depends on which zone is faster."""


def recover_by_create(run: CloudContext) -> None:
    made = create_vm(run, SPEC, ZONES)
    assert made.vm.status == "RUNNING"
    (entry,) = run.journal.open()
    assert (entry.state, entry.name, entry.zone) == (MADE, "dev", made.vm.zone)
    assert [vm.zone for vm in run.cloud.list({})] == [made.vm.zone]


def recover_by_delete(run: CloudContext) -> None:
    delete_vms_by_name(run, "dev", OWNER)
    assert (run.cloud.list({}), run.journal.open()) == ([], [])


def recover_by_gc(run: CloudContext) -> None:
    collect(run)
    kept = [(entry.state, entry.name, entry.zone) for entry in run.journal.open()]
    assert kept == [(MADE, vm.name, vm.zone) for vm in run.cloud.list({})]
    assert len(run.cloud.list_disks({"provision-owner": OWNER})) == len(kept)


NEXT: dict[str, Callable[[CloudContext], None]] = {
    "create": recover_by_create,
    "delete": recover_by_delete,
    "gc": recover_by_gc,
}


def stop_for_three_days(emulator: ComputeEmulator, run: CloudContext, vm: Vm) -> None:
    """Stop the VM for three days, with `idle_delete` of two."""
    run.cloud.set_labels(vm.name, vm.zone, {IDLE_DELETE_LABEL: "2d"}, request_id=run.new_id())
    run.cloud.stop(vm.name, vm.zone, request_id=run.new_id())
    emulator.clock.advance(3 * 86_400 + 60)


@contextmanager
def killed_run(
    scenario: str, folder: Path, kill_at: KillPoint
) -> Iterator[tuple[bool, ComputeEmulator, CloudContext]]:
    """Yield whether the run was killed, the emulator, and a next run with the same journal."""
    verb, faults, operation_s = SCENARIOS[scenario]
    journal = folder / f"{kill_at.step}-{kill_at.after}" / "journal.jsonl"
    with ComputeEmulator(NullBackend(), operation_s=operation_s) as emulator:
        if verb in ("delete", "gc"):
            before = new_context(emulator.endpoint, journal)
            made = create_vm(before, SPEC, ZONES).vm
            if verb == "gc":
                stop_for_three_days(emulator, before, made)
            before.cloud.close()  # type: ignore[attr-defined]
        emulator.faults.add(*faults)
        was_killed = start(verb, emulator.endpoint, journal, kill_at) == KILLED_STATUS
        next_run = new_context(emulator.endpoint, journal)
        yield was_killed, emulator, next_run
        next_run.cloud.close()  # type: ignore[attr-defined]


def kill_points() -> Iterator[KillPoint]:
    for step in range(1, MOST_STEPS):
        yield KillPoint(step, after=False)
        yield KillPoint(step, after=True)


def kill_and_recover(scenario: str, next_run: str, folder: Path, kill_at: KillPoint) -> bool:
    """Kill a run, check, run the next command, check; False when the run has fewer steps."""
    with killed_run(scenario, folder, kill_at) as (was_killed, emulator, run):
        if not was_killed:
            return False
        known = {(entry.name, entry.zone) for entry in run.journal.open()}
        existing = {
            (instance["name"], instance["zone"].rsplit("/", 1)[-1])
            for instance in emulator.instances("demo")
        }
        assert existing <= known, f"an orphan after {kill_at}"
        emulator.faults.clear()
        NEXT[next_run](run)
        return True


@pytest.mark.slow
@pytest.mark.parametrize("next_run", NEXT)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_next_command_recovers_every_killed_run(
    scenario: str, next_run: str, tmp_path: Path
) -> None:
    steps = 0
    for kill_at in kill_points():
        if not kill_and_recover(scenario, next_run, tmp_path, kill_at):
            break
        steps += 1
    if scenario in KILLED:
        assert steps == 2 * KILLED[scenario]
    else:
        assert steps >= 16


def test_killed_run_matrix_covers_every_command() -> None:
    assert {verb for verb, _faults, _s in SCENARIOS.values()} == set(VERBS)
