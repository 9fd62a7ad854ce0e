"""`vm.extend`: more time for VMs before the cloud stops them."""

from __future__ import annotations

from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.lifecycle import ttl_extension
from provision.cloud.lifecycle.batch import run_each
from provision.cloud.lifecycle.context import new_request_id
from provision.cloud.lifecycle.vm_states import STOPPED_STATES, STOPPING_STATES
from provision.cloud.lifecycle.vm_times import ttl_left_s
from provision.cloud.lifecycle.waiting import wait_while
from provision.cloud.market import scheduling
from provision.cloud.refusal import CloudRefused
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.boot import verify_booted_vms
from provision.commands.vm.shared.changes import Change, changes_result
from provision.commands.vm.shared.selection import fetch_selected_vms
from provision.commands.vm.shared.wait_for_ssh import WaitLimits
from provision.core.errors import SettingsError, UsageError
from provision.core.model import Note, Vm
from provision.project.project import Project
from provision.report.table import span_or_dash
from provision.settings.validators import duration_seconds


def vm_extend(
    project: Project,
    duration: str,
    name: str,
    *,
    restart: bool = False,
    limits: WaitLimits | None = None,
) -> TaskResult:
    """Give VMs more time: in this run, or of a stopped VM in the next one.

    Later runs have their usual limit. Compute Engine documents that the limit is changed on a
    stopped VM only (instances.setScheduling), so a running one may be refused; with `restart` it is
    stopped, given `duration` and what it had left, and started again.

    Raises `UsageError` for an invalid duration, as `fetch_selected_vms`, and for a single VM its
    error.
    """
    more_s = _parse_duration(duration)
    cloud = project.connect_cloud()
    vms = fetch_selected_vms(project, cloud, name, "set-scheduling")

    def extend(vm: Vm) -> Change:
        vm = wait_while(cloud, vm, STOPPING_STATES)
        if vm.ttl_s is None:
            project.emit(Note(f"{vm.name} has no time limit: nothing to extend"))
            return vm, False
        if restart and vm.status not in STOPPED_STATES:
            return _extend_by_restart(project, cloud, vm, more_s, duration), True
        current_s = ttl_extension.next_ttl_s(vm) if vm.status in STOPPED_STATES else vm.ttl_s
        ttl_s = (current_s or 0) + more_s
        return _set_ttl(project, cloud, vm, ttl_s, duration), True

    acts = run_each(vms, extend)
    if restart and any(vm.status not in STOPPED_STATES and vm.ttl_s is not None for vm in vms):
        return verify_booted_vms(project, cloud, acts, limits, "vm.extend")
    return changes_result(acts, _line)


def _parse_duration(text: str) -> int:
    fix = "invoke vm.extend 2h"
    if text == "none":
        raise UsageError(
            "a time limit cannot be removed",
            where="DURATION",
            why="none is not a duration",
            fix=fix,
        )
    try:
        return duration_seconds(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a duration", where="DURATION", why=f"allowed: {error}", fix=fix
        ) from None


def _extend_by_restart(
    project: Project, cloud: ComputeCloud, vm: Vm, more_s: int, duration: str
) -> Vm:
    """Stop the VM, give it `more_s` seconds beyond what it has left, and start it."""
    left_s = ttl_left_s(vm)
    ttl_s = (vm.ttl_s or 0 if left_s is None else left_s) + more_s
    project.emit(Note(f"stopping {vm.name}: its time to live is changed while it is stopped"))
    stopped = cloud.stop(vm.name, vm.zone, request_id=new_request_id())
    _set_ttl(project, cloud, stopped, ttl_s, duration)
    project.emit(Note(f"starting {vm.name} in {vm.zone}"))
    return cloud.start(vm.name, vm.zone, request_id=new_request_id())


def _set_ttl(project: Project, cloud: ComputeCloud, vm: Vm, ttl_s: int, duration: str) -> Vm:
    _check_ttl(vm, ttl_s)
    try:
        return ttl_extension.extend_run(cloud, vm, ttl_s)
    except CloudRefused as error:
        if vm.status not in STOPPED_STATES and error.refusal.http_status in (400, 412):
            command = f"{project.program_argv0} vm.extend {duration} --name {vm.name} --restart"
            error.fix = f"{command}   (stops the VM, changes the limit, starts it again)"
        raise


def _check_ttl(vm: Vm, ttl_s: int) -> None:
    if ttl_s > scheduling.MAX_TTL_S:
        span = span_or_dash(ttl_s)
        raise SettingsError(
            "the time to live would be too long",
            where=f"{vm.zone}/{vm.name}",
            why=f"that would be {span} from its start; Compute Engine takes at most 120 days",
        )


def _line(vm: Vm, changed: bool) -> str:
    if not changed or vm.ttl_s is None:
        return f"{vm.name}: no change"
    left_s, usual = ttl_left_s(vm), span_or_dash(ttl_extension.usual_ttl_s(vm))
    if left_s is not None:
        return f"{vm.name}: {span_or_dash(left_s)} left; {usual} from its next start"
    return f"{vm.name}: {span_or_dash(vm.ttl_s)} from its next start; {usual} from later ones"
