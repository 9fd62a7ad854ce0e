"""Deletes one orphan, after a second look: minutes may have passed since it was found."""

from __future__ import annotations

from provision.cloud.api.labels import OWNER_LABEL
from provision.cloud.lifecycle import idle_delete
from provision.cloud.lifecycle.context import CloudContext, left_behind_error
from provision.cloud.lifecycle.journal import DELETING, GONE, LEFT_BEHIND
from provision.cloud.lifecycle.orphans import DISK, STOPPED, VM, Orphan
from provision.cloud.lifecycle.vm_states import STOPPED_STATES
from provision.core.errors import CloudError
from provision.core.model import Vm

_FAILURES = {
    VM: "the VM may be left behind",
    STOPPED: "the stopped VM was not deleted",
    DISK: "the disk may be left behind",
}


def remove_orphan(context: CloudContext, orphan: Orphan) -> bool:
    """Delete a VM or disk and wait until it is gone; False, with a note, when it has changed.

    Raises `CleanupFailed` when it may go on billing.
    """
    try:
        is_disk = orphan.kind == DISK
        return _remove_disk(context, orphan) if is_disk else _remove_vm(context, orphan)
    except CloudError as error:
        if orphan.kind == VM and orphan.request_id:
            context.journal.mark(orphan.request_id, LEFT_BEHIND, error.why)
        what = f"{_FAILURES[orphan.kind]} and may bill"
        failure = left_behind_error(what, orphan.name, orphan.zone, error)
        if orphan.kind == DISK:
            failure.fix = f"gcloud compute disks delete {orphan.name} --zone {orphan.zone}"
        raise failure from error


def _remove_vm(context: CloudContext, orphan: Orphan) -> bool:
    """Delete the VM; for one that was stopped for too long the intent is not journalled.

    A run that is killed before the deletion leaves such a VM as it was, and its user may start it
    again; the next command would carry out an open deletion.
    """
    vm = context.cloud.get(orphan.name, orphan.zone)
    change = _change_since(orphan, vm)
    if change is not None:
        context.note(f"{orphan.name} in {orphan.zone} {change}: nothing was deleted")
        return False
    if orphan.kind == VM and orphan.request_id:
        context.journal.mark(orphan.request_id, DELETING)
    removed = context.cloud.delete(orphan.name, orphan.zone, request_id=context.new_id())
    if orphan.request_id:
        context.journal.mark(orphan.request_id, GONE)
    return removed


def _change_since(orphan: Orphan, vm: Vm | None) -> str | None:
    """Return what has changed since the VM was found; None when it is still to be deleted."""
    before = orphan.vm
    if vm is None:
        return "is gone already"
    if (
        before is None
        or vm.instance_id != before.instance_id
        or vm.labels.get(OWNER_LABEL) != orphan.owner
    ):
        return "is another one by now"
    if orphan.kind != STOPPED:
        return None
    if vm.status not in STOPPED_STATES or vm.stopped != before.stopped:
        return f"was started meanwhile and is {vm.status}"
    if idle_delete.limit_s(vm) != idle_delete.limit_s(before):
        return "no longer asks for it by its labels"
    return None


def _remove_disk(context: CloudContext, orphan: Orphan) -> bool:
    disks = context.cloud.list_disks({OWNER_LABEL: orphan.owner})
    current = [disk for disk in disks if (disk.name, disk.zone) == (orphan.name, orphan.zone)]
    if not current or current[0].users or current[0].created != orphan.created:
        change = "in use or another one" if current else "gone"
        place = f"the disk {orphan.name} in {orphan.zone}"
        context.note(f"{place} is {change} by now: nothing was deleted")
        return False
    return context.cloud.delete_disk(orphan.name, orphan.zone, request_id=context.new_id())
