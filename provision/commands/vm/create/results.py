"""The results of `vm.create`: of a single VM, and of a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from provision.cloud.lifecycle.batch import Result
from provision.cloud.lifecycle.create import Created
from provision.cloud.lifecycle.zone_search import Attempt
from provision.commands.shared import convergence, host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.shared.documents import vm_document
from provision.core.errors import NoCapacity, ProvisionError, worst_exit
from provision.core.model import Vm, VmSpec
from provision.project.project import Project


def converge_vms(project: Project, targets: Targets, names: Sequence[str]) -> TaskResult:
    """Converge the hosts of these names to the host recipe; without names, an empty result."""
    if not names:
        return TaskResult({"hosts": {}})
    selected = Targets(host=names[0]) if len(names) == 1 else Targets(limit=",".join(names))
    title = f"vm.create {names[0]}" + (f" … {names[-1]}" if len(names) > 1 else "")
    finished = convergence.converge_hosts(
        project,
        targets,
        host_access.resolve_hosts(project, selected),
        lambda target: convergence.host_recipe_for(project, target),
        title,
    )
    return convergence.task_result(finished, check=targets.check)


def single_vm_result(converged: TaskResult, created: Created) -> TaskResult:
    """Return the result of one VM: the VM, the requested zones, and its host's report."""
    document = {
        "vm": vm_document(created.vm),
        "changed": created.changed,
        "tried": [attempt.as_dict() for attempt in created.tried],
    }
    return replace(converged, document={**document, **converged.document})


def fleet_result(
    converged: TaskResult,
    acts: Sequence[Result[VmSpec, Created]],
    waits: Sequence[Result[Vm, None]],
) -> TaskResult:
    """Return the result of several VMs: a row for each requested one, and the hosts' reports.

    The exit code is the worst of all. `waits` are the created VMs, with an error where SSH did not
    answer.
    """
    unreached = errors_by_name(waits)
    rows = [_row(act, unreached.get(act.item.name)) for act in acts]
    errors = [*(act.error for act in acts if act.error is not None), *unreached.values()]
    document: dict[str, Any] = {
        **converged.document,
        "vms": rows,
        "changed": any(row["changed"] for row in rows),
    }
    if errors:
        document["error"] = errors[0].as_dict()
    code = worst_exit([*(error.exit_code for error in errors), converged.exit_code])
    reached = [act.item for act in waits if act.error is None]
    places = ", ".join(f"{vm.name} ({vm.zone})" for vm in reached) or "none"
    text = f"{len(reached)} of {len(acts)} VMs: {places}"
    return TaskResult(document, code, text, _merge_equal(errors))


def errors_by_name(waits: Sequence[Result[Vm, None]]) -> dict[str, ProvisionError]:
    """Return the errors of the VMs that did not answer on SSH, by name."""
    return {act.item.name: act.error for act in waits if act.error is not None}


def _row(act: Result[VmSpec, Created], unreached: ProvisionError | None) -> dict[str, Any]:
    if act.value is None:
        error = act.error.as_dict() if act.error is not None else {}
        tried = _tried_zones(act.error)
        return {"name": act.item.name, "changed": False, "tried": tried, "error": error}
    row = {
        **vm_document(act.value.vm),
        "changed": act.value.changed,
        "tried": [attempt.as_dict() for attempt in act.value.tried],
    }
    return row if unreached is None else {**row, "error": unreached.as_dict()}


def _tried_zones(error: ProvisionError | None) -> list[dict[str, str]]:
    return [Attempt(*row).as_dict() for row in error.tried] if isinstance(error, NoCapacity) else []


def _merge_equal(errors: Sequence[ProvisionError]) -> tuple[ProvisionError, ...]:
    """One error for several VMs with the same one, which lists their places."""
    groups: dict[tuple[str, str, str], list[ProvisionError]] = {}
    for error in errors:
        groups.setdefault((error.what, error.why, error.fix), []).append(error)
    return tuple(
        ProvisionError(what, where=", ".join(error.where for error in group), why=why, fix=fix)
        for (what, why, fix), group in groups.items()
    )
