"""The instance state machine: what each request and each system event does to an instance.

States and transitions: Compute Engine, "VM instance life cycle"; what pre-emption, host maintenance
and host errors do: "Spot VMs", "Host events". The operation types of system events are those that
`gcloud compute operations list` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from provision.cloud.api.resources import last_segment
from provision.testing.compute import instance_resource, scheduling
from provision.testing.compute.errors import ApiError, OperationFailure
from provision.testing.compute.insert_checks import check_labels, check_metadata
from provision.testing.compute.instance import WAITING, Instance
from provision.testing.compute.store import Store

PREEMPTED = "compute.instances.preempted"
HOST_ERROR = "compute.instances.hostError"
MAINTENANCE = "compute.instances.terminateOnHostMaintenance"
RESTART = "compute.instances.automaticRestart"
GUEST_STOP = "compute.instances.guestTerminate"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The course of a change: the status while it runs, its end, its failure, what follows it."""

    begin: str | None = None
    end: Callable[[], OperationFailure | None] = lambda: None
    fail: Callable[[], None] = lambda: None
    failure: OperationFailure | None = None
    """The request is accepted and the operation ends with this error."""
    then: tuple[str, Callable[[], Plan]] | None = None
    """Operation type and plan of the system event that follows its end."""


def delete(store: Store, instance: Instance, _body: Mapping[str, Any]) -> Plan:
    """Remove the instance in any state. Raises `ApiError` 400 when it is protected."""
    if instance.resource["deletionProtection"]:
        raise ApiError(
            400,
            "resourceInUseByAnotherResource",
            f"The instance '{instance.ref.path}' is protected against deletion.",
        )
    return Plan(begin="STOPPING", end=lambda: store.remove(instance))


def start(store: Store, instance: Instance, _body: Mapping[str, Any]) -> Plan:
    """Boot a stopped instance; a running one stays as it is.

    Raises `ApiError` 400 in a transitional state, and after the instance's termination time.
    """
    if instance.status == "RUNNING":
        return Plan()
    if instance.status != "TERMINATED":
        raise _not_ready(instance)
    until = instance.scheduling.get("terminationTime")
    ends_at = scheduling.ends_at(instance.scheduling, store.now())
    if until is not None and ends_at is not None and ends_at <= store.now():
        raise ApiError(400, "invalid", f"The instance's terminationTime {until} has passed.")
    return _boot_again(store, instance, failure=store.shortage(instance, with_disks=False))


def _boot_again(
    store: Store, instance: Instance, *, failure: OperationFailure | None = None
) -> Plan:
    def fail() -> None:
        instance.status = "TERMINATED"

    return Plan(
        begin="STAGING", end=lambda: store.boot(instance, keep=True), fail=fail, failure=failure
    )


def stop(store: Store, instance: Instance, _body: Mapping[str, Any]) -> Plan:
    """Shut an instance down and keep its disks. Raises `ApiError` 400 for a PENDING one."""
    if instance.status == "TERMINATED":
        return Plan()
    if instance.status == WAITING:
        raise _not_ready(instance)

    def fail() -> None:
        instance.status = "RUNNING"

    return Plan(begin="STOPPING", end=lambda: store.halt(instance), fail=fail)


def reset(store: Store, instance: Instance, _body: Mapping[str, Any]) -> Plan:
    """Power off and boot again, in status RUNNING. Raises `ApiError` 400 in another status."""
    if instance.status != "RUNNING":
        raise _not_ready(instance)

    def end() -> OperationFailure | None:
        store.power_off(instance)
        return store.boot(instance, keep=True)

    return Plan(end=end)


def set_labels(_store: Store, instance: Instance, body: Mapping[str, Any]) -> Plan:
    """Replace the labels. Raises `ApiError` 412 when the fingerprint is not the current one."""
    check_fingerprint(
        "labels", body.get("labelFingerprint", ""), instance.resource["labelFingerprint"]
    )
    labels = dict(body.get("labels", {}))
    check_labels(labels)
    return Plan(end=lambda: instance_resource.set_labels(instance.resource, labels))


def set_metadata(_store: Store, instance: Instance, body: Mapping[str, Any]) -> Plan:
    """Replace all metadata. Raises `ApiError` 412 when the fingerprint is not the current one."""
    check_fingerprint(
        "metadata", body.get("fingerprint", ""), instance.resource["metadata"]["fingerprint"]
    )
    check_metadata(body)
    items = deepcopy(list(body.get("items", ())))
    return Plan(end=lambda: instance_resource.set_metadata(instance.resource, items))


def set_scheduling(store: Store, instance: Instance, body: Mapping[str, Any]) -> Plan:
    """Replace all scheduling options; an option that is not sent gets its default.

    "You can only call this method on a stopped instance" (Compute Engine API,
    instances.setScheduling); raises `ApiError` 400 for others, and for options that contradict
    one another.
    """
    if instance.status != "TERMINATED":
        raise ApiError(
            400,
            "resourceNotReady",
            f"The resource '{instance.ref.path}' is not ready: it must be stopped (TERMINATED).",
        )
    options = deepcopy({key: value for key, value in body.items() if value is not None})
    shape = store.catalogue.find_machine_type(
        instance.ref.zone, last_segment(instance.resource["machineType"])
    )
    if shape is not None:
        whole = {**instance.resource, "scheduling": options}
        scheduling.check(
            whole,
            shape,
            has_gpu=instance_resource.gpu_of(instance.resource)[0] is not None,
            now=store.now(),
        )

    def end() -> None:
        instance.resource["scheduling"] = scheduling.with_defaults(options)

    return Plan(end=end)


def simulate_maintenance(store: Store, instance: Instance, _body: Mapping[str, Any]) -> Plan:
    """Simulate host maintenance. Raises `ApiError` 400 when the instance is not RUNNING.

    A Spot VM is pre-empted. A VM that may not migrate stops, and restarts if it may.
    """
    if instance.status != "RUNNING":
        raise _not_ready(instance)
    if instance.scheduling["provisioningModel"] == "SPOT":
        return Plan(then=(PREEMPTED, lambda: preempt(store, instance)))
    if instance.scheduling["onHostMaintenance"] == "MIGRATE":
        return Plan()
    return Plan(then=(MAINTENANCE, lambda: _stopped_by_the_cloud(store, instance, "STOPPING")))


VERBS: Mapping[str, Callable[[Store, Instance, Mapping[str, Any]], Plan]] = {
    "delete": delete,
    "start": start,
    "stop": stop,
    "reset": reset,
    "setLabels": set_labels,
    "setMetadata": set_metadata,
    "setScheduling": set_scheduling,
    "simulateMaintenanceEvent": simulate_maintenance,
}
"""Method of `instances` → the function that plans it."""


# --- system events --------------------------------------------------------------------------------


def preempt(store: Store, instance: Instance) -> Plan:
    """Pre-empt a Spot VM: STOPPING, then its termination action.

    Raises `ValueError` for another VM.
    """
    if instance.scheduling["provisioningModel"] != "SPOT":
        raise ValueError(f"{instance.ref.name} is not a Spot VM; only Spot VMs are pre-empted")
    return end_run_time(store, instance)


def end_run_time(store: Store, instance: Instance) -> Plan:
    """End the run time: STOPPING, then the termination action."""
    deletes = instance.scheduling.get("instanceTerminationAction") == "DELETE"
    return Plan(
        begin="STOPPING", end=lambda: store.remove(instance) if deletes else store.halt(instance)
    )


def host_error(store: Store, instance: Instance) -> Plan:
    """A host error: REPAIRING, then booted again if it may restart, else stopped."""
    return _stopped_by_the_cloud(store, instance, "REPAIRING")


def guest_stop(store: Store, instance: Instance) -> Plan:
    """The guest powered itself off; the instance stops and is not restarted."""
    return Plan(begin="STOPPING", end=lambda: store.halt(instance))


def _stopped_by_the_cloud(store: Store, instance: Instance, status: str) -> Plan:
    restarts = instance.scheduling["automaticRestart"]
    then = (RESTART, lambda: _boot_again(store, instance)) if restarts else None
    return Plan(begin=status, end=lambda: store.halt(instance), then=then)


def _not_ready(instance: Instance) -> ApiError:
    return ApiError(400, "resourceNotReady", f"The resource '{instance.ref.path}' is not ready")


def check_fingerprint(of: str, given: str, current: str) -> None:
    """Raise `ApiError` 412 when the `given` fingerprint is not the `current` one."""
    if given != current:
        raise ApiError(
            412, "conditionNotMet", f"Supplied fingerprint does not match current {of} fingerprint."
        )
