"""The VMs that `--name` selects."""

from __future__ import annotations

import fnmatch

from provision.cloud.api.protocol import ComputeCloud
from provision.core.errors import UsageError
from provision.core.model import Vm
from provision.project.owned_vms import (
    check_cloud_for_other_owner,
    list_vms_from_cloud,
    unknown_vm_error,
)
from provision.project.project import Project


def parse_vm_names(project: Project, text: str) -> list[str]:
    """Return the names and patterns of `--name a,b-*`, each once.

    Raises `UsageError` for an empty text and for a host of the settings.
    """
    names = text.replace(",", " ").split()
    vm_list = f"{project.program_argv0} vm.list"
    if not names:
        raise UsageError("--name names no VM", why="it is empty", fix=vm_list)
    for name in names:
        if name in project.settings.hosts:
            raise UsageError(
                f"{name} is a host of the settings",
                where=name,
                why="this task acts on VMs that were created here",
                fix=vm_list,
            )
    return list(dict.fromkeys(names))


def is_pattern(name: str) -> bool:
    """Return whether the name may match several VMs."""
    return any(sign in name for sign in "*?[")


def parse_one_vm_name(project: Project, text: str) -> str:
    """Return the one name in `--name`, for a task that acts on one VM.

    Raises `UsageError` for a pattern and for several names.
    """
    names = parse_vm_names(project, text)
    if len(names) != 1 or is_pattern(names[0]):
        why = f"it names {len(names)}" if len(names) != 1 else f"{names[0]} is a pattern"
        raise UsageError("this task acts on one VM", where="--name", why=why, fix="--name NAME")
    return names[0]


def fetch_selected_vms(project: Project, cloud: ComputeCloud, text: str, verb: str) -> list[Vm]:
    """Return the owned VMs that `--name` selects, by zone and name; one listing.

    `verb` is the gcloud command for a VM of another owner. Raises `UsageError` for a name that
    matches no VM, `CloudError` for one that is hidden or has another owner label.
    """
    names = parse_vm_names(project, text)
    owned = list_vms_from_cloud(project, cloud)
    for name in names:
        if not any(fnmatch.fnmatchcase(vm.name, name) for vm in owned.vms):
            owned.refuse_hidden(project, name)
            if not is_pattern(name):
                check_cloud_for_other_owner(project, cloud, name, verb)
            raise unknown_vm_error(project, name, owned)
    return [vm for vm in owned.vms if any(fnmatch.fnmatchcase(vm.name, name) for name in names)]
