"""Spot, flex-start, reservations and time limits, as the emulated cloud takes them; the traffic is judged by the discovery document."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.cloud.create import Maker
from provision.cloud.gce import GceCloud
from provision.cloud.journal import FileJournal
from provision.cloud.refusal import WAITED_IN_VAIN, CloudRefused
from provision.errors import CloudError
from provision.model import Vm, VmSpec
from provision.testing.compute import ComputeEmulator, Fault, FaultKind, SimulatedClock, stock_out

MakeSpec = Callable[..., VmSpec]
ZONES = ("us-central1-a", "us-central1-b")
L4 = {"gpu": "nvidia-l4", "machine_type": "g2-standard-8"}


@pytest.fixture
def maker(cloud: GceCloud, clock: SimulatedClock, tmp_path: Path) -> Maker:
    return Maker(cloud=cloud, journal=FileJournal(tmp_path / "journal.jsonl", "demo"), emit=lambda event: None, sleep=clock.sleep)


SOLD: list[tuple[dict[str, Any], tuple[str, str, bool]]] = [
    ({}, ("STANDARD", "STOP", True)),
    ({"termination_action": "DELETE"}, ("STANDARD", "DELETE", True)),
    ({"provisioning_model": "SPOT"}, ("SPOT", "STOP", False)),
    ({"provisioning_model": "SPOT", "ttl_s": None, "termination_action": "DELETE"}, ("SPOT", "DELETE", False)),
    ({"provisioning_model": "FLEX_START", "request_valid_s": 600, **L4}, ("FLEX_START", "STOP", False)),
]
"""What is asked for, and (provisioning model, termination action, automatic restart) of what is made."""


@pytest.mark.parametrize(("changed", "wanted"), SOLD)
def test_the_cloud_takes_what_is_built(
    emulator: ComputeEmulator, maker: Maker, make_spec: MakeSpec, changed: dict[str, Any], wanted: tuple[str, str, bool]
) -> None:
    made = maker.create(make_spec(**changed), ZONES)
    (instance,) = emulator.instances("demo")
    assert instance["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert (made.vm.provisioning_model, made.vm.termination_action, instance["scheduling"]["automaticRestart"]) == wanted
    assert not maker.create(make_spec(**changed), ZONES).changed


def test_at_the_end_of_its_time_it_is_stopped_or_deleted(
    emulator: ComputeEmulator, clock: SimulatedClock, maker: Maker, make_spec: MakeSpec
) -> None:
    maker.create(make_spec(name="stopped", ttl_s=3600), ZONES)
    maker.create(make_spec(name="deleted", ttl_s=3600, termination_action="DELETE"), ZONES)
    clock.advance(3601)
    assert [(instance["name"], instance["status"]) for instance in emulator.instances("demo")] == [("stopped", "TERMINATED")]
    again = maker.create(make_spec(name="deleted", ttl_s=3600, termination_action="DELETE"), ZONES)
    assert (again.changed, again.vm.status) == (True, "RUNNING")


def test_a_vm_that_was_bought_otherwise_has_another_shape(maker: Maker, make_spec: MakeSpec) -> None:
    maker.create(make_spec(), ZONES)
    with pytest.raises(CloudError, match="another shape") as caught:
        maker.create(make_spec(provisioning_model="SPOT"), ZONES)
    assert caught.value.why == "provisioning is STANDARD, asked SPOT"


def test_a_reservation_that_is_not_there_is_refused_by_name(
    free_emulator: ComputeEmulator, clock: SimulatedClock, tmp_path: Path, make_spec: MakeSpec
) -> None:
    cloud = GceCloud("demo", free_emulator.endpoint, now=clock.now, sleep=clock.sleep)
    maker = Maker(cloud=cloud, journal=FileJournal(tmp_path / "journal.jsonl", "demo"), emit=lambda event: None)
    with pytest.raises(CloudError, match="mine"):
        maker.create(make_spec(reservation="mine"), ZONES)
    body = next(call.body for call in free_emulator.calls if call.api == "instances.insert")
    assert body is not None
    assert body["reservationAffinity"]["values"] == ["mine"]
    cloud.close()


def test_a_stock_out_is_known_within_a_second_of_the_end_of_its_operation(
    emulator: ComputeEmulator, clock: SimulatedClock, maker: Maker, make_spec: MakeSpec
) -> None:
    emulator.faults.add(
        Fault(kind=FaultKind.SLOW, zone="us-central1-b", seconds=4.0),
        stock_out("us-central1-a"),
    )
    before = clock.now()
    assert maker.create(make_spec(), ZONES).vm.zone == "us-central1-b"
    assert 4.0 <= clock.now() - before <= 6.0


class Waiting(GceCloud):
    """A cloud in which a flex-start VM is PENDING for some looks, and then runs, or is gone."""

    def __init__(self, *looks: str | None, clock: SimulatedClock) -> None:
        super().__init__("demo", "http://127.0.0.1:9", now=clock.now, sleep=clock.sleep)
        self.looks = list(looks)

    def get(self, name: str, zone: str) -> Vm | None:
        status = self.looks.pop(0)
        return None if status is None else Vm(name=name, zone=zone, status=status, machine_type="m")


def test_a_flex_start_vm_is_waited_for_and_missed_when_its_wait_is_over(clock: SimulatedClock) -> None:
    runs = Waiting("PENDING", "PROVISIONING", "RUNNING", clock=clock)
    assert runs._settled(Vm(name="dev", zone="z", status="PENDING", machine_type="m"), 600).status == "RUNNING"
    gone = Waiting("PENDING", None, clock=clock)
    with pytest.raises(CloudRefused) as caught:
        gone._settled(Vm(name="dev", zone="z", status="PENDING", machine_type="m"), 600)
    assert (caught.value.refusal.code, caught.value.exit_code) == (WAITED_IN_VAIN, 5)
    late = Waiting(*["PENDING"] * 2000, clock=clock)
    assert late._settled(Vm(name="dev", zone="z", status="PENDING", machine_type="m"), 600).status == "PENDING"
