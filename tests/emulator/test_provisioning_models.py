"""Spot, flex-start, reservations and time limits on the emulated cloud."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.cloud import compute_v1

from provision.cloud.api.gce import GceCloud
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.create import create_vm
from provision.cloud.lifecycle.delete import delete_vms_by_name
from provision.cloud.lifecycle.journal import GONE, INTENT, MADE, Journal
from provision.cloud.refusal import CAPACITY_WAIT_EXPIRED
from provision.core.errors import CloudError, NoCapacity
from provision.core.model import Note, VmSpec
from provision.testing.compute import (
    ComputeEmulator,
    Fault,
    FaultKind,
    NullBackend,
    SimulatedClock,
    http_error,
    stock_out,
)
from tests.emulator.google_client import Google

MakeSpec = Callable[..., VmSpec]
ZONES = ("us-central1-a", "us-central1-b")
L4 = {"gpu": "nvidia-l4", "machine_type": "g2-standard-8"}


@pytest.fixture
def context(cloud: GceCloud, clock: SimulatedClock, tmp_path: Path) -> CloudContext:
    return CloudContext(
        cloud=cloud,
        journal=Journal(tmp_path / "journal.jsonl", "demo"),
        emit=lambda event: None,
        sleep=clock.sleep,
    )


SOLD: list[tuple[dict[str, Any], tuple[str, str, bool]]] = [
    ({}, ("STANDARD", "STOP", True)),
    ({"termination_action": "DELETE"}, ("STANDARD", "DELETE", True)),
    ({"provisioning_model": "SPOT"}, ("SPOT", "STOP", False)),
    (
        {"provisioning_model": "SPOT", "ttl_s": None, "termination_action": "DELETE"},
        ("SPOT", "DELETE", False),
    ),
    (
        {"provisioning_model": "FLEX_START", "request_valid_s": 600, **L4},
        ("FLEX_START", "STOP", False),
    ),
]
"""What is asked for, and (provisioning model, termination action, automatic restart) of what is
made."""


@pytest.mark.parametrize(("changed", "wanted"), SOLD)
def test_emulator_accepts_every_provisioning_model(
    emulator: ComputeEmulator,
    context: CloudContext,
    make_spec: MakeSpec,
    changed: dict[str, Any],
    wanted: tuple[str, str, bool],
) -> None:
    made = create_vm(context, make_spec(**changed), ZONES)
    (instance,) = emulator.instances("demo")
    assert instance["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert (
        made.vm.provisioning_model,
        made.vm.termination_action,
        instance["scheduling"]["automaticRestart"],
    ) == wanted
    assert not create_vm(context, make_spec(**changed), ZONES).changed


def test_vm_is_stopped_or_deleted_at_its_time_limit(
    emulator: ComputeEmulator, clock: SimulatedClock, context: CloudContext, make_spec: MakeSpec
) -> None:
    create_vm(context, make_spec(name="stopped", ttl_s=3600), ZONES)
    create_vm(context, make_spec(name="deleted", ttl_s=3600, termination_action="DELETE"), ZONES)
    clock.advance(3601)
    assert [(instance["name"], instance["status"]) for instance in emulator.instances("demo")] == [
        ("stopped", "TERMINATED")
    ]
    again = create_vm(
        context, make_spec(name="deleted", ttl_s=3600, termination_action="DELETE"), ZONES
    )
    assert (again.changed, again.vm.status) == (True, "RUNNING")


def test_vm_of_another_provisioning_model_has_another_shape(
    context: CloudContext, make_spec: MakeSpec
) -> None:
    create_vm(context, make_spec(), ZONES)
    with pytest.raises(CloudError, match="another shape") as caught:
        create_vm(context, make_spec(provisioning_model="SPOT"), ZONES)
    assert caught.value.why == "provisioning is STANDARD, asked SPOT"


def test_missing_reservation_is_refused(
    free_emulator: ComputeEmulator, clock: SimulatedClock, tmp_path: Path, make_spec: MakeSpec
) -> None:
    cloud = GceCloud("demo", free_emulator.endpoint, now=clock.now, sleep=clock.sleep)
    context = CloudContext(
        cloud=cloud,
        journal=Journal(tmp_path / "journal.jsonl", "demo"),
        emit=lambda event: None,
    )
    with pytest.raises(NoCapacity, match="mine") as caught:
        create_vm(context, make_spec(reservation="mine"), ZONES)
    assert caught.value.fix == "gcloud compute reservations list"
    assert [zone for zone, _, _ in caught.value.tried] == [*ZONES]
    body = next(call.body for call in free_emulator.calls if call.api == "instances.insert")
    assert body is not None
    assert body["reservationAffinity"]["values"] == ["mine"]
    cloud.close()


def test_missing_reservation_moves_to_the_next_zone(
    free_emulator: ComputeEmulator, context: CloudContext, google: Google, make_spec: MakeSpec
) -> None:
    """A reservation is in one zone: the first zone need not have one of this name."""
    spec = make_spec(reservation="mine")
    properties = compute_v1.AllocationSpecificSKUAllocationReservedInstanceProperties(
        machine_type=spec.machine_type
    )
    specific = compute_v1.AllocationSpecificSKUReservation(count=1, instance_properties=properties)
    held = compute_v1.Reservation(
        name="mine", specific_reservation=specific, specific_reservation_required=True
    )
    google.done(
        google.client("Reservations").insert_unary(
            project="demo", zone=ZONES[1], reservation_resource=held
        )
    )
    made = create_vm(context, spec, ZONES)
    assert [(attempt.zone, attempt.result) for attempt in made.tried] == [
        (ZONES[0], "not found"),
        (ZONES[1], "created"),
    ]
    assert len(free_emulator.instances("demo")) == 1


def test_stock_out_is_noticed_within_a_second(
    emulator: ComputeEmulator, clock: SimulatedClock, context: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.faults.add(
        Fault(kind=FaultKind.SLOW, zone="us-central1-b", seconds=4.0),
        stock_out("us-central1-a"),
    )
    before = clock.now()
    assert create_vm(context, make_spec(), ZONES).vm.zone == "us-central1-b"
    assert 4.0 <= clock.now() - before <= 6.0


# --- flex-start: capacity is waited for -----------------------------------------------------------

FLEX = {"provisioning_model": "FLEX_START", "request_valid_s": 600, **L4}


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def patient(context: CloudContext, notes: list[str]) -> CloudContext:
    return replace(
        context, emit=lambda event: notes.append(event.text) if isinstance(event, Note) else None
    )


def states(context: CloudContext) -> list[tuple[str, str]]:
    assert isinstance(context.journal, Journal)
    return [(entry.zone, entry.state) for entry in context.journal.entries()]


def vms_of(emulator: ComputeEmulator) -> list[tuple[str, str]]:
    return [
        (instance["zone"].rsplit("/", 1)[-1], instance["status"])
        for instance in emulator.instances("demo")
    ]


def test_flex_start_vm_waits_for_capacity_with_notes(
    emulator: ComputeEmulator,
    clock: SimulatedClock,
    patient: CloudContext,
    make_spec: MakeSpec,
    notes: list[str],
) -> None:
    emulator.capacity.set(150)
    before = clock.now()
    made = create_vm(patient, make_spec(**FLEX), ZONES)
    assert (made.changed, made.vm.status, made.vm.zone) == (True, "RUNNING", ZONES[0])
    assert 150 <= clock.now() - before <= 160
    assert notes[-3:] == [
        "us-central1-a: dev waits for capacity (flex-start), up to 10m",
        "us-central1-a: no capacity after 1m of 10m",
        "us-central1-a: no capacity after 2m of 10m",
    ]
    assert states(patient) == [(ZONES[0], MADE)]


def test_flex_start_time_limit_begins_when_the_vm_runs(
    emulator: ComputeEmulator, clock: SimulatedClock, patient: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.capacity.set(300)
    create_vm(patient, make_spec(**FLEX, ttl_s=3600), ZONES)
    clock.advance(3500)
    assert vms_of(emulator) == [(ZONES[0], "RUNNING")]
    clock.advance(200)
    assert vms_of(emulator) == [(ZONES[0], "TERMINATED")]


def test_flex_start_without_capacity_moves_to_the_next_zone(
    emulator: ComputeEmulator, clock: SimulatedClock, patient: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.capacity.set(None, ZONES[0])
    before = clock.now()
    made = create_vm(patient, make_spec(**FLEX), ZONES)
    assert [(attempt.zone, attempt.result) for attempt in made.tried] == [
        (ZONES[0], "capacity"),
        (ZONES[1], "created"),
    ]
    assert (
        made.tried[0].reason
        == f"{CAPACITY_WAIT_EXPIRED}: no capacity within 10m: the cloud removed the request"
    )
    assert 600 <= clock.now() - before <= 610
    assert vms_of(emulator) == [(ZONES[1], "RUNNING")]
    assert states(patient) == [(ZONES[0], GONE), (ZONES[1], MADE)]


def test_flex_start_without_capacity_anywhere_lists_every_zone(
    emulator: ComputeEmulator, patient: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.capacity.set(None)
    with pytest.raises(NoCapacity) as caught:
        create_vm(patient, make_spec(**FLEX), ZONES)
    assert caught.value.exit_code == 5
    assert [(zone, result) for zone, result, _why in caught.value.tried] == [
        (zone, "capacity") for zone in ZONES
    ]
    assert (emulator.instances("demo"), emulator.disks("demo")) == ([], [])


def test_flex_start_without_wait_fails_at_once(
    emulator: ComputeEmulator, patient: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.capacity.set(3600, ZONES[0])
    made = create_vm(patient, make_spec(**{**FLEX, "request_valid_s": None}), ZONES)
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in made.tried[0].reason
    assert vms_of(emulator) == [(ZONES[1], "RUNNING")]


@pytest.mark.parametrize(("after_s", "zone"), [(400, ZONES[0]), (None, ZONES[1])])
def test_next_run_waits_on_after_ctrl_c(
    emulator: ComputeEmulator,
    patient: CloudContext,
    make_spec: MakeSpec,
    after_s: float | None,
    zone: str,
) -> None:
    emulator.capacity.set(after_s, ZONES[0])
    slept: list[float] = []

    def interrupted(seconds: float) -> None:
        patient.sleep(seconds)
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_vm(replace(patient, sleep=interrupted), make_spec(**FLEX), ZONES)
    assert (vms_of(emulator), states(patient)) == ([(ZONES[0], "PENDING")], [(ZONES[0], INTENT)])
    (waiting,) = emulator.instances("demo")
    made = create_vm(patient, make_spec(**FLEX), ZONES)
    assert vms_of(emulator) == [(zone, "RUNNING")]
    assert (made.vm.instance_id == waiting["id"]) == (zone == ZONES[0])
    assert (zone, MADE) in states(patient)
    assert INTENT not in {state for _zone, state in states(patient)}
    assert not create_vm(patient, make_spec(**FLEX), ZONES).changed


def test_pending_vm_can_be_deleted(
    emulator: ComputeEmulator, patient: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.capacity.set(300)

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_vm(replace(patient, sleep=interrupted), make_spec(**FLEX), ZONES)
    assert [vm.status for vm in delete_vms_by_name(patient, "dev", "me")] == ["PENDING"]
    assert (vms_of(emulator), states(patient)) == ([], [(ZONES[0], GONE)])


def test_first_of_several_pending_vms_with_capacity_is_kept(
    emulator: ComputeEmulator, patient: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.capacity.set(None, ZONES[0])
    emulator.capacity.set(60, ZONES[1])
    made = create_vm(patient, make_spec(**FLEX), ZONES, width=2)
    assert made.vm.zone == ZONES[1]
    assert vms_of(emulator) == [(ZONES[1], "RUNNING")]
    assert dict(states(patient)) == {ZONES[0]: GONE, ZONES[1]: MADE}


def test_wait_for_capacity_ends_when_the_cloud_never_answers(
    emulator: ComputeEmulator, clock: SimulatedClock, patient: CloudContext, make_spec: MakeSpec
) -> None:
    """Its own clock stands still: the request is withdrawn two minutes after its time."""
    emulator.capacity.set(None, ZONES[0])
    passed: list[float] = []
    stuck = replace(patient, sleep=passed.append)
    made = create_vm(stuck, make_spec(**FLEX), ZONES)
    assert (
        made.tried[0].reason
        == f"{CAPACITY_WAIT_EXPIRED}: no capacity within 10m: the request is withdrawn"
    )
    assert sum(passed) == 720
    assert vms_of(emulator) == [(ZONES[1], "RUNNING")]
    assert clock.now() < 1_790_000_000 + 60


def test_lost_replies_do_not_end_the_wait_for_capacity(
    emulator: ComputeEmulator, patient: CloudContext, make_spec: MakeSpec, notes: list[str]
) -> None:
    emulator.capacity.set(200)
    emulator.faults.add(
        http_error(503, "backendError", "Backend Error", call="instances.get", times=8)
    )
    assert create_vm(patient, make_spec(**FLEX), ZONES).vm.status == "RUNNING"
    assert len(emulator.instances("demo")) == 1


def test_restored_emulator_keeps_pending_vms(
    emulator: ComputeEmulator, clock: SimulatedClock, patient: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.capacity.set(300)
    stops: list[float] = []

    def interrupted(seconds: float) -> None:
        stops.append(seconds)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_vm(replace(patient, sleep=interrupted), make_spec(**FLEX), ZONES)
    saved = json.loads(json.dumps(emulator.snapshot()))
    with ComputeEmulator(NullBackend(), clock=clock) as again:
        again.restore(saved)
        assert vms_of(again) == [(ZONES[0], "PENDING")]
        clock.advance(301)
        assert vms_of(again) == [(ZONES[0], "RUNNING")]
