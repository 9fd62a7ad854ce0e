"""A run killed at every step, before and after it took effect: the journal knows what may exist, and any next command settles it."""

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
from tests.emulator.killed_run import DIED, OWNER, SPEC, VERBS, ZONES, Doom, collect, context, start

pytestmark = pytest.mark.timeout(600)

LEFT = stock_out("us-central1-a", leaves_vm=True)
SCENARIOS: dict[str, tuple[str, tuple[Fault, ...], float]] = {
    "create": ("create", (), 0.0),
    "create, second zone": ("create", (LEFT,), 0.0),
    "create, slow": ("create", (stock_out("us-central1-a"),), 0.3),
    "create in a race": ("create in a race", (), 0.0),
    "delete": ("delete", (), 0.0),
    "delete, slow": ("delete", (), 0.3),
    "gc, stopped": ("gc", (), 0.0),
}
"""Verb, faults, seconds that operations take."""
MOST_STEPS = 60
KILLED = {
    "create": 9,
    "create, second zone": 16,
    "create, slow": 14,
    "delete": 6,
    "delete, slow": 6,
    "gc, stopped": 6,
}
"""Steps of the scenarios; each is killed at before and after. Those of a race depend on who is
faster."""


def created_next(run: CloudContext) -> None:
    made = create_vm(run, SPEC, ZONES)
    assert made.vm.status == "RUNNING"
    (entry,) = run.journal.open()
    assert (entry.state, entry.name, entry.zone) == (MADE, "dev", made.vm.zone)
    assert [vm.zone for vm in run.cloud.list({})] == [made.vm.zone]


def deleted_next(run: CloudContext) -> None:
    delete_vms_by_name(run, "dev", OWNER)
    assert (run.cloud.list({}), run.journal.open()) == ([], [])


def collected_next(run: CloudContext) -> None:
    collect(run)
    kept = [(entry.state, entry.name, entry.zone) for entry in run.journal.open()]
    assert kept == [(MADE, vm.name, vm.zone) for vm in run.cloud.list({})]
    assert len(run.cloud.list_disks({"provision-owner": OWNER})) == len(kept)


NEXT: dict[str, Callable[[CloudContext], None]] = {
    "create": created_next,
    "delete": deleted_next,
    "gc": collected_next,
}


def stopped_for_long(emulator: ComputeEmulator, run: CloudContext, vm: Vm) -> None:
    """Three days, where the VM asks to be deleted after two."""
    run.cloud.set_labels(vm.name, vm.zone, {IDLE_DELETE_LABEL: "2d"}, request_id=run.new_id())
    run.cloud.stop(vm.name, vm.zone, request_id=run.new_id())
    emulator.clock.advance(3 * 86_400 + 60)


@contextmanager
def killed(
    scenario: str, folder: Path, doom: Doom
) -> Iterator[tuple[bool, ComputeEmulator, CloudContext]]:
    """(It reached its step, the world it left, a next run over the same journal)."""
    verb, faults, operation_s = SCENARIOS[scenario]
    journal = folder / f"{doom.step}-{doom.after}" / "journal.jsonl"
    with ComputeEmulator(NullBackend(), operation_s=operation_s) as emulator:
        if verb in ("delete", "gc"):
            before = context(emulator.endpoint, journal)
            made = create_vm(before, SPEC, ZONES).vm
            if verb == "gc":
                stopped_for_long(emulator, before, made)
            before.cloud.close()  # type: ignore[attr-defined]
        emulator.faults.add(*faults)
        died = start(verb, emulator.endpoint, journal, doom) == DIED
        following = context(emulator.endpoint, journal)
        yield died, emulator, following
        following.cloud.close()  # type: ignore[attr-defined]


def dooms() -> Iterator[Doom]:
    for step in range(1, MOST_STEPS):
        yield Doom(step, after=False)
        yield Doom(step, after=True)


def settle(scenario: str, following: str, folder: Path, doom: Doom) -> bool:
    """Kill, look, run the next command, look; False when the run was over before it reached its step."""
    with killed(scenario, folder, doom) as (died, emulator, run):
        if not died:
            return False
        known = {(entry.name, entry.zone) for entry in run.journal.open()}
        there = {
            (instance["name"], instance["zone"].rsplit("/", 1)[-1])
            for instance in emulator.instances("demo")
        }
        assert there <= known, f"an orphan after {doom}"
        emulator.faults.clear()
        NEXT[following](run)
        return True


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["create, second zone", "delete"])
def test_next_command_recovers_a_run_killed_at_any_step(scenario: str, tmp_path: Path) -> None:
    steps = 0
    for number, doom in enumerate(dooms()):
        if not settle(scenario, [*NEXT][(number // 2 + doom.after) % len(NEXT)], tmp_path, doom):
            break
        steps += 1
    assert steps >= 10


@pytest.mark.slow
@pytest.mark.parametrize("following", NEXT)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_next_command_recovers_every_killed_run(
    scenario: str, following: str, tmp_path: Path
) -> None:
    steps = 0
    for doom in dooms():
        if not settle(scenario, following, tmp_path, doom):
            break
        steps += 1
    if scenario in KILLED:
        assert steps == 2 * KILLED[scenario]
    else:
        assert steps >= 16


def test_killed_run_matrix_covers_every_command() -> None:
    assert {verb for verb, _faults, _s in SCENARIOS.values()} == set(VERBS)
