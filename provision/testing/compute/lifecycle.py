"""The instance state machine: what each request, and each event of the cloud's own, does to an instance.

States and transitions: Compute Engine, "VM instance life cycle"; what pre-emption, host maintenance
and host errors do: "Spot VMs", "Host events". The operation types of system events are those that
`gcloud compute operations list` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from provision.cloud.api.body import last
from provision.testing.compute import instance_resource, scheduling
from provision.testing.compute.errors import ApiError, OperationFailure
from provision.testing.compute.insert_checks import check_labels, check_metadata
from provision.testing.compute.instance import WAITING, Machine
from provision.testing.compute.store import Store

PREEMPTED = "compute.instances.preempted"
HOST_ERROR = "compute.instances.hostError"
MAINTENANCE = "compute.instances.terminateOnHostMaintenance"
RESTART = "compute.instances.automaticRestart"
GUEST_STOP = "compute.instances.guestTerminate"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a change goes: the status while it runs, what its end does, what its failure leaves, what follows by itself."""

    begin: str | None = None
    end: Callable[[], OperationFailure | None] = lambda: None
    fail: Callable[[], None] = lambda: None
    failure: OperationFailure | None = None
    """It is accepted, and ends with this error."""
    then: tuple[str, Callable[[], Plan]] | None = None
    """Operation type and plan of the system event that its end sets off."""


def delete(store: Store, machine: Machine, _body: Mapping[str, Any]) -> Plan:
    """Remove the instance, whatever it does at the moment."""
    if machine.resource["deletionProtection"]:
        raise ApiError(
            400,
            "resourceInUseByAnotherResource",
            f"The instance '{machine.place.path}' is protected against deletion.",
        )
    return Plan(begin="STOPPING", end=lambda: store.remove(machine))


def start(store: Store, machine: Machine, _body: Mapping[str, Any]) -> Plan:
    """Boot a stopped instance; one that runs is left alone, one on its way is not ready."""
    if machine.status == "RUNNING":
        return Plan()
    if machine.status != "TERMINATED":
        raise _not_ready(machine)
    until = machine.scheduling.get("terminationTime")
    ends_at = scheduling.ends_at(machine.scheduling, store.now())
    if until is not None and ends_at is not None and ends_at <= store.now():
        raise ApiError(400, "invalid", f"The instance's terminationTime {until} has passed.")
    return _boot_again(store, machine, failure=store.shortage(machine, with_disks=False))


def _boot_again(store: Store, machine: Machine, *, failure: OperationFailure | None = None) -> Plan:
    def fail() -> None:
        machine.status = "TERMINATED"

    return Plan(
        begin="STAGING", end=lambda: store.boot(machine, keep=True), fail=fail, failure=failure
    )


def stop(store: Store, machine: Machine, _body: Mapping[str, Any]) -> Plan:
    """Shut an instance down and keep its disks."""
    if machine.status == "TERMINATED":
        return Plan()
    if machine.status == WAITING:
        raise _not_ready(machine)

    def fail() -> None:
        machine.status = "RUNNING"

    return Plan(begin="STOPPING", end=lambda: store.halt(machine), fail=fail)


def reset(store: Store, machine: Machine, _body: Mapping[str, Any]) -> Plan:
    """Pull the plug and boot again, RUNNING all the while."""
    if machine.status != "RUNNING":
        raise _not_ready(machine)

    def end() -> OperationFailure | None:
        store.power_off(machine)
        return store.boot(machine, keep=True)

    return Plan(end=end)


def set_labels(_store: Store, machine: Machine, body: Mapping[str, Any]) -> Plan:
    """Replace the labels, if the fingerprint is that of the current ones."""
    check_fingerprint(
        "labels", body.get("labelFingerprint", ""), machine.resource["labelFingerprint"]
    )
    labels = dict(body.get("labels", {}))
    check_labels(labels)
    return Plan(end=lambda: instance_resource.set_labels(machine.resource, labels))


def set_metadata(_store: Store, machine: Machine, body: Mapping[str, Any]) -> Plan:
    """Replace all metadata, if the fingerprint is that of the current ones."""
    check_fingerprint(
        "metadata", body.get("fingerprint", ""), machine.resource["metadata"]["fingerprint"]
    )
    check_metadata(body)
    items = deepcopy(list(body.get("items", ())))
    return Plan(end=lambda: instance_resource.set_metadata(machine.resource, items))


def set_scheduling(store: Store, machine: Machine, body: Mapping[str, Any]) -> Plan:
    """Replace the scheduling options, all of them: what is not sent is as in a new instance.

    "You can only call this method on a stopped instance" (Compute Engine API,
    instances.setScheduling).
    """
    if machine.status != "TERMINATED":
        raise ApiError(
            400,
            "resourceNotReady",
            f"The resource '{machine.place.path}' is not ready: it must be stopped (TERMINATED).",
        )
    options = deepcopy({key: value for key, value in body.items() if value is not None})
    shape = store.catalogue.machine(machine.place.zone, last(machine.resource["machineType"]))
    if shape is not None:
        whole = {**machine.resource, "scheduling": options}
        scheduling.check(
            whole,
            shape,
            has_gpu=instance_resource.gpu_of(machine.resource)[0] is not None,
            now=store.now(),
        )

    def end() -> None:
        machine.resource["scheduling"] = scheduling.complete(options)

    return Plan(end=end)


def simulate_maintenance(store: Store, machine: Machine, _body: Mapping[str, Any]) -> Plan:
    """Host maintenance now. A Spot VM is pre-empted by it, one that may not migrate stops and restarts if it may."""
    if machine.status != "RUNNING":
        raise _not_ready(machine)
    if machine.scheduling["provisioningModel"] == "SPOT":
        return Plan(then=(PREEMPTED, lambda: preempt(store, machine)))
    if machine.scheduling["onHostMaintenance"] == "MIGRATE":
        return Plan()
    return Plan(then=(MAINTENANCE, lambda: _stopped_by_the_cloud(store, machine, "STOPPING")))


VERBS: Mapping[str, Callable[[Store, Machine, Mapping[str, Any]], Plan]] = {
    "delete": delete,
    "start": start,
    "stop": stop,
    "reset": reset,
    "setLabels": set_labels,
    "setMetadata": set_metadata,
    "setScheduling": set_scheduling,
    "simulateMaintenanceEvent": simulate_maintenance,
}
"""The method of `instances` → its plan."""


# --- what nobody asked for ------------------------------------------------------------------------


def preempt(store: Store, machine: Machine) -> Plan:
    """A Spot VM is taken back: STOPPING, then stopped or deleted as its termination action says. Others are never: ValueError."""
    if machine.scheduling["provisioningModel"] != "SPOT":
        raise ValueError(f"{machine.place.name} is no Spot VM, and only those are pre-empted")
    return end_of_time(store, machine)


def end_of_time(store: Store, machine: Machine) -> Plan:
    """The run time is over: STOPPING, then the termination action."""
    deletes = machine.scheduling.get("instanceTerminationAction") == "DELETE"
    return Plan(
        begin="STOPPING", end=lambda: store.remove(machine) if deletes else store.halt(machine)
    )


def host_error(store: Store, machine: Machine) -> Plan:
    """The host broke: REPAIRING, then booted elsewhere if it may restart, else stopped."""
    return _stopped_by_the_cloud(store, machine, "REPAIRING")


def guest_stop(store: Store, machine: Machine) -> Plan:
    """The guest shut itself down; nothing restarts it."""
    return Plan(begin="STOPPING", end=lambda: store.halt(machine))


def _stopped_by_the_cloud(store: Store, machine: Machine, status: str) -> Plan:
    restarts = machine.scheduling["automaticRestart"]
    then = (RESTART, lambda: _boot_again(store, machine)) if restarts else None
    return Plan(begin=status, end=lambda: store.halt(machine), then=then)


def _not_ready(machine: Machine) -> ApiError:
    return ApiError(400, "resourceNotReady", f"The resource '{machine.place.path}' is not ready")


def check_fingerprint(of: str, given: str, current: str) -> None:
    """412 for a change that was made from another state than the current one."""
    if given != current:
        raise ApiError(
            412, "conditionNotMet", f"Supplied fingerprint does not match current {of} fingerprint."
        )
