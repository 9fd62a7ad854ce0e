"""`inventory.list`: every host as it is now."""

from __future__ import annotations

from collections.abc import Sequence

from provision.commands.inventory.shared.facts import machine_document, user_labels
from provision.commands.shared.result import TaskResult
from provision.hosts.limit_patterns import EVERYTHING
from provision.project import inventory
from provision.project.inventory import Machine
from provision.project.project import Project
from provision.report.table import format_table

_HEAD = ("name", "state", "gpu", "zone", "machine type", "address", "labels")


def inventory_list(project: Project, limit: str | None = None) -> TaskResult:
    """Return every host, or those that the pattern selects, and the VMs that the cloud hides.

    Raises as `Inventory.matching`.
    """
    everything = inventory.fetch_inventory(project)
    machines = everything.matching(project, EVERYTHING if limit is None else limit)
    hidden = [{"name": vm.name or None, "zone": vm.zone, "why": vm.why} for vm in everything.hidden]
    empty = "no hosts that the cloud described" if hidden else "no hosts"
    return TaskResult(
        {"hosts": [machine_document(machine) for machine in machines], "hidden": hidden},
        text=_table(machines) if machines else empty,
    )


def _table(machines: Sequence[Machine]) -> str:
    return format_table([_HEAD, *map(_row, machines)], width=0)


def _row(machine: Machine) -> tuple[str, ...]:
    gpu = f"{machine.gpu_count} x {machine.gpu}" if machine.gpu_count > 1 else machine.gpu
    cells = (
        machine.host.name,
        machine.state,
        gpu,
        machine.zone,
        machine.machine_type,
        machine.host.address,
        ",".join(f"{key}={value}" for key, value in user_labels(machine)),
    )
    return tuple(cell or "-" for cell in cells)
