"""`vm.serial`: the output of a VM's serial port."""

from __future__ import annotations

from provision.cloud.api.protocol import ComputeCloud, SerialOutput
from provision.cloud.lifecycle.vm_states import STOPPED_STATES
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.clock import Clock
from provision.commands.vm.shared.selection import parse_one_vm_name
from provision.core.errors import CloudNotFound
from provision.core.model import Note, Vm
from provision.project.owned_vms import fetch_vm
from provision.project.project import Project
from provision.report.text import clean

PAUSE_S = 1.0
"""Between two requests while following."""


def vm_serial(
    project: Project, name: str, *, follow: bool = False, clock: Clock | None = None
) -> TaskResult:
    """Return the last 1 MB of the serial output; with `follow` stream it until the VM stops.

    Terminal control sequences (colours, cleared screens of the firmware) are removed. Raises as
    `fetch_vm`.
    """
    cloud = project.connect_cloud()
    vm = fetch_vm(project, cloud, parse_one_vm_name(project, name))
    place = {"name": vm.name, "zone": vm.zone}
    if follow:
        return TaskResult({**place, "next": _follow(project, cloud, vm, clock or Clock())})
    output = cloud.serial_output(vm.name, vm.zone)
    text = "\n".join(clean(line) for line in output.text.splitlines())
    return TaskResult({**place, "text": text, "next": output.next}, text=text)


def _follow(project: Project, cloud: ComputeCloud, vm: Vm, clock: Clock) -> int:
    """Write the output until the VM stops or is gone; return the position of its end in bytes."""
    position, unfinished = 0, ""
    while True:
        output = _read(cloud, vm, position)
        if output.lost and position:  # what is lost before the first read, every reader misses
            unfinished += "\n" if unfinished else ""
            project.emit(
                Note(f"{output.lost} bytes are lost: more was printed at once than the cloud keeps")
            )
        position = output.next
        *lines, unfinished = (unfinished + output.text).split("\n")
        project.stdout("".join(f"{clean(line)}\n" for line in lines).encode())
        if not output.text and _fetch_status(cloud, vm) in {*STOPPED_STATES, None}:
            project.stdout(f"{clean(unfinished)}\n".encode() if unfinished else b"")
            return position
        clock.sleep(PAUSE_S)


def _read(cloud: ComputeCloud, vm: Vm, position: int) -> SerialOutput:
    try:
        return cloud.serial_output(vm.name, vm.zone, start=position)
    except CloudNotFound:
        return SerialOutput("", position)


def _fetch_status(cloud: ComputeCloud, vm: Vm) -> str | None:
    """The VM's status; None when it is gone."""
    current = cloud.get(vm.name, vm.zone)
    return None if current is None else current.status
