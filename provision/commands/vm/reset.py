"""`vm.reset`: running VMs reset."""

from __future__ import annotations

from provision.cloud.lifecycle.batch import run_each
from provision.cloud.lifecycle.context import new_request_id
from provision.cloud.lifecycle.vm_states import TRANSITIONAL_STATES
from provision.cloud.lifecycle.waiting import wait_while
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.boot import verify_booted_vms
from provision.commands.vm.shared.changes import Change
from provision.commands.vm.shared.selection import fetch_selected_vms
from provision.commands.vm.shared.wait_for_ssh import WaitLimits
from provision.core.errors import CloudError
from provision.core.model import Note, Vm
from provision.project.project import Project


def vm_reset(project: Project, name: str, *, limits: WaitLimits | None = None) -> TaskResult:
    """Reset running VMs, wait for SSH, and verify what the boot restored.

    Like the reset button, without a shutdown. Raises as `fetch_selected_vms`, and for a single VM
    its error; a VM that does not run has one.
    """
    cloud = project.connect_cloud()

    def reset(vm: Vm) -> Change:
        vm = wait_while(cloud, vm, TRANSITIONAL_STATES)
        if vm.status != "RUNNING":
            raise CloudError(
                "only a VM that runs can be reset",
                where=f"{vm.zone}/{vm.name}",
                why=f"it is {vm.status}",
                fix=f"{project.program_argv0} vm.start --name {vm.name}",
            )
        project.emit(Note(f"resetting {vm.name} in {vm.zone}"))
        return cloud.reset(vm.name, vm.zone, request_id=new_request_id()), True

    vms = fetch_selected_vms(project, cloud, name, "reset")
    return verify_booted_vms(project, cloud, run_each(vms, reset), limits, "vm.reset")
