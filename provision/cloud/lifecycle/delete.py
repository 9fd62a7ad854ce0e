"""Deletes owned VMs and waits until they are gone; refuses VMs of other owners."""

from __future__ import annotations

from provision.cloud.api.labels import OWNER_LABEL, is_owned_by
from provision.cloud.lifecycle.context import CloudContext, left_behind_error, name_taken_error
from provision.cloud.lifecycle.journal import DELETING, GONE, LEFT_BEHIND
from provision.cloud.lifecycle.recovery import fetch_unlisted_vms, recover_vms
from provision.core.errors import CloudError
from provision.core.model import Vm


def delete_vm(context: CloudContext, name: str, zone: str, owner: str) -> bool:
    """Delete the VM and its boot disk and wait until it is gone; False when there was none.

    Raises `CloudRefused` for a VM of another owner, and `CleanupFailed` when the deletion failed:
    the VM goes on billing.
    """
    vm = context.cloud.get(name, zone)
    if vm is None:
        context.journal.mark_name(name, zone, GONE)
        return False
    if not is_owned_by(vm, owner):
        raise name_taken_error(vm)
    context.journal.mark_name(name, zone, DELETING)
    try:
        context.cloud.delete(name, zone, request_id=context.new_id())
    except CloudError as error:
        context.journal.mark_name(name, zone, LEFT_BEHIND, error.why)
        what = "the VM may be left behind and may bill"
        raise left_behind_error(what, name, zone, error) from error
    context.journal.mark_name(name, zone, GONE)
    return True


def delete_vms_by_name(context: CloudContext, name: str, owner: str) -> list[Vm]:
    """Delete the owner's VMs of this name in all zones; return those that were deleted.

    Inserts of killed runs that are still under way are waited for, so that their VM does not
    appear afterwards. Raises what `delete_vm` raises.
    """
    with context.journal.claim(name, context.note):
        recovered = recover_vms(context, name)
        listed = [vm for vm in context.cloud.list({OWNER_LABEL: owner}) if vm.name == name]
        unlisted = fetch_unlisted_vms(context, name, listed)
        by_zone = {vm.zone: vm for vm in (*unlisted, *recovered, *listed) if is_owned_by(vm, owner)}
        return [vm for zone, vm in sorted(by_zone.items()) if delete_vm(context, name, zone, owner)]
