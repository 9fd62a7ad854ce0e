"""VMs of the requested name that exist already: compared with the spec, and kept."""

from __future__ import annotations

from collections.abc import Sequence

from provision.cloud.api.labels import IDLE_DELETE_LABEL, OWNER_LABEL
from provision.cloud.api.resources import differences
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.insert import delete_unwanted, mark_made
from provision.cloud.lifecycle.ttl_extension import start_vm, usual_ttl_s
from provision.cloud.lifecycle.vm_states import PENDING, STOPPED_STATES, STOPPING_STATES
from provision.cloud.lifecycle.waiting import wait_for_capacity, wait_while
from provision.cloud.refusal import CloudRefused
from provision.core.durations import exact
from provision.core.errors import CloudError
from provision.core.model import Vm, VmSpec


def keep_one_vm(context: CloudContext, existing: Sequence[Vm], recovered: Sequence[Vm]) -> Vm:
    """Return the VM to keep of several with one owner and name; delete the other recovered ones.

    A run that was killed while it asked several zones leaves more than one. VMs that are not in
    `recovered` are noted and stay.
    """
    recovered_ids = {vm.instance_id for vm in recovered}

    def order(vm: Vm) -> tuple[bool, bool, str, str]:
        is_recovered = vm.instance_id in recovered_ids
        return is_recovered, vm.status in STOPPED_STATES, vm.created, vm.zone

    chosen, *others = sorted(existing, key=order)
    for vm in others:
        if vm.instance_id in recovered_ids:
            zones = f"{vm.name} was made in {chosen.zone} and in {vm.zone}"
            context.note(f"{zones}: the one in {vm.zone} is deleted")
            delete_unwanted(context, vm)
        else:
            context.note(f"{vm.name} exists in {vm.zone} too and bills")
    return chosen


def wait_if_pending(context: CloudContext, spec: VmSpec, vm: Vm) -> Vm:
    """Return the VM of an interrupted run, once it has capacity.

    Without capacity in time it is deleted, and `CloudRefused` (CAPACITY_WAIT_EXPIRED) is raised.
    """
    if vm.status != PENDING:
        return vm
    check_fits(spec, vm)
    try:
        vm = wait_for_capacity(context, vm, spec.request_valid_s or 0)
    except CloudRefused:
        delete_unwanted(context, vm)
        raise
    mark_made(context, vm)
    return vm


def keep_vm(context: CloudContext, spec: VmSpec, vm: Vm) -> tuple[Vm, str, bool]:
    """Return the VM with the labels of `spec` and started, "exists" or "started", and `changed`.

    Raises `CloudError` when the VM has another shape.
    """
    check_fits(spec, vm)
    if (note := time_limit_note(spec, vm)) is not None:
        context.note(note)
    if vm.status in STOPPING_STATES:
        context.note(f"{vm.name} is being stopped in {vm.zone}: waiting for that")
        vm = wait_while(context.cloud, vm, STOPPING_STATES, sleep=context.sleep)
    note = idle_delete_note(spec, vm)
    if note is not None:
        context.note(note)
        vm = _set_idle_delete(context, spec, vm)
    if vm.status not in STOPPED_STATES:
        return vm, "exists", note is not None
    context.note(f"{vm.name} is stopped in {vm.zone}: starting it")
    started = start_vm(context.cloud, vm, context.note, new_id=context.new_id)
    return started, "started", True


def _set_idle_delete(context: CloudContext, spec: VmSpec, vm: Vm) -> Vm:
    wanted = spec.labels.get(IDLE_DELETE_LABEL)
    put = {} if wanted is None else {IDLE_DELETE_LABEL: wanted}
    remove = [IDLE_DELETE_LABEL] if wanted is None else []
    request_id = context.new_id()
    return context.cloud.set_labels(vm.name, vm.zone, put, remove, request_id=request_id)


def check_fits(spec: VmSpec, vm: Vm) -> None:
    """Raise `CloudError` when the VM differs from `spec` in what only a new VM could have."""
    differing = differences(spec, vm)
    if differing:
        raise CloudError(
            "the VM exists with another shape",
            where=f"{vm.zone}/{vm.name}",
            why="; ".join(
                f"{key} is {actual}, asked {asked}" for key, (actual, asked) in differing.items()
            ),
            fix=f"invoke vm.delete --name {vm.name}",
        )


def check_no_namesake(vms: Sequence[Vm], owner: str) -> None:
    """Raise `CloudError` when the same user has a VM of this name under another key.

    A second one would bill beside it. The owner label contains a digest of the project's key,
    which lies in the project's state folder: after a rename of the project folder, or on another
    machine, the user has another key.
    """
    user = owner.rpartition("-")[0]
    same_user = [
        vm for vm in vms if user and vm.labels.get(OWNER_LABEL, "").rpartition("-")[0] == user
    ]
    if not same_user:
        return
    owners = [
        f"{vm.zone}: {vm.status}, label {OWNER_LABEL} is {vm.labels[OWNER_LABEL]!r}"
        for vm in same_user
    ]
    deletions = [f"gcloud compute instances delete {vm.name} --zone {vm.zone}" for vm in same_user]
    name = same_user[0].name
    raise CloudError(
        f"you have a VM named {name} already, made from another project folder or machine",
        where=", ".join(f"{vm.zone}/{vm.name}" for vm in same_user),
        why="\n".join(owners)
        + f"\nours is {owner!r}; it changes when the project folder is moved or renamed",
        fix=f"choose another --name, or {', '.join(deletions)}",
    )


def idle_delete_note(spec: VmSpec, vm: Vm) -> str | None:
    """Return a note when the VM's `idle_delete` is not that of `spec`, which `keep_vm` changes."""
    before = vm.labels.get(IDLE_DELETE_LABEL, "none")
    wanted = spec.labels.get(IDLE_DELETE_LABEL, "none")
    return None if before == wanted else f"{vm.name}: idle_delete is to be {wanted}, is {before}"


def time_limit_note(spec: VmSpec, vm: Vm) -> str | None:
    """Return a note when the VM's usual time limit is shorter than asked for, or missing.

    An extension of one run (`vm.extend`) does not count.
    """
    usual_s = usual_ttl_s(vm)
    if spec.ttl_s is not None and usual_s is None:
        return (
            f"{vm.name} has no time limit, though the settings ask for one: "
            "it bills until it is stopped"
        )
    if usual_s is not None and (spec.ttl_s is None or usual_s < spec.ttl_s):
        return (
            f"{vm.name} keeps its time limit of {exact(usual_s)}, less than the settings ask: "
            "vm.extend gives one run of it more time"
        )
    return None
