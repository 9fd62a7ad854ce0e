"""What carries our labels and belongs to nobody: found by comparing the cloud with the journals, removed one by one.

A VM belongs to somebody while a journal of this machine says that it was made; a disk while the VM it was made for does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from provision.cloud import body
from provision.cloud import journal as written
from provision.cloud.journal import Entry
from provision.cloud.means import Means, left_behind
from provision.cloud.ports import ANY, Disk
from provision.errors import CloudError
from provision.model import Vm

VM, DISK = "vm", "disk"
_REASONS = {
    written.INTENT: "a run that ended early asked for it",
    written.UNSURE: "it was asked for, and the answer was lost",
    written.DELETING: "its deletion was begun and not seen to end",
    written.LEFT_BEHIND: "its deletion failed",
}
NO_ENTRY = "no journal of this machine names it"
UNATTACHED = "it is attached to no VM"


@dataclass(frozen=True, kw_only=True)
class Stray:
    """A VM or a disk of ours that nobody owns, and why it is taken for one. `created` is a timestamp of the API."""

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
        return {"kind": self.kind, "name": self.name, "zone": self.zone, "why": self.why, "owner": self.owner, "created": self.created}


@dataclass(frozen=True)
class Survey:
    """What was found: strays, and entries of which the list shows nothing."""

    strays: tuple[Stray, ...]
    settled: tuple[Entry, ...]
    """To be asked for by name (`settle`): a zone that does not answer is missing in the list, and its VMs run on."""


def survey(means: Means, is_owner: Callable[[str], bool], entries: Sequence[Entry], busy: Iterable[str] = ()) -> Survey:
    """Compare the cloud with `entries`, the open ones of every journal; names in `busy` are worked on by a living run.

    Read-only. Operations that a killed run began are waited for first, so that nothing appears behind our back.
    `is_owner` tells from a value of the owner label whether the thing is ours.
    """
    at_rest = [entry for entry in entries if entry.name not in set(busy)]
    for entry in at_rest:
        if entry.state in (written.INTENT, written.UNSURE):
            means.cloud.ended(entry.zone, entry.request_id)
    vms = [vm for vm in means.cloud.list({body.OWNER_LABEL: ANY}) if is_owner(vm.labels.get(body.OWNER_LABEL, ""))]
    disks = [disk for disk in means.cloud.disks({body.OWNER_LABEL: ANY}) if is_owner(disk.labels.get(body.OWNER_LABEL, ""))]
    strays = [stray for vm in vms if vm.name not in set(busy) and (stray := _stray_vm(vm, entries)) is not None]
    strays += [_stray_disk(disk) for disk in disks if not disk.users and not _is_wanted(disk, entries, vms, set(busy))]
    there = {(vm.name, vm.zone) for vm in vms}
    return Survey(tuple(strays), tuple(entry for entry in at_rest if (entry.name, entry.zone) not in there))


def settle(means: Means, entries: Iterable[Entry]) -> None:
    """Write down as gone the entries of which their zone says that nothing is there; one that does not answer settles nothing."""
    for entry in entries:
        with suppress(CloudError):
            if means.cloud.get(entry.name, entry.zone) is None:
                means.journal.mark(entry.request_id, written.GONE)


def _stray_vm(vm: Vm, entries: Sequence[Entry]) -> Stray | None:
    own = [entry for entry in entries if entry.request_id == vm.labels.get(body.REQUEST_LABEL)]
    named = [entry for entry in entries if (entry.name, entry.zone) == (vm.name, vm.zone)]
    entry = next(iter(own or named), None)
    if entry is not None and entry.state == written.MADE:
        return None
    return Stray(
        kind=VM,
        name=vm.name,
        zone=vm.zone,
        why=NO_ENTRY if entry is None else _REASONS[entry.state],
        owner=vm.labels[body.OWNER_LABEL],
        created=vm.created,
        vm=vm,
        request_id=entry.request_id if entry is not None else "",
    )


def _stray_disk(disk: Disk) -> Stray:
    owner = disk.labels[body.OWNER_LABEL]
    return Stray(kind=DISK, name=disk.name, zone=disk.zone, why=UNATTACHED, owner=owner, created=disk.created)


def _is_wanted(disk: Disk, entries: Sequence[Entry], vms: Sequence[Vm], busy: set[str]) -> bool:
    """The VM that it was made for exists and belongs to somebody, or is being made or removed right now."""
    request = disk.labels.get(body.REQUEST_LABEL)
    of = [entry for entry in entries if entry.request_id == request]
    there = {vm.labels.get(body.REQUEST_LABEL) for vm in vms}
    return any(entry.name in busy or (entry.state == written.MADE and request in there) for entry in of)


def remove(means: Means, stray: Stray) -> bool:
    """Remove a stray and wait until it is gone; False when it is no longer there, or no longer the same.

    It is looked at once more: between the survey and the answer of whoever was asked, minutes may have passed. Raises
    CleanupFailed when it may go on billing.
    """
    try:
        return _remove_vm(means, stray) if stray.kind == VM else _remove_disk(means, stray)
    except CloudError as error:
        if stray.request_id:
            means.journal.mark(stray.request_id, written.LEFT_BEHIND, error.why)
        noun = "the VM" if stray.kind == VM else "the disk"
        raised = left_behind(f"{noun} may be left behind and may bill", stray.name, stray.zone, error)
        if stray.kind == DISK:
            raised.fix = f"gcloud compute disks delete {stray.name} --zone {stray.zone}"
        raise raised from error


def _remove_vm(means: Means, stray: Stray) -> bool:
    vm = means.cloud.get(stray.name, stray.zone)
    if vm is None or stray.vm is None or vm.instance_id != stray.vm.instance_id or vm.labels.get(body.OWNER_LABEL) != stray.owner:
        return False
    if stray.request_id:
        means.journal.mark(stray.request_id, written.DELETING)
    removed = means.cloud.delete(stray.name, stray.zone, request_id=means.new_id())
    if stray.request_id:
        means.journal.mark(stray.request_id, written.GONE)
    return removed


def _remove_disk(means: Means, stray: Stray) -> bool:
    now = [disk for disk in means.cloud.disks({body.OWNER_LABEL: stray.owner}) if (disk.name, disk.zone) == (stray.name, stray.zone)]
    if not now or now[0].users or now[0].created != stray.created:
        return False
    return means.cloud.delete_disk(stray.name, stray.zone, request_id=means.new_id())
