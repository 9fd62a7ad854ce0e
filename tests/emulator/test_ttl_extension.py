"""More time for one run of a VM, on the emulator's clock: that run is longer, and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from provision.cloud.api.gce import GceCloud
from provision.cloud.api.labels import EXTENDED_LABEL
from provision.cloud.lifecycle import ttl_extension
from provision.cloud.lifecycle.context import new_request_id
from provision.core.model import Vm, VmSpec
from provision.testing.compute import ComputeEmulator, Fault, FaultKind, SimulatedClock, http_error

ZONE = "us-central1-a"
HOUR_S = 3600
USUAL_S = 8 * HOUR_S


@pytest.fixture
def vm(cloud: GceCloud, make_spec: Callable[..., VmSpec]) -> Vm:
    return cloud.create(make_spec(), ZONE, request_id=new_request_id())


def now(cloud: GceCloud) -> Vm:
    found = cloud.get("dev", ZONE)
    assert found is not None
    return found


def stop(cloud: GceCloud) -> Vm:
    return cloud.stop("dev", ZONE, request_id=new_request_id())


def start(cloud: GceCloud) -> Vm:
    return ttl_extension.start_vm(cloud, now(cloud), lambda note: None)


def ran_s(cloud: GceCloud, clock: SimulatedClock) -> int:
    """For how many whole hours the VM runs by itself from now on, in seconds."""
    for hour in range(100):
        if now(cloud).status == "TERMINATED":
            return hour * HOUR_S
        clock.advance(HOUR_S)
    raise AssertionError("it never ends")


def test_extension_applies_to_one_run(cloud: GceCloud, vm: Vm, clock: SimulatedClock) -> None:
    assert ttl_extension.usual_ttl_s(vm) == ttl_extension.next_ttl_s(vm) == USUAL_S
    extended = ttl_extension.extend_run(cloud, stop(cloud), USUAL_S + 2 * HOUR_S)
    assert (ttl_extension.usual_ttl_s(extended), ttl_extension.next_ttl_s(extended)) == (
        USUAL_S,
        USUAL_S + 2 * HOUR_S,
    )
    clock.advance(60)
    start(cloud)
    assert ran_s(cloud, clock) == USUAL_S + 2 * HOUR_S
    assert ttl_extension.next_ttl_s(now(cloud)) == USUAL_S
    for _ in range(2):
        start(cloud)
        assert ran_s(cloud, clock) == USUAL_S
    assert EXTENDED_LABEL not in now(cloud).labels


def test_shortened_run_restores_the_usual_limit(
    cloud: GceCloud, vm: Vm, clock: SimulatedClock
) -> None:
    """What --restart does: the rest of the time and some more is less than a whole run has."""
    clock.advance(7 * HOUR_S)
    ttl_extension.extend_run(cloud, stop(cloud), 2 * HOUR_S)
    start(cloud)
    assert ran_s(cloud, clock) == 2 * HOUR_S
    start(cloud)
    assert ran_s(cloud, clock) == USUAL_S


def test_second_extension_before_the_run_replaces_the_first(
    cloud: GceCloud, vm: Vm, clock: SimulatedClock
) -> None:
    first = ttl_extension.extend_run(cloud, stop(cloud), USUAL_S + HOUR_S)
    second = ttl_extension.extend_run(cloud, first, USUAL_S + 2 * HOUR_S)
    assert (ttl_extension.usual_ttl_s(second), ttl_extension.next_ttl_s(second)) == (
        USUAL_S,
        USUAL_S + 2 * HOUR_S,
    )
    clock.advance(60)
    start(cloud)
    assert ran_s(cloud, clock) == USUAL_S + 2 * HOUR_S


def test_extension_after_a_run_keeps_the_usual_limit(
    cloud: GceCloud, vm: Vm, clock: SimulatedClock
) -> None:
    ttl_extension.extend_run(cloud, stop(cloud), 12 * HOUR_S)
    clock.advance(60)
    start(cloud)
    stopped = stop(cloud)
    assert ttl_extension.next_ttl_s(stopped) == USUAL_S
    again = ttl_extension.extend_run(cloud, stopped, USUAL_S + HOUR_S)
    assert (ttl_extension.usual_ttl_s(again), ttl_extension.next_ttl_s(again)) == (
        USUAL_S,
        USUAL_S + HOUR_S,
    )


@pytest.mark.parametrize("lost", ["instances.setLabels", "instances.setScheduling"])
def test_interrupted_extension_is_undone(
    cloud: GceCloud, vm: Vm, emulator: ComputeEmulator, clock: SimulatedClock, lost: str
) -> None:
    stopped = stop(cloud)
    emulator.faults.add(http_error(403, "forbidden", "no", call=lost, times=None))
    with pytest.raises(Exception, match="not "):
        ttl_extension.extend_run(cloud, stopped, 12 * HOUR_S)
    emulator.faults.clear()
    for _ in range(2):
        clock.advance(60)
        start(cloud)
        assert ran_s(cloud, clock) == USUAL_S


def test_vm_stays_stopped_when_its_limit_cannot_be_restored(
    cloud: GceCloud, vm: Vm, emulator: ComputeEmulator, clock: SimulatedClock
) -> None:
    """A limit longer than asked for would bill; the next start continues where this one failed."""
    ttl_extension.extend_run(cloud, stop(cloud), 12 * HOUR_S)
    clock.advance(60)
    start(cloud)
    stop(cloud)
    emulator.faults.add(
        http_error(403, "forbidden", "no", call="instances.setScheduling", times=None)
    )
    with pytest.raises(Exception, match="the time to live was not changed"):
        start(cloud)
    assert now(cloud).status == "TERMINATED"
    emulator.faults.clear()
    emulator.faults.add(
        Fault(
            kind=FaultKind.HTTP,
            call="instances.setLabels",
            http_status=403,
            code="forbidden",
            message="no",
            times=1,
        )
    )
    with pytest.raises(Exception, match="the labels were not set"):
        start(cloud)
    start(cloud)
    assert (now(cloud).ttl_s, EXTENDED_LABEL in now(cloud).labels) == (USUAL_S, False)


def test_running_vm_is_extended_where_the_cloud_allows_it(
    cloud: GceCloud, vm: Vm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API documents a refusal; if it takes the change, this run has more time, not the next."""
    changed: list[int] = []
    monkeypatch.setattr(
        GceCloud, "set_ttl", lambda self, name, zone, ttl_s, request_id: changed.append(ttl_s)
    )
    ttl_extension.extend_run(cloud, vm, 12 * HOUR_S)
    running = replace(now(cloud), ttl_s=12 * HOUR_S)
    assert changed == [12 * HOUR_S]
    assert (ttl_extension.usual_ttl_s(running), ttl_extension.next_ttl_s(running)) == (
        USUAL_S,
        USUAL_S,
    )


@pytest.mark.parametrize(
    "value", ["", "8h", "28800", "28800_", "_1", "x_1", "28800_1_2", "1_1", "99999999_1"]
)
def test_invalid_extension_label_is_ignored(cloud: GceCloud, vm: Vm, value: str) -> None:
    stop(cloud)
    cloud.set_labels("dev", ZONE, {EXTENDED_LABEL: value}, request_id=new_request_id())
    assert ttl_extension.usual_ttl_s(now(cloud)) == USUAL_S
    assert start(cloud).ttl_s == USUAL_S
