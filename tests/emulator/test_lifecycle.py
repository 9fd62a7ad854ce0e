"""The instance state machine: requests, system events and run time limits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest
from google.cloud import compute_v1

from provision.testing.compute import ComputeEmulator, NullBackend, SimulatedClock, stock_out
from tests.emulator.google_client import (
    PROJECT,
    SPOT,
    ZONE,
    Body,
    Google,
    error_of,
    gpu_vm,
    scheduling,
    send,
)

INSTANCE = f"projects/{PROJECT}/zones/{ZONE}/instances/dev"
LIMITED = {"maxRunDuration": {"seconds": "3600"}, "instanceTerminationAction": "STOP"}


@pytest.fixture
def slow(hosts: NullBackend, clock: SimulatedClock) -> Iterator[Google]:
    """Google's client on an emulator whose operations take 100 seconds."""
    with ComputeEmulator(hosts, clock=clock, operation_s=100) as running:
        clients = Google(running)
        yield clients
        clients.close()


def schedule(google: Google, **words: Any) -> Any:
    return google.call("set_scheduling", scheduling_resource=compute_v1.Scheduling(**words))


# --- on the way -----------------------------------------------------------------------------------


def test_change_of_transitional_instance_is_refused(slow: Google, clock: SimulatedClock) -> None:
    slow.insert()
    client = slow.client("Instances")
    client.stop_unary(project=PROJECT, zone=ZONE, instance="dev")
    clock.advance(50)
    assert slow.status() == "STOPPING"
    for method in ("start_unary", "reset_unary", "simulate_maintenance_event_unary"):
        with pytest.raises(BadRequest, match="is not ready"):
            getattr(client, method)(project=PROJECT, zone=ZONE, instance="dev")
    clock.advance(50)
    assert slow.status() == "TERMINATED"


def test_start_fails_without_capacity(google: Google, emulator: ComputeEmulator) -> None:
    google.insert()
    google.call("stop")
    emulator.faults.add(stock_out(ZONE, call="instances.start"))
    assert error_of(google.call("start")) == (503, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
    assert google.status() == "TERMINATED"


# --- system events --------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "left"), [("STOP", ["TERMINATED"]), ("DELETE", [])])
def test_preempted_vm_is_stopped_or_deleted(
    slow: Google, clock: SimulatedClock, action: str, left: list[str]
) -> None:
    slow.insert(gpu_vm(scheduling={**SPOT, "instanceTerminationAction": action}))
    slow.emulator.preempt("dev", ZONE)
    clock.advance(50)
    assert slow.status() == "STOPPING"
    clock.advance(50)
    assert [vm["status"] for vm in slow.emulator.instances(PROJECT)] == left
    assert slow.events() == ["insert", "compute.instances.preempted"]


def test_maintenance_preempts_spot_vm(google: Google) -> None:
    google.insert(gpu_vm(scheduling=SPOT))
    google.call("simulate_maintenance_event")
    assert google.status() == "TERMINATED"
    assert google.events() == ["insert", "simulateMaintenanceEvent", "compute.instances.preempted"]


def test_maintenance_restarts_gpu_vm(
    slow: Google, clock: SimulatedClock, hosts: NullBackend
) -> None:
    slow.insert()
    slow.call("simulate_maintenance_event")
    seen = []
    for _ in range(5):
        clock.advance(50)
        seen.append(slow.status())
    assert seen == ["STOPPING", "TERMINATED", "STAGING", "RUNNING", "RUNNING"]
    assert [event for event, _, _ in hosts.events] == ["boot", "halt", "boot"]
    assert slow.events()[-2:] == [
        "compute.instances.terminateOnHostMaintenance",
        "compute.instances.automaticRestart",
    ]


def test_maintenance_stops_vm_without_automatic_restart(google: Google) -> None:
    google.insert(gpu_vm(scheduling=scheduling(automaticRestart=False)))
    google.call("simulate_maintenance_event")
    assert google.status() == "TERMINATED"


def test_maintenance_keeps_migrating_vm_running(google: Google, hosts: NullBackend) -> None:
    google.insert(gpu_vm(guestAccelerators=[], scheduling={"onHostMaintenance": "MIGRATE"}))
    google.call("simulate_maintenance_event")
    assert google.status() == "RUNNING"
    assert [event for event, _, _ in hosts.events] == ["boot"]


@pytest.mark.parametrize(("restarts", "end"), [(True, "RUNNING"), (False, "TERMINATED")])
def test_host_error_restarts_vm(
    slow: Google, clock: SimulatedClock, restarts: bool, end: str
) -> None:
    slow.insert(gpu_vm(scheduling=scheduling(automaticRestart=restarts)))
    slow.emulator.break_host("dev", ZONE)
    clock.advance(50)
    assert slow.status() == "REPAIRING"
    clock.advance(250)
    assert slow.status() == end


def test_guest_poweroff_leaves_vm_terminated(google: Google, emulator: ComputeEmulator) -> None:
    google.insert()
    emulator.guest_stopped("dev", ZONE)
    assert google.status() == "TERMINATED"
    assert google.events()[-1] == "compute.instances.guestTerminate"


def test_preempting_standard_vm_is_refused(google: Google, emulator: ComputeEmulator) -> None:
    google.insert()
    with pytest.raises(ValueError, match="dev is not a Spot VM"):
        emulator.preempt("dev", ZONE)
    assert google.status() == "RUNNING"


def test_event_needs_running_vm(emulator: ComputeEmulator) -> None:
    with pytest.raises(KeyError, match="no running instance"):
        emulator.preempt("dev", ZONE)


# --- the end of its time --------------------------------------------------------------------------


def stamp(clock: SimulatedClock, in_s: float) -> str:
    return datetime.fromtimestamp(clock.now() + in_s, UTC).isoformat(timespec="milliseconds")


@pytest.mark.parametrize(("action", "left"), [("STOP", ["TERMINATED"]), ("DELETE", [])])
def test_run_time_limit_stops_or_deletes_vm(
    google: Google, emulator: ComputeEmulator, clock: SimulatedClock, action: str, left: list[str]
) -> None:
    google.insert(
        gpu_vm(
            scheduling=scheduling(
                maxRunDuration={"seconds": "3600"}, instanceTerminationAction=action
            )
        )
    )
    assert google.vm().resource_status.scheduling.termination_timestamp == stamp(clock, 3600)
    clock.advance(3599)
    assert google.status() == "RUNNING"
    clock.advance(1)
    assert [vm["status"] for vm in emulator.instances(PROJECT)] == left


def test_start_resets_run_time(google: Google, clock: SimulatedClock) -> None:
    google.insert(gpu_vm(scheduling=scheduling(**LIMITED)))
    clock.advance(3000)
    google.call("stop")
    assert not google.vm().resource_status.scheduling.termination_timestamp
    google.call("start")
    clock.advance(3599)
    assert google.status() == "RUNNING"
    clock.advance(1)
    assert google.status() == "TERMINATED"


def test_overdue_events_happen_at_their_times(slow: Google, clock: SimulatedClock) -> None:
    """Days pass at once: inserted at 100 s, the run time ends at 3700 s, stopped at 3800 s."""
    began = clock.now()
    send(
        slow.emulator, "POST", INSTANCE.rpartition("/")[0], gpu_vm(scheduling=scheduling(**LIMITED))
    )
    clock.advance(86_400)
    assert slow.vm().last_start_timestamp == datetime.fromtimestamp(began + 100, UTC).isoformat(
        timespec="milliseconds"
    )
    assert slow.vm().last_stop_timestamp == datetime.fromtimestamp(began + 3800, UTC).isoformat(
        timespec="milliseconds"
    )


def test_termination_time_stops_vm(google: Google, clock: SimulatedClock) -> None:
    until = stamp(clock, 600)
    google.insert(
        gpu_vm(scheduling=scheduling(terminationTime=until, instanceTerminationAction="STOP"))
    )
    clock.advance(600)
    assert google.status() == "TERMINATED"
    with pytest.raises(BadRequest, match="has passed"):
        google.call("start")


# --- scheduling options ---------------------------------------------------------------------------


def test_set_scheduling_needs_stopped_vm(google: Google, clock: SimulatedClock) -> None:
    google.insert(gpu_vm(scheduling=scheduling(**LIMITED)))
    with pytest.raises(BadRequest, match="must be stopped"):
        schedule(google, max_run_duration=compute_v1.Duration(seconds=7200))
    google.call("stop")
    schedule(
        google,
        max_run_duration=compute_v1.Duration(seconds=7200),
        instance_termination_action="STOP",
        on_host_maintenance="TERMINATE",
        automatic_restart=True,
    )
    changed = google.vm().scheduling
    assert (
        changed.max_run_duration.seconds,
        changed.instance_termination_action,
        changed.on_host_maintenance,
    ) == (
        7200,
        "STOP",
        "TERMINATE",
    )
    google.call("start")
    clock.advance(7199)
    assert google.status() == "RUNNING"


def test_set_scheduling_replaces_all_options(google: Google) -> None:
    """Options that are not sent get their defaults: run time limit and maintenance policy."""
    google.insert(gpu_vm(scheduling=scheduling(**LIMITED)))
    google.call("stop")
    with pytest.raises(BadRequest, match="do not support live migration"):
        schedule(
            google,
            max_run_duration=compute_v1.Duration(seconds=7200),
            instance_termination_action="STOP",
        )
    schedule(google, on_host_maintenance="TERMINATE", automatic_restart=False)
    changed = google.vm().scheduling
    assert (changed.max_run_duration.seconds, changed.automatic_restart) == (0, False)


def test_set_scheduling_refuses_invalid_options(google: Google) -> None:
    google.insert()
    google.call("stop")
    with pytest.raises(BadRequest, match="do not support live migration"):
        schedule(google, on_host_maintenance="MIGRATE")


def l4_vm(**changed: Any) -> Body:
    """A VM with a machine type that includes its GPU."""
    return gpu_vm(
        machineType=f"zones/{ZONE}/machineTypes/g2-standard-8", guestAccelerators=[], **changed
    )


FLEX = scheduling(provisioningModel="FLEX_START", automaticRestart=False, **LIMITED)
GOOD: dict[str, Body] = {
    "spot": SPOT,
    "preemptible": scheduling(preemptible=True, automaticRestart=False),
    "spot that is deleted": {**SPOT, "instanceTerminationAction": "DELETE"},
    "limited spot": {**SPOT, **LIMITED},
    "shortest": scheduling(maxRunDuration={"seconds": "30"}, instanceTerminationAction="DELETE"),
    "longest": scheduling(
        maxRunDuration={"seconds": str(120 * 86_400)}, instanceTerminationAction="STOP"
    ),
    "flex-start": FLEX,
}
BAD: dict[str, tuple[Body, str]] = {
    "unknown model": (scheduling(provisioningModel="CHEAP"), "Must be one of STANDARD, SPOT"),
    "preemptible that restarts": (scheduling(preemptible=True), "automaticRestart must be false"),
    "unknown action": (
        scheduling(**{**LIMITED, "instanceTerminationAction": "SUSPEND"}),
        "Must be one of STOP, DELETE",
    ),
    "too long": (
        scheduling(
            maxRunDuration={"seconds": str(120 * 86_400 + 1)}, instanceTerminationAction="STOP"
        ),
        "120 days",
    ),
    "two limits": (scheduling(**LIMITED, terminationTime="2027-01-01T00:00:00Z"), "Only one of"),
    "a time that has passed": (
        scheduling(terminationTime="2020-01-01T00:00:00Z", instanceTerminationAction="STOP"),
        "in the future",
    ),
    "a time that is none": (
        scheduling(terminationTime="tomorrow", instanceTerminationAction="STOP"),
        "RFC 3339",
    ),
    "bound to no reservation": (
        scheduling(provisioningModel="RESERVATION_BOUND"),
        "requires a specific reservation",
    ),
    "flex-start on N1": (
        FLEX,
        "n1-standard-8 cannot be used with the provisioning model FLEX_START",
    ),
    "flex-start without an end": (
        scheduling(provisioningModel="FLEX_START", automaticRestart=False),
        "at most 7 days",
    ),
    "flex-start for long": (
        {**FLEX, "maxRunDuration": {"seconds": str(7 * 86_400 + 1)}},
        "at most 7 days",
    ),
    "flex-start that restarts": (
        {**FLEX, "automaticRestart": True},
        "automaticRestart must be false",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_valid_scheduling_is_accepted_and_shown(google: Google, name: str) -> None:
    vm = l4_vm(scheduling=FLEX) if GOOD[name] is FLEX else gpu_vm(scheduling=GOOD[name])
    assert error_of(google.insert(vm)) == (0, "")
    shown = google.vm().scheduling
    assert shown.preemptible == (shown.provisioning_model == "SPOT")


@pytest.mark.parametrize("name", BAD)
def test_invalid_scheduling_is_refused(free_emulator: ComputeEmulator, name: str) -> None:
    options, words = BAD[name]
    vm = (
        l4_vm
        if options.get("provisioningModel") == "FLEX_START" and name != "flex-start on N1"
        else gpu_vm
    )
    answer = send(free_emulator, "POST", INSTANCE.rpartition("/")[0], vm(scheduling=options))
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("wait_s", "status"), [(0, 200), (90, 200), (7200, 200), (89, 400), (7201, 400)]
)
def test_flex_start_request_waits_for_capacity(
    free_emulator: ComputeEmulator, wait_s: int, status: int
) -> None:
    body = l4_vm(scheduling=FLEX, params={"requestValidForDuration": {"seconds": str(wait_s)}})
    assert send(free_emulator, "POST", INSTANCE.rpartition("/")[0], body).status_code == status
