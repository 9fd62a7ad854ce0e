"""A VM that does not answer: stopped, deleted, or at another address, as the cloud reports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from provision.cloud.lifecycle.vm_states import STOPPED_STATES
from provision.core.errors import CloudError, Unreachable
from provision.core.model import Host, Note, Vm
from provision.project.project import Project
from provision.project.records import VmRecord, address_of, key_alias

T = TypeVar("T")


def retry_at_current_address(project: Project, target: Host, attempt: Callable[[Host], T]) -> T:
    """Return the result of `attempt`; where the VM has moved, attempt again at its new address.

    A request is sent only after a VM did not answer: one, with a short time limit, since a machine
    without network waits for it, too. Raises `Unreachable` with the VM's state where that explains
    it, otherwise the error of the attempt.
    """
    try:
        return attempt(target)
    except Unreachable as error:
        record = project.records.get(target.name)
        if target.key_alias is None or record is None or target.name in project.settings.hosts:
            raise
        moved = _fetch_moved_host(project, target, record, error)
    return attempt(moved)


def _fetch_moved_host(project: Project, target: Host, record: VmRecord, error: Unreachable) -> Host:
    """Return the VM at its new address; raise `Unreachable` when there is none."""
    try:
        cloud = project.connect_cloud_with(attempts=2, request_timeout_s=10.0)
        vm = cloud.get(record.name, record.zone)
    except CloudError:
        raise error from None
    if vm is None or key_alias(vm.instance_id) != target.key_alias:
        raise _deleted_error(project, record, vm, error) from error
    if vm.status != "RUNNING":
        raise _not_running_error(project, vm, error) from error
    address = address_of(vm)
    if target.proxy or address in ("", record.address):
        raise error
    project.records.put(replace(record, address=address))
    project.emit(
        Note(f"it is at {address} by now, no longer at {record.address}", host=target.name)
    )
    return replace(target, address=address)


def _deleted_error(
    project: Project, record: VmRecord, vm: Vm | None, error: Unreachable
) -> Unreachable:
    state = (
        f"there is none in {record.zone}"
        if vm is None
        else f"the VM of this name is another one by now, {vm.instance_id}"
    )
    why = f"{state}; this one was {record.instance_id}\n{error.what}: {error.why}"
    return Unreachable(
        "the VM is gone",
        where=record.name,
        why=why,
        fix=f"{project.program_argv0} vm.create --name {record.name}",
    )


def _not_running_error(project: Project, vm: Vm, error: Unreachable) -> Unreachable:
    since = f", stopped {vm.stopped}" if vm.status in STOPPED_STATES and vm.stopped else ""
    verb = "start" if vm.status in STOPPED_STATES else "wait"
    return Unreachable(
        "the VM does not run",
        where=vm.name,
        why=f"it is {vm.status} in {vm.zone}{since}\n{error.what}: {error.why}",
        fix=f"{project.program_argv0} vm.{verb} --name {vm.name}",
    )
