"""Finds the resources to delete: orphans, and VMs that have been stopped for too long.

The cloud is compared with the journals of this machine. A VM is wanted while a journal has
an entry that it was made; a disk is wanted while its VM is. Only owned resources are considered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from provision.cloud.api.labels import ANY, OWNER_LABEL, REQUEST_LABEL
from provision.cloud.api.protocol import ComputeCloud, Disk, Listing, OperationResult
from provision.cloud.lifecycle import idle_delete
from provision.cloud.lifecycle.batch import Result, collect_results
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.insert import is_made_by
from provision.cloud.lifecycle.journal import (
    DELETING,
    INTENT,
    LEFT_BEHIND,
    MADE,
    UNSURE,
    Entry,
)
from provision.cloud.lifecycle.vm_states import STOPPED_STATES
from provision.core.errors import CleanupFailed, CloudError, ProvisionError
from provision.core.model import Vm

VM, STOPPED, DISK, KEY = "vm", "stopped", "disk", "key"
"""The kinds of orphan: a VM that no journal calls made, a VM stopped for longer than its
`idle_delete`, a disk without a VM, a key (OS Login) that opens no VM."""
_REASONS = {
    INTENT: "a run that ended early asked for it",
    UNSURE: "it was asked for, and the answer was lost",
    DELETING: "its deletion was begun and not seen to end",
    LEFT_BEHIND: "its deletion failed",
}
_INSERT_STATES = (INTENT, UNSURE)
NO_ENTRY = "no journal of this machine names it"
UNATTACHED = "it is attached to no VM"


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """An owned VM, disk or key to delete, and why; `created` as the API has it."""

    kind: str
    name: str
    zone: str
    why: str
    owner: str
    created: str = ""
    vm: Vm | None = field(default=None, compare=False)
    request_id: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the orphan as `--json` prints it."""
        return {
            "kind": self.kind,
            "name": self.name,
            "zone": self.zone,
            "why": self.why,
            "owner": self.owner,
            "created": self.created,
        }


@dataclass(frozen=True)
class OrphanReport:
    """What was found, and what could not be looked up."""

    orphans: tuple[Orphan, ...]
    finished_entries: tuple[Entry, ...]
    """Open entries whose VM does not exist."""
    errors: tuple[ProvisionError, ...] = ()
    """One for each request that failed: `CleanupFailed` where something unwanted may bill."""


def fetch_orphans(
    context: CloudContext,
    is_owner: Callable[[str], bool],
    entries: Sequence[Entry],
    busy: Iterable[str] = (),
) -> OrphanReport:
    """Compare the cloud with `entries`, the open ones of every journal; nothing is changed.

    `is_owner` takes the value of an owner label and returns whether the resource is owned; running
    processes work on the names in `busy`. Operations of killed runs are waited for first, all at
    once, so that no VM appears later. A failed request becomes an error of the report; `CloudError`
    is raised when the VMs cannot be listed.
    """
    cloud, busy_names = context.cloud, set(busy)
    own = [
        entry for entry in entries if entry.name not in busy_names and is_owner(_owner_of(entry))
    ]
    waits = collect_results(
        [entry for entry in own if entry.state in _INSERT_STATES],
        lambda entry: cloud.operation_result(entry.zone, entry.request_id),
    )
    listing = cloud.list_with_failures({OWNER_LABEL: ANY})
    unlisted = collect_results(
        [entry for entry in own if not any(_is_vm_of(entry, vm) for vm in listing.vms)],
        lambda entry: cloud.get(entry.name, entry.zone),
    )
    vms = [*listing.vms, *(result.value for result in unlisted if result.value is not None)]
    owned = [vm for vm in vms if is_owner(vm.labels.get(OWNER_LABEL, ""))]
    errors = _listing_errors(listing)
    orphans = [
        *_orphaned_vms(cloud, owned, entries, busy_names, errors),
        *(
            _orphaned_disk(disk)
            for disk in _unattached_disks(cloud, is_owner, errors)
            if not _is_wanted(disk, entries, owned, busy_names)
        ),
    ]
    finished = _finished_entries(unlisted, waits, errors)
    return OrphanReport(tuple(orphans), tuple(finished), tuple(errors))


def _listing_errors(listing: Listing) -> list[ProvisionError]:
    return [
        CloudError("its VMs could not be listed", where=failure.zone, why=failure.why)
        for failure in listing.failures
    ]


def _orphaned_vms(
    cloud: ComputeCloud,
    owned: Sequence[Vm],
    entries: Sequence[Entry],
    busy: set[str],
    errors: list[ProvisionError],
) -> list[Orphan]:
    now = _current_time(cloud, owned, errors)
    candidates = (_orphaned_vm(vm, entries, now) for vm in owned if vm.name not in busy)
    return [orphan for orphan in candidates if orphan is not None]


def _finished_entries(
    unlisted: Sequence[Result[Entry, Vm | None]],
    waits: Sequence[Result[Entry, OperationResult | None]],
    errors: list[ProvisionError],
) -> list[Entry]:
    """Return the entries whose VM does not exist; add an error for each that is unknown."""
    wait_errors = {wait.item.request_id: wait.error for wait in waits if wait.error is not None}
    finished = []
    for result in unlisted:
        error = result.error
        if error is None and result.value is None:
            error = wait_errors.get(result.item.request_id)
        if error is not None:
            errors.append(_lookup_error(result.item, error))
        elif result.value is None or not _is_vm_of(result.item, result.value):
            finished.append(result.item)
    return finished


def _owner_of(entry: Entry) -> str:
    return str(entry.asked.get("labels", {}).get(OWNER_LABEL, ""))


def _is_vm_of(entry: Entry, vm: Vm) -> bool:
    """Return whether it is the entry's VM: by requestId, for a made one also by name and zone.

    A VM can be renamed, and its labels can be changed.
    """
    is_same_place = (vm.name, vm.zone) == (entry.name, entry.zone)
    return is_made_by(vm, entry.request_id) or (entry.state == MADE and is_same_place)


def _current_time(
    cloud: ComputeCloud, vms: Sequence[Vm], errors: list[ProvisionError]
) -> datetime | None:
    """Return the cloud's time if a VM may be stopped for too long; a local clock may be wrong."""
    if not any(vm.status in STOPPED_STATES and idle_delete.limit_s(vm) is not None for vm in vms):
        return None
    try:
        return cloud.current_time()
    except CloudError as error:
        errors.append(error)
        return None


def _unattached_disks(
    cloud: ComputeCloud, is_owner: Callable[[str], bool], errors: list[ProvisionError]
) -> list[Disk]:
    try:
        disks = cloud.list_disks({OWNER_LABEL: ANY})
    except CloudError as error:
        errors.append(error)
        return []
    return [disk for disk in disks if not disk.users and is_owner(disk.labels.get(OWNER_LABEL, ""))]


def _lookup_error(entry: Entry, error: ProvisionError) -> ProvisionError:
    """Return the error for an entry that could not be looked up."""
    where = f"{entry.zone}/{entry.name}"
    if entry.state == MADE:
        what = "the VM could not be looked at"
        return CloudError(what, where=where, why=error.why, fix=error.fix)
    return CleanupFailed(
        "a VM may be left behind and may bill: it could not be looked at",
        where=where,
        why=f"{_REASONS[entry.state]}\n{error.why}",
        fix=f"gcloud compute instances describe {entry.name} --zone {entry.zone}",
    )


def _orphaned_vm(vm: Vm, entries: Sequence[Entry], now: datetime | None) -> Orphan | None:
    """Return the VM as an orphan; None when it is wanted."""
    by_request = [e for e in entries if e.request_id == vm.labels.get(REQUEST_LABEL)]
    by_place = [e for e in entries if (e.name, e.zone) == (vm.name, vm.zone)]
    entry = next(iter(by_request or by_place), None)
    kind, why = VM, NO_ENTRY if entry is None else _REASONS.get(entry.state)
    if entry is not None and entry.state == MADE:
        kind, why = STOPPED, None if now is None else idle_delete.deletion_reason(vm, now)
    if why is None:
        return None
    return Orphan(
        kind=kind,
        name=vm.name,
        zone=vm.zone,
        why=why,
        owner=vm.labels[OWNER_LABEL],
        created=vm.created,
        vm=vm,
        request_id=entry.request_id if entry is not None else "",
    )


def _orphaned_disk(disk: Disk) -> Orphan:
    return Orphan(
        kind=DISK,
        name=disk.name,
        zone=disk.zone,
        why=UNATTACHED,
        owner=disk.labels[OWNER_LABEL],
        created=disk.created,
    )


def _is_wanted(disk: Disk, entries: Sequence[Entry], vms: Sequence[Vm], busy: set[str]) -> bool:
    """Return whether the disk's VM exists and is wanted, or is being made or deleted right now."""
    request_id = disk.labels.get(REQUEST_LABEL)
    exists = any(vm.labels.get(REQUEST_LABEL) == request_id for vm in vms)
    return any(
        entry.name in busy or (entry.state == MADE and exists)
        for entry in entries
        if entry.request_id == request_id
    )
