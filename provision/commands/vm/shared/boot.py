"""VMs that a task has booted: reached over SSH and verified against their recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.lifecycle import ttl_extension
from provision.cloud.lifecycle.batch import Result, run_each
from provision.cloud.lifecycle.vm_times import ttl_left_s
from provision.commands.shared import convergence, host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.shared.changes import Change, changes_result
from provision.commands.vm.shared.running_vms import note_running_vms, reporting_running_vm
from provision.commands.vm.shared.wait_for_ssh import WaitLimits, wait_for_ssh
from provision.core.errors import ProvisionError
from provision.core.model import Vm
from provision.project.project import Project
from provision.report.table import span_or_dash


def verify_booted_vms(
    project: Project,
    cloud: ComputeCloud,
    acts: Sequence[Result[Vm, Change]],
    limits: WaitLimits | None,
    task: str,
) -> TaskResult:
    """Wait for SSH on every VM that booted, converge it to its recipe, and return the result.

    The recipe waits for the steps of the boot itself, and reports what differs after them.
    """
    booted = [act.value[0] for act in acts if act.value is not None]
    errors = _wait_for_all(project, cloud, booted, limits or WaitLimits.of(project))
    acts = [_with_error(act, errors.get(act.item.name)) for act in acts]
    reached = {act.value[0].name for act in acts if act.value is not None}
    result = changes_result(acts, _running_line)
    if not reached:
        return result
    targets = Targets(limit=",".join(sorted(reached)))
    hosts = [host for host in host_access.resolve_hosts(project, targets) if host.name in reached]
    finished = convergence.converge_hosts(
        project, targets, hosts, lambda target: convergence.host_recipe_for(project, target), task
    )
    verified = convergence.task_result(finished, check=False)
    if verified.exit_code:
        note_running_vms(project, booted)
    return replace(
        result,
        document={**verified.document, **result.document},
        exit_code=result.exit_code or verified.exit_code,
    )


def _wait_for_all(
    project: Project, cloud: ComputeCloud, vms: Sequence[Vm], limits: WaitLimits
) -> dict[str, ProvisionError | None]:
    def wait(vm: Vm) -> None:
        with reporting_running_vm(project, vm):
            wait_for_ssh(project, cloud, vm, limits)

    return {act.item.name: act.error for act in run_each(vms, wait)} if vms else {}


def _with_error(act: Result[Vm, Change], error: ProvisionError | None) -> Result[Vm, Change]:
    return act if error is None else replace(act, value=None, error=error)


def _running_line(vm: Vm, changed: bool) -> str:
    left_s, usual_s = ttl_left_s(vm), ttl_extension.usual_ttl_s(vm)
    limit = "with no time limit" if left_s is None else f"{span_or_dash(left_s)} left"
    next_limit = "" if usual_s == vm.ttl_s else f"; {span_or_dash(usual_s)} from its next start"
    verb = "runs" if changed else "ran already"
    address = vm.address or vm.internal_address
    return f"{vm.name} {verb} in {vm.zone} at {address}, {limit}{next_limit}"
