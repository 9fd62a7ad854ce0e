"""Which VMs a task means, and what is told of them in the end."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

from provision.cloud.api.ports import ComputeCloud
from provision.cloud.lifecycle.many import Act
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.documents import document
from provision.core.errors import UsageError, worst_exit
from provision.core.model import Vm
from provision.project.owned_vms import (
    check_cloud_for_other_owner,
    list_vms_from_cloud,
    unknown_vm_error,
)
from provision.project.project import Project


def names_of(project: Project, text: str) -> list[str]:
    """The names and patterns of `--name a,b-*`. A host of the settings is refused."""
    names = text.replace(",", " ").split()
    if not names:
        raise UsageError(
            "--name names no VM", why="it is empty", fix=f"{project.program_argv0} vm.list"
        )
    for name in names:
        if name in project.settings.hosts:
            why = "only VMs that were made here are asked of the cloud"
            raise UsageError(
                f"{name} is a host of the settings",
                where=name,
                why=why,
                fix=f"{project.program_argv0} vm.list",
            )
    return list(dict.fromkeys(names))


def is_pattern(name: str) -> bool:
    """Whether it may fit several names."""
    return any(sign in name for sign in "*?[")


def one_of(project: Project, text: str) -> str:
    """The one name that `--name` means, for a task that acts on one VM."""
    names = names_of(project, text)
    if len(names) != 1 or is_pattern(names[0]):
        why = f"it names {len(names)}" if len(names) != 1 else f"{names[0]} is a pattern"
        raise UsageError("this task acts on one VM", where="--name", why=why, fix="--name NAME")
    return names[0]


def chosen(project: Project, cloud: ComputeCloud, text: str, verb: str) -> list[Vm]:
    """Our VMs that `--name` means, by zone and name; one call. `verb` is what gcloud would be asked to do.

    Raises UsageError for a name that fits none, CloudError when one of that name is hidden or
    carries another label.
    """
    names = names_of(project, text)
    listed = list_vms_from_cloud(project, cloud)
    found = listed.vms
    for name in names:
        if not any(fnmatch.fnmatchcase(vm.name, name) for vm in found):
            listed.refuse_hidden(project, name)
            if not is_pattern(name):
                check_cloud_for_other_owner(project, cloud, name, verb)
            raise unknown_vm_error(project, name, listed)
    return [vm for vm in found if any(fnmatch.fnmatchcase(vm.name, name) for name in names)]


def acted(
    acts: Sequence[Act[Vm, tuple[Vm, bool]]], says: Callable[[Vm, bool], str], **more: Any
) -> TaskResult:
    """The end of a task that changes VMs: each VM with `changed`, and with its error where it has one."""
    rows, lines, failures = [], [], []
    for act in acts:
        if act.error is not None:
            rows.append({**document(act.item), "changed": False, "error": act.error.as_dict()})
            failures.append(act.error)
        elif act.value is not None:
            vm, changed = act.value
            rows.append({**document(vm), "changed": changed})
            lines.append(says(vm, changed))
    errors = [row["error"] for row in rows if "error" in row]
    failed = {"error": errors[0]} if errors else {}
    changed = any(row["changed"] for row in rows)
    code = worst_exit([error.exit_code for error in failures])
    return TaskResult(
        {"vms": rows, "changed": changed, **more, **failed}, code, "\n".join(lines), tuple(failures)
    )
