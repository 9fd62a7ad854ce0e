"""VMs in the cloud: listed, shown, deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from provision.cloud.api.ports import ComputeCloud
from provision.cloud.lifecycle.create import delete_vm
from provision.cloud.lifecycle.many import each
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.documents import (
    document,
    listed,
    say_overdue,
    static_document,
    table,
)
from provision.commands.vm.shared.selection import chosen, is_pattern, names_of, one_of
from provision.core.errors import UsageError, worst_exit
from provision.core.model import Note, Vm
from provision.project.owned_vms import (
    check_cloud_for_other_owner,
    fetch_vm,
    list_vms_from_cloud,
    unfinished_vm_lines,
)
from provision.project.project import Project
from provision.project.records import key_alias


def vm_list(project: Project) -> TaskResult:
    """The VMs that this project made, over all zones; what a run that ended early may have left is named beside them."""
    cloud, prices = project.connect_cloud(), project.price_list
    for line in unfinished_vm_lines(project):
        project.emit(Note(line))
    found = list_vms_from_cloud(project, cloud).vms
    say_overdue(project, found)
    vms = [document(vm, prices) for vm in found]
    return TaskResult({"vms": vms}, text=table(vms) if vms else "no VMs")


def vm_show(project: Project, name: str) -> TaskResult:
    """One VM as the cloud describes it, or a host as the settings do."""
    if name in project.settings.hosts:
        shown = static_document(project, name)
    else:
        vm = fetch_vm(project, project.connect_cloud(), one_of(project, name))
        shown = {
            **document(vm, project.price_list),
            "image": vm.image,
            "labels": dict(vm.labels),
            "created": vm.created,
        }
    return TaskResult({"vm": shown}, text=listed(shown))


def vm_delete(
    project: Project, name: str, *, yes: bool, confirm: Callable[[str], bool] | None
) -> TaskResult:
    """Delete VMs and their disks, after asking. A host of the settings is not ours to delete: nothing happens."""
    if name in project.settings.hosts:
        return TaskResult(
            {"deleted": [], "changed": False},
            text=f"{name} is a host of the settings: nothing to delete",
        )
    cloud = project.connect_cloud()
    names = _named(project, cloud, name)
    question = (
        f"Delete the VM {names[0]} and its disk?"
        if len(names) == 1
        else f"Delete {len(names)} VMs and their disks: {', '.join(names)}?"
    )
    if not yes and (confirm is None or not confirm(question)):
        why = "there is no terminal to ask on" if confirm is None else "the answer was no"
        fix = f"{project.program_argv0} vm.delete --name {','.join(names)} --yes"
        raise UsageError(
            f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} not deleted",
            why=why,
            fix=fix,
        )
    acts = each(names, lambda each_name: _deleted(project, cloud, each_name))
    removed = [vm for act in acts for vm in act.value or ()]
    errors = tuple(act.error for act in acts if act.error is not None)
    lines = [_says(act.item, act.value) for act in acts if act.value is not None]
    failed = {"error": errors[0].as_dict()} if errors else {}
    document_ = {"deleted": [document(vm) for vm in removed], "changed": bool(removed), **failed}
    return TaskResult(
        document_, worst_exit([error.exit_code for error in errors]), "\n".join(lines), errors
    )


def _named(project: Project, cloud: ComputeCloud, name: str) -> list[str]:
    """The names that `--name` means; only patterns are looked up, since a name may be left over of which the cloud shows nothing."""
    names = names_of(project, name)
    if not any(is_pattern(each_name) for each_name in names):
        return names
    return [vm.name for vm in chosen(project, cloud, name, "delete")]


def _deleted(project: Project, cloud: ComputeCloud, name: str) -> list[Vm]:
    owner = project.ensure_owner()
    removed = delete_vm(cloud, name, owner, project.journal, project.emit)
    if not removed:
        check_cloud_for_other_owner(project, cloud, name, "delete")
    project.records.remove(name)
    for vm in removed:
        project.known_hosts.forget(key_alias(vm.instance_id))
    return removed


def _says(name: str, removed: Sequence[Vm]) -> str:
    return (
        f"deleted {name} ({', '.join(vm.zone for vm in removed)})"
        if removed
        else f"there is no VM named {name}"
    )
