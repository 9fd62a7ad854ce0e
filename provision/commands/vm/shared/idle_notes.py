"""Notes on VMs that are stopped for longer than `idle_delete` allows."""

from __future__ import annotations

from collections.abc import Sequence

from provision.cloud.api.labels import IDLE_DELETE_LABEL
from provision.cloud.lifecycle import idle_delete
from provision.cloud.lifecycle.vm_times import cloud_time, seconds_since
from provision.core.model import Note, Vm
from provision.project.project import Project
from provision.report.table import span_or_dash


def note_idle_vms(project: Project, vms: Sequence[Vm]) -> None:
    """Print which VMs are overdue for deletion, and which ones no `vm.gc` will ever delete.

    The latter have a label `idle_delete` that is invalid, or were created without one and are
    stopped for longer than the setting allows.
    """
    _note_overdue(project, vms)
    _note_invalid_labels(project, vms)
    _note_without_label(project, vms)


def overdue_vms(vms: Sequence[Vm]) -> list[tuple[Vm, str]]:
    """Return the VMs that are stopped for longer than their label allows, each with the reason."""
    reasons = ((vm, idle_delete.deletion_reason(vm, cloud_time(vm.ahead_s))) for vm in vms)
    return [(vm, reason) for vm, reason in reasons if reason is not None]


def unlabelled_idle_vms(vms: Sequence[Vm], limit_s: int | None) -> list[Vm]:
    """Return the VMs without the label that are stopped for `limit_s` seconds or longer."""
    if limit_s is None:
        return []
    return [
        vm
        for vm in vms
        if IDLE_DELETE_LABEL not in vm.labels
        and (stopped_s := idle_delete.seconds_stopped(vm, cloud_time(vm.ahead_s))) is not None
        and stopped_s >= limit_s
    ]


def _note_overdue(project: Project, vms: Sequence[Vm]) -> None:
    overdue = ", ".join(f"{vm.name} ({reason})" for vm, reason in overdue_vms(vms))
    if overdue:
        project.emit(
            Note(f"overdue for deletion: {overdue}; delete with `{project.program_argv0} vm.gc`")
        )


def _note_invalid_labels(project: Project, vms: Sequence[Vm]) -> None:
    key = IDLE_DELETE_LABEL
    for vm in vms:
        value = vm.labels.get(key, "none")
        if value == "none" or idle_delete.limit_s(vm) is not None:
            continue
        remedy = f"`{project.program_argv0} vm.label {key}=7d --name {vm.name}`"
        project.emit(
            Note(
                f"{vm.name}: its label {key} is {value!r}, which is not a time: "
                f"no vm.gc deletes it; {remedy}"
            )
        )


def _note_without_label(project: Project, vms: Sequence[Vm]) -> None:
    key = IDLE_DELETE_LABEL
    idle_vms = unlabelled_idle_vms(vms, project.settings.idle_delete_s)
    if not idle_vms:
        return
    ages = ", ".join(
        f"{vm.name} ({span_or_dash(seconds_since(vm.stopped, vm.ahead_s))})" for vm in idle_vms
    )
    wanted, names = project.settings.idle_delete, ",".join(vm.name for vm in idle_vms)
    remedy = f"`{project.program_argv0} vm.label {key}={wanted} --name {names}`"
    project.emit(
        Note(
            f"stopped for longer than idle_delete ({wanted}), and created without it: "
            f"{ages}; {remedy}"
        )
    )
