"""Reports that a VM runs, and bills, after the task that created or started it failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from provision.core.errors import Interrupted, ProvisionError
from provision.core.model import Note, Vm
from provision.project.project import Project


def running_vm_line(project: Project, vm: Vm) -> str:
    """Return that the VM runs, and the commands that continue with it and delete it."""
    state = "runs and bills" if project.bills else "runs"
    create, delete = (
        f"`{project.program_argv0} vm.{verb} --name {vm.name}`" for verb in ("create", "delete")
    )
    return f"{vm.name} {state} in {vm.zone}; {create} continues, {delete} removes it"


def note_running_vms(project: Project, vms: Sequence[Vm]) -> None:
    """Print that the VMs run."""
    for vm in vms:
        project.emit(Note(running_vm_line(project, vm)))


@contextmanager
def reporting_running_vm(project: Project, vm: Vm) -> Iterator[None]:
    """Add a line that the VM runs to every error of the block.

    Raises the block's `ProvisionError`, and `Interrupted` on Ctrl-C.
    """
    try:
        yield
    except ProvisionError as error:
        error.why = "\n".join(filter(None, (error.why, running_vm_line(project, vm))))
        raise
    except KeyboardInterrupt as error:
        fix = f"{project.program_argv0} vm.create --name {vm.name}"
        why = running_vm_line(project, vm)
        raise Interrupted("interrupted", where=vm.name, why=why, fix=fix) from error
