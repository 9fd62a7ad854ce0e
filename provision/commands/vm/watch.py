"""VMs watched: what they print on their serial port, and until they answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from provision.cloud.api.ports import ComputeCloud, SerialOutput
from provision.cloud.lifecycle.create import HALTED
from provision.cloud.lifecycle.waiting import PASSING
from provision.commands.shared import convergence
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.shared.documents import document, static_document
from provision.commands.vm.shared.reach import Patience, reach
from provision.commands.vm.shared.selection import one_of
from provision.core import engine
from provision.core.errors import CloudError, CloudNotFound, CommandTimeout, Unreachable, UsageError
from provision.core.model import Event, Host, Note, Status, Vm
from provision.project.owned_vms import fetch_vm
from provision.project.project import Project
from provision.report.text import clean
from provision.settings.validators import duration_seconds

SERIAL_PAUSE_S = 1.0
WAIT_PAUSE_S = 3.0
STAGES = ("running", "ssh", "ready")
DEFAULT_WAIT = "15m"


@dataclass(frozen=True)
class Time:
    """The clock that waiting goes by (seconds, monotonic), and how it waits."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


# --- the serial port ------------------------------------------------------------------------------


def vm_serial(
    project: Project, name: str, *, follow: bool = False, clock: Time | None = None
) -> TaskResult:
    """What the VM printed on its serial port: the last 1 MB of it. With `follow`, what it goes on to print, until it stops or is gone.

    What a terminal would obey (colours, cleared screens of the firmware) is taken out.
    """
    clock = clock or Time()
    cloud = project.connect_cloud()
    vm = fetch_vm(project, cloud, one_of(project, name))
    if not follow:
        output = cloud.serial(vm.name, vm.zone)
        lines = "\n".join(clean(line) for line in output.text.splitlines())
        return TaskResult(
            {"name": vm.name, "zone": vm.zone, "text": lines, "next": output.next}, text=lines
        )
    position = _follow(project, cloud, vm, clock)
    return TaskResult({"name": vm.name, "zone": vm.zone, "next": position})


def _follow(project: Project, cloud: ComputeCloud, vm: Vm, clock: Time) -> int:
    position, rest = 0, ""
    while True:
        try:
            output = cloud.serial(vm.name, vm.zone, start=position)
        except CloudNotFound:
            output = SerialOutput("", position)
        if output.lost and position:  # before the first reading it is what every reader misses
            rest += "\n" if rest else ""
            project.emit(
                Note(f"{output.lost} bytes are lost: more was printed at once than the cloud keeps")
            )
        position = output.next
        *lines, rest = (rest + output.text).split("\n")
        project.stdout("".join(f"{clean(line)}\n" for line in lines).encode())
        if not output.text:
            now = cloud.get(vm.name, vm.zone)
            if now is None or now.status in HALTED:
                project.stdout(f"{clean(rest)}\n".encode() if rest else b"")
                return position
        clock.sleep(SERIAL_PAUSE_S)


# --- until it answers -----------------------------------------------------------------------------


def vm_wait(
    project: Project,
    name: str,
    *,
    until: str = "ready",
    timeout: str = DEFAULT_WAIT,
    clock: Time | None = None,
) -> TaskResult:
    """Wait until the VM runs, answers on SSH, or is ready: its boot has ended and nothing differs from the recipe.

    A host of the settings is waited for as well. Raises Unreachable or CommandTimeout when
    `timeout` is over, CloudError for a VM that is stopped, since waiting starts nothing.
    """
    clock = clock or Time()
    if until not in STAGES:
        raise UsageError(
            f"{until!r} is nothing to wait for",
            where="--until",
            why=f"allowed: {', '.join(STAGES)}",
            fix="--until=ssh",
        )
    started = clock.now()
    deadline = started + _timeout_s(timeout)
    is_static = name in project.settings.hosts
    shown = (
        static_document(project, name)
        if is_static
        else document(_arrived(project, one_of(project, name), until, clock, deadline))
    )
    if until != "running" and (until == "ready" or is_static):
        _answers(project, name, until, clock, deadline)
    waited_s = clock.now() - started
    text = {"running": "runs", "ssh": "answers on SSH", "ready": "is ready"}[until]
    return TaskResult(
        {"vm": shown, "until": until, "waited_s": round(waited_s, 3)}, text=f"{name} {text}"
    )


def _arrived(project: Project, name: str, until: str, clock: Time, deadline: float) -> Vm:
    cloud = project.connect_cloud()
    vm = _running(project, cloud, fetch_vm(project, cloud, name), clock, deadline)
    if until != "running":
        left_s = max(0.0, deadline - clock.now())
        waits = Patience.of(project)
        reach(
            project,
            cloud,
            vm,
            replace(waits, host_keys_s=min(waits.host_keys_s, left_s), ssh_s=left_s),
        )
    return vm


def _timeout_s(text: str) -> float:
    try:
        return float("inf") if text == "none" else float(duration_seconds(text))
    except ValueError as error:
        why = f'allowed: {error}, or "none"'
        raise UsageError(
            f"{text!r} is no duration", where="--timeout", why=why, fix="--timeout=10m"
        ) from None


def _running(project: Project, cloud: ComputeCloud, vm: Vm, clock: Time, deadline: float) -> Vm:
    while vm.status in PASSING:
        if clock.now() >= deadline:
            raise CommandTimeout(
                "the VM does not run in time",
                where=f"{vm.zone}/{vm.name}",
                why=f"it is {vm.status}",
            )
        clock.sleep(WAIT_PAUSE_S)
        vm = fetch_vm(project, cloud, vm.name)
    if vm.status != "RUNNING":
        fix = f"{project.program_argv0} vm.start --name {vm.name}"
        raise CloudError(
            "the VM does not run, and waiting starts nothing",
            where=f"{vm.zone}/{vm.name}",
            why=f"it is {vm.status}",
            fix=fix,
        )
    return vm


def _answers(project: Project, name: str, until: str, clock: Time, deadline: float) -> None:
    """Ask the host until it answers and, for `ready`, a check of its recipe finds no difference. What is left is told when it changes."""
    target = convergence.host(project, Targets(host=name))
    told = ""
    while True:
        try:
            left = _differs(project, target) if until == "ready" else _connects(project, target)
        except Unreachable as error:
            if clock.now() >= deadline:
                raise
            left = error.what
        if not left:
            return
        if clock.now() >= deadline:
            fix = f"{project.program_argv0} vm.provision --host {name}"
            raise CommandTimeout(
                "the host is not ready in time", where=name, why=f"still to come: {left}", fix=fix
            )
        if left != told:
            project.emit(Note(f"waiting for {left}", host=name))
            told = left
        clock.sleep(WAIT_PAUSE_S)


def _connects(project: Project, target: Host) -> str:
    convergence.connect(project, target).close()
    return ""


def _differs(project: Project, target: Host) -> str:
    """The resources that are not as the recipe has them; empty when all are."""
    with contextlib.closing(convergence.connect(project, target)) as transport:
        report = engine.converge(
            transport,
            convergence.cos_recipe(project, target),
            _drop,
            clock=time.monotonic,
            check=True,
        )
    if report.error is not None:
        raise report.error
    return ", ".join(
        outcome.resource for outcome in report.outcomes if outcome.status is not Status.OK
    )


def _drop(event: Event) -> None:
    del event
