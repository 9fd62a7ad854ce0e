"""`vm.create --check`: what it would create, start, label and change on the hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.lifecycle.batch import Result, collect_results, run_each
from provision.cloud.lifecycle.create import dry_run
from provision.cloud.lifecycle.existing import check_fits, idle_delete_note, time_limit_note
from provision.cloud.lifecycle.vm_states import STOPPED_STATES
from provision.cloud.lifecycle.zone_search import ZoneSearch
from provision.cloud.lifecycle.zone_selection import check_start_quotas
from provision.cloud.market.catalog import Shape
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.create.request import cloud_context
from provision.commands.vm.create.results import converge_vms, errors_by_name
from provision.commands.vm.shared.documents import vm_document
from provision.commands.vm.shared.wait_for_ssh import WaitLimits, wait_for_ssh
from provision.core.errors import EXIT_OK, EXIT_WOULD_CHANGE, worst_exit
from provision.core.model import Note, Vm, VmSpec
from provision.project.owned_vms import list_vms_from_cloud
from provision.project.project import Project


def preview_creation(
    project: Project,
    cloud: ComputeCloud,
    specs: Sequence[VmSpec],
    targets: Targets,
    limits: WaitLimits,
) -> TaskResult:
    """Return what `vm.create` would do; check the recipe on the VMs that run.

    Prints the plan with its price. Raises what `vm.create` would raise before the first request,
    and of a single VM that it does not answer.
    """
    existing = _list_from_cloud(project, cloud, specs)
    previews = [_preview(spec, existing[spec.name]) for spec in specs if spec.name in existing]
    for preview in previews:
        if preview.limit_note is not None:
            project.emit(Note(preview.limit_note))
    _fetch_plan_for_missing(project, cloud, specs, existing)
    missing = [spec.name for spec in specs if spec.name not in existing]
    changes = [f"would create {', '.join(missing)}: {Shape.of(specs[0])}"] if missing else []
    changes += [preview.start for preview in previews if preview.start is not None]
    changes += [preview.label for preview in previews if preview.label is not None]
    running = [preview.vm for preview in previews if preview.start is None]
    waits = _connect_all(project, cloud, running, replace(limits, ssh_s=0.0), len(specs))
    reached = [act.item.name for act in waits if act.error is None]
    converged = converge_vms(project, targets, reached)
    if len(specs) == 1:
        return _single_vm_result(converged, previews, changes)
    return _fleet_result(converged, previews, changes, waits)


@dataclass(frozen=True)
class _Preview:
    """What `vm.create` would do with a VM that exists; None where it would do nothing."""

    vm: Vm
    start: str | None
    """It would be started, or waited for."""
    label: str | None
    limit_note: str | None

    @property
    def changed(self) -> bool:
        return bool(self.start or self.label)

    @property
    def document(self) -> dict[str, Any]:
        return {**vm_document(self.vm), "changed": self.changed}


def _preview(spec: VmSpec, vm: Vm) -> _Preview:
    """The preview of a VM that exists. Raises `CloudError` when it has another shape."""
    check_fits(spec, vm)
    return _Preview(vm, _start_line(vm), idle_delete_note(spec, vm), time_limit_note(spec, vm))


def _start_line(vm: Vm) -> str | None:
    if vm.status == "RUNNING":
        return None
    if vm.status in STOPPED_STATES:
        return f"would start {vm.name} in {vm.zone}"
    return f"would wait for {vm.name} in {vm.zone}, which is {vm.status}"


def _list_from_cloud(
    project: Project, cloud: ComputeCloud, specs: Sequence[VmSpec]
) -> dict[str, Vm]:
    names = {spec.name for spec in specs}
    vms = list_vms_from_cloud(project, cloud).vms
    return {vm.name: vm for vm in vms if vm.name in names}


def fetch_plan(project: Project, cloud: ComputeCloud, specs: Sequence[VmSpec]) -> ZoneSearch | None:
    """Print one plan for all VMs that do not exist; None when all do.

    Raises, before the first request, `SettingsError` or `CloudError` for VMs that fit no zone, and
    `QuotaRefused` for stopped ones that cannot all start.
    """
    return _fetch_plan_for_missing(project, cloud, specs, _list_from_cloud(project, cloud, specs))


def _fetch_plan_for_missing(
    project: Project, cloud: ComputeCloud, specs: Sequence[VmSpec], existing: Mapping[str, Vm]
) -> ZoneSearch | None:
    missing = [spec for spec in specs if spec.name not in existing]
    stopped = [
        existing[spec.name]
        for spec in specs
        if spec.name in existing and existing[spec.name].status in STOPPED_STATES
    ]
    if missing:
        context = cloud_context(project, cloud)
        return dry_run(context, missing, project.settings.zones, starting=stopped)
    check_start_quotas(cloud, stopped, lambda text: project.emit(Note(text)))
    return None


def _connect_all(
    project: Project, cloud: ComputeCloud, vms: Sequence[Vm], limits: WaitLimits, requested: int
) -> list[Result[Vm, None]]:
    """Connect to the VMs once; the error of a single requested VM is raised."""

    def connect(vm: Vm) -> None:
        wait_for_ssh(project, cloud, vm, limits)

    return run_each(vms, connect) if requested == 1 else collect_results(vms, connect)


def _single_vm_result(
    converged: TaskResult, previews: Sequence[_Preview], changes: Sequence[str]
) -> TaskResult:
    document = {
        "vm": vm_document(previews[0].vm) if previews else None,
        "changed": bool(changes),
        "tried": [],
        **converged.document,
    }
    return TaskResult(document, _exit_code(converged, changes), "\n".join(changes))


def _fleet_result(
    converged: TaskResult,
    previews: Sequence[_Preview],
    changes: Sequence[str],
    waits: Sequence[Result[Vm, None]],
) -> TaskResult:
    errors = tuple(errors_by_name(waits).values())
    document: dict[str, Any] = {
        **converged.document,
        "vms": [preview.document for preview in previews],
        "changed": bool(changes),
    }
    if errors:
        document["error"] = errors[0].as_dict()
    code = worst_exit([*(error.exit_code for error in errors), _exit_code(converged, changes)])
    return TaskResult(document, code, "\n".join(changes), errors)


def _exit_code(converged: TaskResult, changes: Sequence[str]) -> int:
    return worst_exit([converged.exit_code, EXIT_WOULD_CHANGE if changes else EXIT_OK])
