"""`vm.start`: stopped VMs started where their disks are."""

from __future__ import annotations

from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.lifecycle import ttl_extension
from provision.cloud.lifecycle.batch import run_each
from provision.cloud.lifecycle.insert import is_made_by
from provision.cloud.lifecycle.journal import MADE
from provision.cloud.lifecycle.vm_states import STOPPED_STATES, TRANSITIONAL_STATES
from provision.cloud.lifecycle.waiting import fetch_again, wait_while
from provision.cloud.lifecycle.zone_selection import check_start_quotas
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.boot import verify_booted_vms
from provision.commands.vm.shared.changes import Change
from provision.commands.vm.shared.selection import fetch_selected_vms
from provision.commands.vm.shared.wait_for_ssh import WaitLimits
from provision.core.model import Note, Vm
from provision.project.project import Project


def vm_start(project: Project, name: str, *, limits: WaitLimits | None = None) -> TaskResult:
    """Start VMs, wait for SSH, and verify what the boot restored. The time to live starts anew.

    A VM is bound to its zone by its disk: without capacity there, the refusal is the result. Raises
    as `fetch_selected_vms`; `QuotaRefused`, before any is started, when the quota of GPUs is short
    of what several need; and for a single VM its error.
    """
    cloud = project.connect_cloud()
    vms = fetch_selected_vms(project, cloud, name, "start")
    stopped = [vm for vm in vms if vm.status in STOPPED_STATES]
    check_start_quotas(cloud, stopped, lambda text: project.emit(Note(text)))

    def start(vm: Vm) -> Change:
        vm = wait_while(cloud, vm, TRANSITIONAL_STATES)
        return (vm, False) if vm.status == "RUNNING" else _start(project, cloud, vm)

    return verify_booted_vms(project, cloud, run_each(vms, start), limits, "vm.start")


def _start(project: Project, cloud: ComputeCloud, vm: Vm) -> Change:
    """Start the VM under its claim, and mark it as created in the journal.

    The claim keeps every `vm.gc` of this machine from deleting it meanwhile. Without the mark the
    next `vm.create` would complete a deletion that a killed run began, under the VM's user by then.
    False in the result when another run has started it.
    """

    def note(text: str) -> None:
        project.emit(Note(text))

    with project.journal.claim(vm.name, note):
        current = wait_while(cloud, fetch_again(cloud, vm), TRANSITIONAL_STATES)
        if current.status == "RUNNING":
            return current, False
        for entry in project.journal.open():
            if entry.state != MADE and is_made_by(current, entry.request_id):
                project.journal.mark(entry.request_id, MADE)
        note(f"starting {vm.name} in {vm.zone}")
        return ttl_extension.start_vm(cloud, current, note), True
