"""`vm.show`: one VM, or one host of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.documents import static_host_document, vm_document
from provision.commands.vm.shared.selection import parse_one_vm_name
from provision.project.owned_vms import fetch_vm
from provision.project.project import Project
from provision.report.table import format_table, or_dash, span_or_dash, usd_or_unknown

_FORMATTED = {
    "age_s": ("age", span_or_dash),
    "cost_usd": ("cost", usd_or_unknown),
    "ttl_left_s": ("ttl left", span_or_dash),
}


def vm_show(project: Project, name: str) -> TaskResult:
    """Return one VM as the cloud describes it, or a host as the settings do."""
    if name in project.settings.hosts:
        document = static_host_document(project, name)
    else:
        vm = fetch_vm(project, project.connect_cloud(), parse_one_vm_name(project, name))
        document = {
            **vm_document(vm, project.price_list),
            "image": vm.image,
            "labels": dict(vm.labels),
            "created": vm.created,
        }
    return TaskResult({"vm": document}, text=vm_text(document))


def vm_text(document: Mapping[str, Any]) -> str:
    """Return a line for each key of a VM document, and for each label."""
    rows: list[tuple[str, str]] = []
    for key, value in document.items():
        if isinstance(value, Mapping):
            pairs = [f"{name}={item}" for name, item in sorted(value.items())] or ["-"]
            rows += [(key if index == 0 else "", pair) for index, pair in enumerate(pairs)]
        elif key in _FORMATTED:
            name, formatted = _FORMATTED[key]
            rows.append((name, formatted(value)))
        else:
            rows.append((key.replace("_", " "), or_dash(value)))
    return format_table(rows, width=0)
