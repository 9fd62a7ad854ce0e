"""`vm.list`: the VMs that this project created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.documents import vm_document
from provision.commands.vm.shared.idle_notes import note_idle_vms
from provision.core.model import Note
from provision.project.owned_vms import list_vms_from_cloud, unfinished_vm_lines
from provision.project.project import Project
from provision.report.table import format_table, or_dash, span_or_dash, usd_or_unknown


def vm_list(project: Project) -> TaskResult:
    """Return the VMs over all zones; print what earlier runs did not finish."""
    cloud, prices = project.connect_cloud(), project.price_list
    for line in unfinished_vm_lines(project):
        project.emit(Note(line))
    vms = list_vms_from_cloud(project, cloud).vms
    note_idle_vms(project, vms)
    rows = [vm_document(vm, prices) for vm in vms]
    return TaskResult({"vms": rows}, text=vm_table(rows) if rows else "no VMs")


def vm_table(vms: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each VM document."""
    head = ("name", "status", "zone", "gpu", "age", "cost", "ttl left")
    rows = [
        (
            vm["name"],
            vm["status"],
            or_dash(vm["zone"]),
            or_dash(vm["gpu"]),
            span_or_dash(vm["age_s"]),
            usd_or_unknown(vm["cost_usd"]),
            span_or_dash(vm["ttl_left_s"]),
        )
        for vm in vms
    ]
    return format_table([head, *rows], right=(5,))
