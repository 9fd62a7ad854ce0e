"""`vm.stop`: VMs stopped."""

from __future__ import annotations

from provision.cloud.lifecycle.batch import run_each
from provision.cloud.lifecycle.context import new_request_id
from provision.cloud.lifecycle.vm_states import STOPPED_STATES, STOPPING_STATES
from provision.cloud.lifecycle.waiting import wait_while
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.changes import Change, changes_result
from provision.commands.vm.shared.selection import fetch_selected_vms
from provision.core.model import Note, Vm
from provision.project.project import Project


def vm_stop(project: Project, name: str) -> TaskResult:
    """Stop VMs: vCPUs, memory and GPU stop billing, the disk stays and bills.

    A stopped VM is left alone. Raises as `fetch_selected_vms`, and for a single VM its error.
    """
    cloud = project.connect_cloud()

    def stop(vm: Vm) -> Change:
        vm = wait_while(cloud, vm, STOPPING_STATES)
        if vm.status in STOPPED_STATES:
            return vm, False
        project.emit(Note(f"stopping {vm.name} in {vm.zone}"))
        return cloud.stop(vm.name, vm.zone, request_id=new_request_id()), True

    vms = fetch_selected_vms(project, cloud, name, "stop")
    return changes_result(run_each(vms, stop), _line)


def _line(vm: Vm, changed: bool) -> str:
    state = "is stopped" if changed else "was stopped already"
    return f"{vm.name} {state}; its disk of {vm.disk_gb} GB stays and bills"
