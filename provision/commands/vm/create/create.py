"""`vm.create`: VMs created, provisioned as a fleet, and verified."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.api.request_bodies import check_spec
from provision.cloud.lifecycle.batch import Result, collect_results, run_each
from provision.cloud.lifecycle.create import Created
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.create.dry_run import fetch_plan, preview_creation
from provision.commands.vm.create.request import (
    note_zones,
    reporting_requested_vms,
    request_vm,
    with_vm_in_notes,
)
from provision.commands.vm.create.results import converge_vms, fleet_result, single_vm_result
from provision.commands.vm.shared.documents import static_host_document
from provision.commands.vm.shared.running_vms import note_running_vms, reporting_running_vm
from provision.commands.vm.shared.vm_spec import vm_spec
from provision.commands.vm.shared.wait_for_ssh import WaitLimits, wait_for_ssh
from provision.core.errors import UsageError
from provision.core.model import Note, Vm, VmSpec
from provision.project.login import fetch_os_login_enabled
from provision.project.project import Project

MAX_COUNT = 500
"""Limit of `--count`: a larger number is more likely a typing error."""


def vm_create(
    project: Project,
    name: str,
    targets: Targets,
    *,
    count: int = 1,
    parallel_zones: int = 1,
    limits: WaitLimits | None = None,
) -> TaskResult:
    """Create VMs, wait for SSH, pin their host keys, provision and verify them.

    A second run changes nothing. `targets.host` is the name where it is given; with a `count` above
    1 the VMs are NAME-1, NAME-2 and so on, each in the first zone that takes it. `parallel_zones`
    zones are requested at once.

    The error of a single VM is raised, and reports that the VM runs once it does. Of several, each
    error is in the result beside the VMs that were created. Raises `UsageError` for a count above
    `MAX_COUNT` and for a name that the settings give to a host.
    """
    name = targets.host or name
    if count == 1 and name in project.settings.hosts:
        return _provision_static_host(project, name, targets)
    names = _vm_names(project, name, count)
    cloud = project.connect_cloud()
    specs = _fetch_specs(project, cloud, names)
    limits = limits or WaitLimits.of(project)
    if targets.check:
        return preview_creation(project, cloud, specs, targets, limits)
    acts = _create_all(project, cloud, specs, parallel_zones)
    waits = _wait_for_all(project, cloud, acts, limits)
    return _provision(project, targets, acts, waits)


def _provision_static_host(project: Project, name: str, targets: Targets) -> TaskResult:
    project.emit(Note(f"{name} is a host of the settings: there is nothing to create"))
    converged = converge_vms(project, targets, [name])
    document = {"vm": static_host_document(project, name), "changed": False, "tried": []}
    return replace(converged, document={**document, **converged.document})


def _vm_names(project: Project, name: str, count: int) -> list[str]:
    if count > MAX_COUNT:
        raise UsageError(
            f"{count} VMs are too many",
            where="--count",
            why=f"allowed: at most {MAX_COUNT} at once",
            fix=f"--count={MAX_COUNT}",
        )
    names = [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]
    taken = next((each_name for each_name in names if each_name in project.settings.hosts), None)
    if taken is not None:
        raise UsageError(
            f"{taken} is a host of the settings",
            where="--count",
            why="there is nothing to create",
            fix="choose another --name",
        )
    return names


def _fetch_specs(project: Project, cloud: ComputeCloud, names: Sequence[str]) -> list[VmSpec]:
    """The requested VMs, which differ by name alone. Raises `SettingsError` for an invalid one."""
    first = vm_spec(project, names[0], os_login=fetch_os_login_enabled(project, cloud))
    specs = [replace(first, name=name) for name in names]
    for spec in specs:
        check_spec(spec)
    return specs


def _create_all(
    project: Project, cloud: ComputeCloud, specs: Sequence[VmSpec], parallel_zones: int
) -> list[Result[VmSpec, Created]]:
    """Create the VMs side by side; the error of a single one is raised."""
    several = len(specs) > 1
    with reporting_requested_vms(project, [spec.name for spec in specs]):
        search = fetch_plan(project, cloud, specs) if several else None

        def create(spec: VmSpec) -> Created:
            noted = with_vm_in_notes(project, spec.name) if several else project
            return request_vm(noted, cloud, spec, width=parallel_zones, search=search)

        acts = run_each(specs, create)
        note_zones(project, [act.value for act in acts if act.value is not None])
    return acts


def _wait_for_all(
    project: Project,
    cloud: ComputeCloud,
    acts: Sequence[Result[VmSpec, Created]],
    limits: WaitLimits,
) -> list[Result[Vm, None]]:
    """Wait for SSH on the created VMs side by side; the error of a single VM is raised."""

    def wait(vm: Vm) -> None:
        with reporting_running_vm(project, vm):
            wait_for_ssh(project, cloud, vm, limits)

    vms = [act.value.vm for act in acts if act.value is not None]
    if len(acts) == 1:
        return run_each(vms, wait)
    with reporting_requested_vms(project, [act.item.name for act in acts]):
        return collect_results(vms, wait)


def _provision(
    project: Project,
    targets: Targets,
    acts: Sequence[Result[VmSpec, Created]],
    waits: Sequence[Result[Vm, None]],
) -> TaskResult:
    """Converge the VMs that SSH reached, as a fleet, and return the result of all VMs."""
    with ExitStack() as stack:
        for act in reversed(waits):
            stack.enter_context(reporting_running_vm(project, act.item))
        converged = converge_vms(
            project, targets, [act.item.name for act in waits if act.error is None]
        )
    created = [act.value for act in acts if act.value is not None]
    result = (
        single_vm_result(converged, created[0])
        if len(acts) == 1
        else fleet_result(converged, acts, waits)
    )
    if result.exit_code:
        note_running_vms(project, [item.vm for item in created])
    return result
