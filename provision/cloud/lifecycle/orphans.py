"""What carries our labels and is to go: what belongs to nobody, and VMs that are stopped for longer than they say they may be.

Found by comparing the cloud with the journals, removed one by one. A VM belongs to somebody while a
journal of this machine says that it was made; a disk while the VM it was made for does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from provision.cloud.api import body
from provision.cloud.api.ports import ANY, ComputeCloud, Disk
from provision.cloud.lifecycle import idle
from provision.cloud.lifecycle import journal as written
from provision.cloud.lifecycle.context import HALTED, Means, left_behind
from provision.cloud.lifecycle.insert import is_of
from provision.cloud.lifecycle.journal import Entry
from provision.cloud.lifecycle.many import ends
from provision.core.errors import CleanupFailed, CloudError, ProvisionError
from provision.core.model import Vm

VM, STOPPED, DISK, KEY = "vm", "stopped", "disk", "key"
"""The kinds of stray: a VM of nobody, a VM that asks to be deleted when it is stopped for long, a
disk without a VM, a key (OS Login) that opens no VM."""
_REASONS = {
    written.INTENT: "a run that ended early asked for it",
    written.UNSURE: "it was asked for, and the answer was lost",
    written.DELETING: "its deletion was begun and not seen to end",
    written.LEFT_BEHIND: "its deletion failed",
}
_ASKED_FOR = (written.INTENT, written.UNSURE)
NO_ENTRY = "no journal of this machine names it"
UNATTACHED = "it is attached to no VM"


@dataclass(frozen=True, kw_only=True)
class Stray:
    """A VM or a disk of ours that is to go, and why. `created` is a timestamp of the API."""

    kind: str
    name: str
    zone: str
    why: str
    owner: str
    created: str = ""
    vm: Vm | None = field(default=None, compare=False)
    request_id: str = ""

    def as_dict(self) -> dict[str, str]:
        """The stray as `--json` prints it."""
        return {
            "kind": self.kind,
            "name": self.name,
            "zone": self.zone,
            "why": self.why,
            "owner": self.owner,
            "created": self.created,
        }


@dataclass(frozen=True)
class Survey:
    """What was found, and what could not be looked at."""

    strays: tuple[Stray, ...]
    settled: tuple[Entry, ...]
    """Entries of which their zone says that nothing is there."""
    unseen: tuple[ProvisionError, ...] = ()
    """One for each question that the cloud did not answer: CleanupFailed where something may bill
    that nobody wants."""


def survey(
    means: Means,
    is_owner: Callable[[str], bool],
    entries: Sequence[Entry],
    busy: Iterable[str] = (),
) -> Survey:
    """Compare the cloud with `entries`, the open ones of every journal; names in `busy` are worked on by a living run.

    Read-only. Operations that a killed run began are waited for first, all of them at once, so that
    nothing appears behind our back. `is_owner` tells from a value of the owner label whether the
    thing is ours. A refusal ends one question and not the survey; only where the VMs cannot be
    listed is there nothing to compare, and CloudError is raised.
    """
    cloud, names = means.cloud, set(busy)
    own = [entry for entry in entries if entry.name not in names and is_owner(_owner_of(entry))]
    waits = ends(
        [entry for entry in own if entry.state in _ASKED_FOR],
        lambda entry: cloud.ended(entry.zone, entry.request_id),
    )
    listing = cloud.listing({body.OWNER_LABEL: ANY})
    labelled = listing.vms
    absent = ends(
        [entry for entry in own if not any(_is_vm_of(entry, vm) for vm in labelled)],
        lambda entry: cloud.get(entry.name, entry.zone),
    )
    unlisted = [act.value for act in absent if act.value is not None]
    vms = [vm for vm in (*labelled, *unlisted) if is_owner(vm.labels.get(body.OWNER_LABEL, ""))]
    unseen: list[ProvisionError] = [
        CloudError("its VMs could not be listed", where=each.zone, why=each.why)
        for each in listing.silent
    ]
    now = _now(cloud, vms, unseen)
    strays = [
        stray
        for vm in vms
        if vm.name not in names and (stray := _stray_vm(vm, entries, now)) is not None
    ]
    strays += [
        _stray_disk(disk)
        for disk in _loose_disks(cloud, is_owner, unseen)
        if not _is_wanted(disk, entries, vms, names)
    ]
    unended = {act.item.request_id: act.error for act in waits if act.error is not None}
    settled = []
    for act in absent:
        error = act.error or (unended.get(act.item.request_id) if act.value is None else None)
        if error is not None:
            unseen.append(_unseen(act.item, error))
        elif act.value is None or not _is_vm_of(act.item, act.value):
            settled.append(act.item)
    return Survey(tuple(strays), tuple(settled), tuple(unseen))


def _owner_of(entry: Entry) -> str:
    return str(entry.asked.get("labels", {}).get(body.OWNER_LABEL, ""))


def _is_vm_of(entry: Entry, vm: Vm) -> bool:
    """By its request id, since a VM can be renamed; of one that was made also by its place, since labels can be changed."""
    return is_of(vm, entry.request_id) or (
        entry.state == written.MADE and (vm.name, vm.zone) == (entry.name, entry.zone)
    )


def _now(cloud: ComputeCloud, vms: Sequence[Vm], unseen: list[ProvisionError]) -> datetime | None:
    """The cloud's time, where a VM asks for it: by a clock of ours that is wrong, VMs would be deleted that stopped an hour ago."""
    if not any(vm.status in HALTED and idle.limit_s(vm) is not None for vm in vms):
        return None
    try:
        return cloud.clock()
    except CloudError as error:
        unseen.append(error)
        return None


def _loose_disks(
    cloud: ComputeCloud, is_owner: Callable[[str], bool], unseen: list[ProvisionError]
) -> list[Disk]:
    try:
        found = cloud.disks({body.OWNER_LABEL: ANY})
    except CloudError as error:
        unseen.append(error)
        return []
    return [
        disk for disk in found if not disk.users and is_owner(disk.labels.get(body.OWNER_LABEL, ""))
    ]


def _unseen(entry: Entry, error: ProvisionError) -> ProvisionError:
    """What is said of an entry that could not be looked at: a VM that was made is somebody's, any other may bill for nobody."""
    where = f"{entry.zone}/{entry.name}"
    if entry.state == written.MADE:
        return CloudError(
            "the VM could not be looked at", where=where, why=error.why, fix=error.fix
        )
    what, why = (
        "a VM may be left behind and may bill: it could not be looked at",
        f"{_REASONS[entry.state]}\n{error.why}",
    )
    return CleanupFailed(
        what,
        where=where,
        why=why,
        fix=f"gcloud compute instances describe {entry.name} --zone {entry.zone}",
    )


def _stray_vm(vm: Vm, entries: Sequence[Entry], now: datetime | None) -> Stray | None:
    own = [entry for entry in entries if entry.request_id == vm.labels.get(body.REQUEST_LABEL)]
    named = [entry for entry in entries if (entry.name, entry.zone) == (vm.name, vm.zone)]
    entry = next(iter(own or named), None)
    kind, why = VM, NO_ENTRY if entry is None else _REASONS.get(entry.state)
    if entry is not None and entry.state == written.MADE:
        kind, why = STOPPED, None if now is None else idle.overdue(vm, now)
    if why is None:
        return None
    return Stray(
        kind=kind,
        name=vm.name,
        zone=vm.zone,
        why=why,
        owner=vm.labels[body.OWNER_LABEL],
        created=vm.created,
        vm=vm,
        request_id=entry.request_id if entry is not None else "",
    )


def _stray_disk(disk: Disk) -> Stray:
    owner = disk.labels[body.OWNER_LABEL]
    return Stray(
        kind=DISK, name=disk.name, zone=disk.zone, why=UNATTACHED, owner=owner, created=disk.created
    )


def _is_wanted(disk: Disk, entries: Sequence[Entry], vms: Sequence[Vm], busy: set[str]) -> bool:
    """The VM that it was made for exists and belongs to somebody, or is being made or removed right now."""
    request = disk.labels.get(body.REQUEST_LABEL)
    of = [entry for entry in entries if entry.request_id == request]
    there = {vm.labels.get(body.REQUEST_LABEL) for vm in vms}
    return any(
        entry.name in busy or (entry.state == written.MADE and request in there) for entry in of
    )


def remove(means: Means, stray: Stray) -> bool:
    """Remove a stray and wait until it is gone; False when it is left alone, and why is told.

    It is looked at once more: between the survey and the answer of whoever was asked, minutes may
    have passed. Raises CleanupFailed when it may go on billing.
    """
    try:
        return _remove_disk(means, stray) if stray.kind == DISK else _remove_vm(means, stray)
    except CloudError as error:
        if stray.kind == VM and stray.request_id:
            means.journal.mark(stray.request_id, written.LEFT_BEHIND, error.why)
        noun = {
            VM: "the VM may be left behind",
            STOPPED: "the stopped VM was not deleted",
            DISK: "the disk may be left behind",
        }[stray.kind]
        raised = left_behind(f"{noun} and may bill", stray.name, stray.zone, error)
        if stray.kind == DISK:
            raised.fix = f"gcloud compute disks delete {stray.name} --zone {stray.zone}"
        raise raised from error


def _remove_vm(means: Means, stray: Stray) -> bool:
    """Of a VM that was only stopped for long no deletion is written down before it happened.

    A run that is killed in between leaves a VM that is as it was, and that somebody may start
    again: an open deletion would be made up for by the next command.
    """
    vm = means.cloud.get(stray.name, stray.zone)
    changed = _changed(stray, vm)
    if changed is not None:
        means.note(f"{stray.name} in {stray.zone} {changed}: nothing was deleted")
        return False
    if stray.kind == VM and stray.request_id:
        means.journal.mark(stray.request_id, written.DELETING)
    removed = means.cloud.delete(stray.name, stray.zone, request_id=means.new_id())
    if stray.request_id:
        means.journal.mark(stray.request_id, written.GONE)
    return removed


def _changed(stray: Stray, vm: Vm | None) -> str | None:
    """What has become of the VM since the survey, where it is no longer what was found there."""
    if vm is None:
        return "is gone already"
    if (
        stray.vm is None
        or vm.instance_id != stray.vm.instance_id
        or vm.labels.get(body.OWNER_LABEL) != stray.owner
    ):
        return "is another one by now"
    if stray.kind != STOPPED:
        return None
    if vm.status not in HALTED or vm.stopped != stray.vm.stopped:
        return f"was started meanwhile and is {vm.status}"
    return (
        None
        if idle.limit_s(vm) == idle.limit_s(stray.vm)
        else "no longer asks for it by its labels"
    )


def _remove_disk(means: Means, stray: Stray) -> bool:
    now = [
        disk
        for disk in means.cloud.disks({body.OWNER_LABEL: stray.owner})
        if (disk.name, disk.zone) == (stray.name, stray.zone)
    ]
    if not now or now[0].users or now[0].created != stray.created:
        means.note(
            f"the disk {stray.name} in {stray.zone} is {'gone' if not now else 'in use or another one'} by now: nothing was deleted"
        )
        return False
    return means.cloud.delete_disk(stray.name, stray.zone, request_id=means.new_id())
