"""Recovery of what killed runs left in the journal: a VM that was asked for, or half deleted."""

from __future__ import annotations

from collections.abc import Sequence

from provision.cloud.api.labels import REQUEST_LABEL
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.insert import clean_up_insert, is_made_by
from provision.cloud.lifecycle.journal import DELETING, GONE, LEFT_BEHIND, MADE, Entry
from provision.cloud.lifecycle.vm_states import PENDING
from provision.core.model import Vm


def recover_vms(context: CloudContext, name: str) -> list[Vm]:
    """Return the VMs that killed runs asked for under this name, and update the journal."""
    unfinished = [entry for entry in _open_entries(context, name) if entry.state != MADE]
    return [vm for entry in unfinished if (vm := recover_entry(context, entry)) is not None]


def fetch_unlisted_vms(context: CloudContext, name: str, listed: Sequence[Vm]) -> list[Vm]:
    """Return VMs that the journal calls made and the list lacks; each costs a request."""
    zones = {vm.zone for vm in listed}
    unlisted = [
        entry
        for entry in _open_entries(context, name)
        if entry.state == MADE and entry.zone not in zones
    ]
    return [vm for entry in unlisted if (vm := recover_entry(context, entry)) is not None]


def recover_entry(context: CloudContext, entry: Entry) -> Vm | None:
    """Find out what became of an open entry of an earlier run; return its VM, or None.

    Waits for an insert that is under way, and repeats a deletion that was begun or that failed;
    the journal has the result.
    """
    if entry.state == MADE:
        return _recover_made(context, entry)
    if entry.state in (DELETING, LEFT_BEHIND):
        context.note(
            f"{entry.name} in {entry.zone}: "
            "an earlier run had begun to delete it; it is deleted now"
        )
        clean_up_insert(context, entry.name, entry.zone, entry.request_id, if_absent=GONE)
        return None
    context.cloud.operation_result(entry.zone, entry.request_id)
    vm = context.cloud.get(entry.name, entry.zone)
    if vm is None or not is_made_by(vm, entry.request_id):
        context.journal.mark(entry.request_id, GONE)
        return None
    if vm.status != PENDING:  # a VM that waits for capacity may be removed by the cloud
        context.journal.mark(entry.request_id, MADE)
    return vm


def _recover_made(context: CloudContext, entry: Entry) -> Vm | None:
    vm = context.cloud.get(entry.name, entry.zone)
    # A VM can be renamed while it is stopped: it keeps its request label.
    if vm is None and not context.cloud.list({REQUEST_LABEL: entry.request_id}):
        context.journal.mark(entry.request_id, GONE)
    return vm


def _open_entries(context: CloudContext, name: str) -> list[Entry]:
    return [entry for entry in context.journal.open() if entry.name == name]
