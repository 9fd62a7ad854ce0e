"""Why a VM does not answer: it stopped, moved to another address or is gone, which the cloud knows and a time-out does not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from provision.cloud.lifecycle.context import HALTED
from provision.core.errors import CloudError, Unreachable
from provision.core.model import Host, Note, Vm
from provision.project import host_keys, inventory
from provision.project.project import Project
from provision.project.records import VmRecord, VmRecords

T = TypeVar("T")


def reached(project: Project, target: Host, attempt: Callable[[Host], T]) -> T:
    """What `attempt` returns for the host; once more where a VM is at another address by now.

    The cloud is asked after a VM was not reached, once and briefly: whoever has no network waits
    for that, too. Raises `Unreachable` with what it says, or as it was where it says nothing new.
    """
    try:
        return attempt(target)
    except Unreachable as error:
        record = VmRecords(project.home / "vms.json").get(target.name)
        if target.key_alias is None or record is None or target.name in project.settings.hosts:
            raise
        moved = _moved(project, target, record, error)
    return attempt(moved)


def _moved(project: Project, target: Host, record: VmRecord, error: Unreachable) -> Host:
    """The VM at its new address. Raises why there is none."""
    from provision.project.cloud import cloud_of

    try:
        vm = cloud_of(project, attempts=2, request_timeout_s=10.0).get(record.name, record.zone)
    except CloudError:
        raise error from None
    if vm is None or host_keys.key_alias(vm.instance_id) != target.key_alias:
        raise _gone(project, record, vm, error) from error
    if vm.status != "RUNNING":
        raise _not_running(project, vm, error) from error
    address = inventory.address_of(vm)
    if target.proxy or address in ("", record.address):
        raise error
    VmRecords(project.home / "vms.json").put(replace(record, address=address))
    project.emit(
        Note(f"it is at {address} by now, no longer at {record.address}", host=target.name)
    )
    return replace(target, address=address)


def _gone(project: Project, record: VmRecord, vm: Vm | None, error: Unreachable) -> Unreachable:
    now = (
        f"there is none in {record.zone}"
        if vm is None
        else f"the VM of this name is another one by now, {vm.instance_id}"
    )
    why = f"{now}; this one was {record.instance_id}\n{error.what}: {error.why}"
    return Unreachable(
        "the VM is gone",
        where=record.name,
        why=why,
        fix=f"{project.program_argv0} vm.create --name {record.name}",
    )


def _not_running(project: Project, vm: Vm, error: Unreachable) -> Unreachable:
    since = f", stopped {vm.stopped}" if vm.status in HALTED and vm.stopped else ""
    verb = "start" if vm.status in HALTED else "wait"
    why = f"it is {vm.status} in {vm.zone}{since}\n{error.what}: {error.why}"
    return Unreachable(
        "the VM does not run",
        where=vm.name,
        why=why,
        fix=f"{project.program_argv0} vm.{verb} --name {vm.name}",
    )
