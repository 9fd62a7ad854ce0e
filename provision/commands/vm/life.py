"""The life of VMs that were made: stopped, started, reset, given more time, labelled."""

from __future__ import annotations

import re
from dataclasses import replace

from provision.cloud.api import body
from provision.cloud.api.ports import ComputeCloud
from provision.cloud.lifecycle import extension
from provision.cloud.lifecycle.create import HALTED, new_request_id
from provision.cloud.lifecycle.insert import is_of
from provision.cloud.lifecycle.journal import MADE
from provision.cloud.lifecycle.many import Act, each
from provision.cloud.lifecycle.search import check_starts
from provision.cloud.lifecycle.waiting import ENDING, PASSING, settled
from provision.cloud.market import scheduling
from provision.cloud.refusal import CloudRefused
from provision.commands.shared import convergence
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.shared.documents import span_or_dash, ttl_left_s
from provision.commands.vm.shared.reach import Patience, bills, reach, still_there
from provision.commands.vm.shared.selection import acted, chosen
from provision.core.errors import CloudError, ProvisionError, SettingsError, UsageError
from provision.core.model import Host, Note, Vm
from provision.project.project import Project
from provision.settings.validators import duration_seconds, idle_seconds


def vm_stop(project: Project, name: str) -> TaskResult:
    """Stop VMs: vCPUs, memory and GPU stop billing, the disk stays and bills. One that is stopped stays as it is."""
    cloud = project.connect_cloud()

    def stop(vm: Vm) -> tuple[Vm, bool]:
        vm = settled(cloud, vm, ENDING)
        if vm.status in HALTED:
            return vm, False
        project.emit(Note(f"stopping {vm.name} in {vm.zone}"))
        return cloud.stop(vm.name, vm.zone, request_id=new_request_id()), True

    def says(vm: Vm, changed: bool) -> str:
        return f"{vm.name} {'is stopped' if changed else 'was stopped already'}; its disk of {vm.disk_gb} GB stays and bills"

    return acted(each(chosen(project, cloud, name, "stop"), stop), says)


def vm_start(project: Project, name: str, *, patience: Patience | None = None) -> TaskResult:
    """Start VMs where they are, wait for SSH, and verify that the boot brought everything back. The time to live counts anew.

    A VM is bound to its zone by its disk: where that has no capacity, the refusal is all that comes
    of it. Where the quota of GPUs is surely short of what several need, none is started.
    """
    cloud = project.connect_cloud()
    vms = chosen(project, cloud, name, "start")
    check_starts(
        cloud, [vm for vm in vms if vm.status in HALTED], lambda text: project.emit(Note(text))
    )

    def start(vm: Vm) -> tuple[Vm, bool]:
        vm = settled(cloud, vm, PASSING)
        return (vm, False) if vm.status == "RUNNING" else _started(project, cloud, vm)

    return _back(project, cloud, each(vms, start), patience, "vm.start")


def _started(project: Project, cloud: ComputeCloud, vm: Vm) -> tuple[Vm, bool]:
    """Start it under its claim, so that no vm.gc of this machine deletes it meanwhile, and write down that it is wanted.

    A deletion that a killed run had begun would be made up for by the next vm.create, under whoever
    works there by then. False when another run was faster.
    """

    def note(text: str) -> None:
        project.emit(Note(text))

    journal = project.journal
    with journal.claim(vm.name, note):
        now = cloud.get(vm.name, vm.zone)
        if now is None:
            raise CloudError(
                "the VM is gone",
                where=f"{vm.zone}/{vm.name}",
                why=f"it was {vm.status} a moment ago",
            )
        now = settled(cloud, now, PASSING)
        if now.status == "RUNNING":
            return now, False
        for entry in journal.open():
            if entry.state != MADE and is_of(now, entry.request_id):
                journal.mark(entry.request_id, MADE)
        note(f"starting {vm.name} in {vm.zone}")
        return extension.start(cloud, now, note), True


def vm_reset(project: Project, name: str, *, patience: Patience | None = None) -> TaskResult:
    """Reset running VMs as their reset button would, wait for SSH, and verify that the boot brought everything back."""
    cloud = project.connect_cloud()

    def reset(vm: Vm) -> tuple[Vm, bool]:
        vm = settled(cloud, vm, PASSING)
        if vm.status != "RUNNING":
            fix = f"{project.program_argv0} vm.start --name {vm.name}"
            raise CloudError(
                "only a VM that runs can be reset",
                where=f"{vm.zone}/{vm.name}",
                why=f"it is {vm.status}",
                fix=fix,
            )
        project.emit(Note(f"resetting {vm.name} in {vm.zone}"))
        return cloud.reset(vm.name, vm.zone, request_id=new_request_id()), True

    return _back(
        project, cloud, each(chosen(project, cloud, name, "reset"), reset), patience, "vm.reset"
    )


def _back(
    project: Project,
    cloud: ComputeCloud,
    acts: list[Act[Vm, tuple[Vm, bool]]],
    patience: Patience | None,
    task: str,
) -> TaskResult:
    """Every VM that booted, reached and verified: the recipe waits for the boot's own steps and says what differs after them."""
    waits = patience or Patience.of(project)

    def arrive(vm: Vm) -> None:
        with still_there(project, vm):
            reach(project, cloud, vm, waits)

    up = [act.value for act in acts if act.value is not None]
    arrivals = (
        {act.item.name: act.error for act in each([vm for vm, _ in up], arrive)} if up else {}
    )
    acts = [_with_error(act, arrivals.get(act.item.name)) for act in acts]
    here = {vm.name for act in acts if act.value is not None for vm in [act.value[0]]}
    done = acted(acts, _ran)
    if not here:
        return done
    targets = Targets(limit=",".join(sorted(here)))
    chosen_hosts: list[Host] = [
        host for host in convergence.hosts(project, targets) if host.name in here
    ]
    finished = convergence.converge(
        project, targets, chosen_hosts, lambda target: convergence.cos_recipe(project, target), task
    )
    verified = convergence.done(finished, check=False)
    if verified.exit_code:
        for vm, _ in up:
            project.emit(Note(bills(project, vm)))
    return TaskResult(
        {**verified.document, **done.document},
        done.exit_code or verified.exit_code,
        done.text,
        done.errors,
    )


def _with_error(
    act: Act[Vm, tuple[Vm, bool]], error: ProvisionError | None
) -> Act[Vm, tuple[Vm, bool]]:
    return act if error is None else replace(act, value=None, error=error)


def _ran(vm: Vm, changed: bool) -> str:
    left = ttl_left_s(vm)
    until = f", {span_or_dash(left)} left" if left is not None else ", with no time limit"
    usual_s = extension.usual_ttl_s(vm)
    until += f"; {span_or_dash(usual_s)} from its next start" if usual_s != vm.ttl_s else ""
    return f"{vm.name} {'runs' if changed else 'ran already'} in {vm.zone} at {vm.address or vm.internal_address}{until}"


# --- more time ------------------------------------------------------------------------------------


def vm_extend(
    project: Project,
    duration: str,
    name: str,
    *,
    restart: bool = False,
    patience: Patience | None = None,
) -> TaskResult:
    """Give VMs more time before the cloud stops them: this run, or of a stopped VM the next one. Later runs have their usual limit.

    Compute Engine documents that the limit is changed on a stopped VM only
    (instances.setScheduling), so a running one may be refused; with `restart` it is stopped, given
    what it had left and `duration`, and started again.
    """
    more_s = _duration_s(duration)
    cloud = project.connect_cloud()
    vms = chosen(project, cloud, name, "set-scheduling")

    def extend(vm: Vm) -> tuple[Vm, bool]:
        vm = settled(cloud, vm, ENDING)
        if vm.ttl_s is None:
            project.emit(Note(f"{vm.name} has no time limit: nothing to extend"))
            return vm, False
        if vm.status in HALTED or not restart:
            before_s = extension.next_ttl_s(vm) if vm.status in HALTED else vm.ttl_s
            return _extended(
                project, cloud, vm, _within(vm, (before_s or 0) + more_s), duration
            ), True
        left_s = ttl_left_s(vm)
        project.emit(Note(f"stopping {vm.name}: its time to live is changed while it is stopped"))
        stopped = cloud.stop(vm.name, vm.zone, request_id=new_request_id())
        _extended(
            project,
            cloud,
            stopped,
            _within(vm, (vm.ttl_s if left_s is None else left_s) + more_s),
            duration,
        )
        project.emit(Note(f"starting {vm.name} in {vm.zone}"))
        return cloud.start(vm.name, vm.zone, request_id=new_request_id()), True

    acts = each(vms, extend)
    restarted = restart and any(vm.status not in HALTED and vm.ttl_s is not None for vm in vms)
    return (
        _back(project, cloud, acts, patience, "vm.extend") if restarted else acted(acts, _has_time)
    )


def _duration_s(text: str) -> int:
    if text == "none":
        raise UsageError(
            "a time limit is not taken away",
            where="DURATION",
            why="none is no duration",
            fix="invoke vm.extend 2h",
        )
    try:
        return duration_seconds(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is no duration",
            where="DURATION",
            why=f"allowed: {error}",
            fix="invoke vm.extend 2h",
        ) from None


def _within(vm: Vm, ttl_s: int) -> int:
    if ttl_s > scheduling.MAX_TTL_S:
        why = f"that would be {span_or_dash(ttl_s)} from its start; Compute Engine takes at most 120 days"
        raise SettingsError(
            "the time to live would be too long", where=f"{vm.zone}/{vm.name}", why=why
        )
    return ttl_s


def _extended(project: Project, cloud: ComputeCloud, vm: Vm, ttl_s: int, duration: str) -> Vm:
    try:
        return extension.extend(cloud, vm, ttl_s)
    except CloudRefused as error:
        if vm.status not in HALTED and error.refusal.http_status in (400, 412):
            command = f"{project.program_argv0} vm.extend {duration} --name {vm.name} --restart"
            error.fix = f"{command}   (stops the VM, changes the limit, starts it again)"
        raise


def _has_time(vm: Vm, changed: bool) -> str:
    if not changed or vm.ttl_s is None:
        return f"{vm.name}: no change"
    left, usual = ttl_left_s(vm), span_or_dash(extension.usual_ttl_s(vm))
    if left is not None:
        return f"{vm.name}: {span_or_dash(left)} left; {usual} from its next start"
    return f"{vm.name}: {span_or_dash(vm.ttl_s)} from its next start; {usual} from later ones"


# --- labels ---------------------------------------------------------------------------------------

_PUT = re.compile(r"(?P<key>[a-z][a-z0-9_-]{0,62})=(?P<value>[a-z0-9_-]{0,63})\Z")
_REMOVE = re.compile(r"(?P<key>[a-z][a-z0-9_-]{0,62})-\Z")
_OURS = "provision-"
_YOURS = frozenset({body.IDLE_DELETE_LABEL})


def vm_label(project: Project, labels: str, name: str) -> TaskResult:
    """Put labels on VMs (`team=ml`) and take others away (`team-`). Those by which VMs are found again are not touched."""
    put, remove = _labels(labels)
    cloud = project.connect_cloud()

    def label(vm: Vm) -> tuple[Vm, bool]:
        if (
            all(vm.labels.get(key) == value for key, value in put.items())
            and not remove & vm.labels.keys()
        ):
            return vm, False
        return cloud.set_labels(vm.name, vm.zone, put, remove, request_id=new_request_id()), True

    def says(vm: Vm, changed: bool) -> str:
        yours = {
            key: value
            for key, value in vm.labels.items()
            if not key.startswith(_OURS) or key in _YOURS
        }
        own = ", ".join(f"{key}={value}" for key, value in sorted(yours.items()))
        return f"{vm.name}: {own or 'no labels of yours'}" + ("" if changed else " (no change)")

    return acted(each(chosen(project, cloud, name, "update"), label), says)


def _checked(key: str, value: str) -> str:
    """The value; that of the label by which a VM asks to be deleted has to be one that is understood."""
    try:
        if key in _YOURS:
            idle_seconds(value)
    except ValueError as error:
        fix = f"invoke vm.label {key}=7d"
        raise UsageError(
            f"{value!r} is no time to be stopped", where=key, why=f"allowed: {error}", fix=fix
        ) from None
    return value


def _labels(text: str) -> tuple[dict[str, str], set[str]]:
    """What `team=ml,run-` puts and takes away."""
    put: dict[str, str] = {}
    remove: set[str] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        if found := _PUT.match(part):
            put[found["key"]] = _checked(found["key"], found["value"])
        elif found := _REMOVE.match(part):
            remove.add(found["key"])
        else:
            why = "allowed: KEY=VALUE, or KEY- to take it away; at most 63 lower-case letters, digits, _ and -, a letter first"
            raise UsageError(
                f"{part!r} is no label",
                where="LABELS",
                why=why,
                fix="invoke vm.label team=ml,run=42",
            )
    if not put and not remove:
        raise UsageError(
            "no label was given",
            where="LABELS",
            why="it is empty",
            fix="invoke vm.label team=ml,run=42",
        )
    for key in (*put, *remove):
        if key.startswith(_OURS) and key not in _YOURS:
            why = f"labels that begin with {_OURS} say whose a VM is"
            raise UsageError(f"the label {key} is not yours to change", where="LABELS", why=why)
    return put, remove
