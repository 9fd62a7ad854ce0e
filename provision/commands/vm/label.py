"""`vm.label`: labels of VMs set and removed."""

from __future__ import annotations

import re

from provision.cloud.api.labels import IDLE_DELETE_LABEL
from provision.cloud.lifecycle.batch import run_each
from provision.cloud.lifecycle.context import new_request_id
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.changes import Change, changes_result
from provision.commands.vm.shared.selection import fetch_selected_vms
from provision.core.errors import UsageError
from provision.core.model import Vm
from provision.project.project import Project
from provision.settings.validators import idle_seconds

_SET = re.compile(r"(?P<key>[a-z][a-z0-9_-]{0,62})=(?P<value>[a-z0-9_-]{0,63})\Z")
_REMOVE = re.compile(r"(?P<key>[a-z][a-z0-9_-]{0,62})-\Z")
_RESERVED = "provision-"
"""Prefix of the labels by which the toolkit finds its VMs."""
_USER_KEYS = frozenset({IDLE_DELETE_LABEL})
"""Labels with that prefix that users may change."""
_EXAMPLE = "invoke vm.label team=ml,run=42"


def vm_label(project: Project, labels: str, name: str) -> TaskResult:
    """Set labels of VMs (`team=ml`) and remove others (`team-`).

    Raises `UsageError` for an invalid or reserved label, as `fetch_selected_vms`, and for a single
    VM its error.
    """
    new, removed = _parse_labels(labels)
    cloud = project.connect_cloud()

    def label(vm: Vm) -> Change:
        is_set = all(vm.labels.get(key) == value for key, value in new.items())
        if is_set and not removed & vm.labels.keys():
            return vm, False
        request_id = new_request_id()
        return cloud.set_labels(vm.name, vm.zone, new, removed, request_id=request_id), True

    vms = fetch_selected_vms(project, cloud, name, "update")
    return changes_result(run_each(vms, label), _line)


def _line(vm: Vm, changed: bool) -> str:
    own = ", ".join(
        f"{key}={value}" for key, value in sorted(vm.labels.items()) if not _is_reserved(key)
    )
    return f"{vm.name}: {own or 'no labels of yours'}" + ("" if changed else " (no change)")


def _is_reserved(key: str) -> bool:
    return key.startswith(_RESERVED) and key not in _USER_KEYS


def _parse_labels(text: str) -> tuple[dict[str, str], set[str]]:
    """The labels that `team=ml,run-` sets and removes."""
    new: dict[str, str] = {}
    removed: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        if match := _SET.match(part):
            new[match["key"]] = match["value"]
        elif match := _REMOVE.match(part):
            removed.add(match["key"])
        else:
            raise _invalid_label(part)
    if not new and not removed:
        raise UsageError("no label was given", where="LABELS", why="it is empty", fix=_EXAMPLE)
    for key in (*new, *removed):
        _check_key(key)
    for key, value in new.items():
        _check_value(key, value)
    return new, removed


def _invalid_label(part: str) -> UsageError:
    why = (
        "allowed: KEY=VALUE, or KEY- to remove it; "
        "at most 63 lower-case letters, digits, _ and -, a letter first"
    )
    return UsageError(f"{part!r} is not a label", where="LABELS", why=why, fix=_EXAMPLE)


def _check_key(key: str) -> None:
    if _is_reserved(key):
        raise UsageError(
            f"the label {key} is reserved",
            where="LABELS",
            why=f"labels that begin with {_RESERVED} identify the VMs of a project",
        )


def _check_value(key: str, value: str) -> None:
    """Raise `UsageError` for a value that the toolkit itself reads and cannot parse."""
    if key not in _USER_KEYS:
        return
    try:
        idle_seconds(value)
    except ValueError as error:
        raise UsageError(
            f"{value!r} is not a time to be stopped",
            where=key,
            why=f"allowed: {error}",
            fix=f"invoke vm.label {key}=7d",
        ) from None
