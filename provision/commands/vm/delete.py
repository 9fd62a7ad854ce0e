"""`vm.delete`: VMs and their disks deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.lifecycle.batch import run_each
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.delete import delete_vms_by_name
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.documents import vm_document
from provision.commands.vm.shared.selection import (
    fetch_selected_vms,
    is_pattern,
    parse_vm_names,
)
from provision.core.errors import UsageError, worst_exit
from provision.core.model import Vm
from provision.project.owned_vms import check_cloud_for_other_owner
from provision.project.project import Project
from provision.project.records import key_alias

Confirm = Callable[[str], bool]


def vm_delete(project: Project, name: str, *, yes: bool, confirm: Confirm | None) -> TaskResult:
    """Delete VMs and their disks, after confirmation. A host of the settings is left alone.

    Raises `UsageError` when the user did not confirm, and as `fetch_selected_vms`.
    """
    if name in project.settings.hosts:
        text = f"{name} is a host of the settings: nothing to delete"
        return TaskResult({"deleted": [], "changed": False}, text=text)
    cloud = project.connect_cloud()
    names = _fetch_selected_names(project, cloud, name)
    if not yes:
        _require_confirmation(project, names, confirm)
    acts = run_each(names, lambda vm_name: _delete(project, cloud, vm_name))
    deleted = [vm for act in acts for vm in act.value or ()]
    errors = tuple(act.error for act in acts if act.error is not None)
    document = {"deleted": [vm_document(vm) for vm in deleted], "changed": bool(deleted)}
    if errors:
        document["error"] = errors[0].as_dict()
    lines = [_line(act.item, act.value) for act in acts if act.value is not None]
    code = worst_exit([error.exit_code for error in errors])
    return TaskResult(document, code, "\n".join(lines), errors)


def _fetch_selected_names(project: Project, cloud: ComputeCloud, text: str) -> list[str]:
    """The names in `--name`; the cloud is asked for patterns only.

    A plain name is not looked up, since the cloud may not show what a failed run left of it.
    """
    names = parse_vm_names(project, text)
    if not any(is_pattern(name) for name in names):
        return names
    return [vm.name for vm in fetch_selected_vms(project, cloud, text, "delete")]


def _require_confirmation(project: Project, names: Sequence[str], confirm: Confirm | None) -> None:
    listed = ", ".join(names)
    question = (
        f"Delete the VM {listed} and its disk?"
        if len(names) == 1
        else f"Delete {len(names)} VMs and their disks: {listed}?"
    )
    if confirm is not None and confirm(question):
        return
    raise UsageError(
        f"{listed} {'was' if len(names) == 1 else 'were'} not deleted",
        why="there is no terminal to ask on" if confirm is None else "the answer was no",
        fix=f"{project.program_argv0} vm.delete --name {','.join(names)} --yes",
    )


def _delete(project: Project, cloud: ComputeCloud, name: str) -> list[Vm]:
    """Delete the VMs of this name in every zone, with their record and their pinned keys."""
    context = CloudContext(cloud=cloud, journal=project.journal, emit=project.emit)
    deleted = delete_vms_by_name(context, name, project.ensure_owner())
    if not deleted:
        check_cloud_for_other_owner(project, cloud, name, "delete")
    project.records.remove(name)
    for vm in deleted:
        project.known_hosts.forget(key_alias(vm.instance_id))
    return deleted


def _line(name: str, deleted: Sequence[Vm]) -> str:
    if not deleted:
        return f"there is no VM named {name}"
    return f"deleted {name} ({', '.join(vm.zone for vm in deleted)})"
