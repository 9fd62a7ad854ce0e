"""`vm.wait`: waits until a VM runs, answers on SSH, or is ready."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace

from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.lifecycle.vm_states import TRANSITIONAL_STATES
from provision.commands.shared import convergence, host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.shared.clock import Clock
from provision.commands.vm.shared.documents import static_host_document, vm_document
from provision.commands.vm.shared.selection import parse_one_vm_name
from provision.commands.vm.shared.wait_for_ssh import WaitLimits, wait_for_ssh
from provision.core import engine
from provision.core.errors import CloudError, CommandTimeout, Unreachable, UsageError
from provision.core.model import Event, Host, Note, Status, Vm
from provision.project.owned_vms import fetch_vm
from provision.project.project import Project
from provision.settings.validators import duration_seconds

PAUSE_S = 3.0
STAGES = {"running": "runs", "ssh": "answers on SSH", "ready": "is ready"}
"""The values of `--until`, and the end of the line when the stage is reached."""
DEFAULT_TIMEOUT = "15m"


@dataclass(frozen=True)
class Wait:
    """What to wait for, and until when by the clock."""

    until: str
    clock: Clock
    deadline: float

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 when it is over."""
        return max(0.0, self.deadline - self.clock.now())

    @property
    def is_over(self) -> bool:
        """True when the deadline is over."""
        return self.clock.now() >= self.deadline


def vm_wait(
    project: Project,
    name: str,
    *,
    until: str = "ready",
    timeout: str = DEFAULT_TIMEOUT,
    clock: Clock | None = None,
) -> TaskResult:
    """Wait until the VM runs, answers on SSH, or is ready: booted, nothing differs from the recipe.

    Waits for a host of the settings as well. Raises `Unreachable` or `CommandTimeout` when
    `timeout` is over, `CloudError` for a stopped VM, since waiting starts nothing, and `UsageError`
    for an invalid stage or timeout.
    """
    if until not in STAGES:
        raise UsageError(
            f"cannot wait for {until!r}",
            where="--until",
            why=f"allowed: {', '.join(STAGES)}",
            fix="--until=ssh",
        )
    clock = clock or Clock()
    started = clock.now()
    wait = Wait(until, clock, started + _parse_timeout(timeout))
    is_static = name in project.settings.hosts
    if is_static:
        document = static_host_document(project, name)
    else:
        document = vm_document(_wait_for_vm(project, parse_one_vm_name(project, name), wait))
    if until == "ready" or (until == "ssh" and is_static):
        _wait_for_host(project, name, wait)
    waited_s = round(clock.now() - started, 3)
    return TaskResult(
        {"vm": document, "until": until, "waited_s": waited_s}, text=f"{name} {STAGES[until]}"
    )


def _parse_timeout(text: str) -> float:
    try:
        return float("inf") if text == "none" else float(duration_seconds(text))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a duration",
            where="--timeout",
            why=f'allowed: {error}, or "none"',
            fix="--timeout=10m",
        ) from None


def _wait_for_vm(project: Project, name: str, wait: Wait) -> Vm:
    """The VM once it runs and, unless that is all, answers on SSH."""
    cloud = project.connect_cloud()
    vm = _wait_until_running(project, cloud, fetch_vm(project, cloud, name), wait)
    if wait.until != "running":
        left_s, limits = wait.left_s, WaitLimits.of(project)
        limits = replace(limits, host_keys_s=min(limits.host_keys_s, left_s), ssh_s=left_s)
        wait_for_ssh(project, cloud, vm, limits)
    return vm


def _wait_until_running(project: Project, cloud: ComputeCloud, vm: Vm, wait: Wait) -> Vm:
    while vm.status in TRANSITIONAL_STATES:
        if wait.is_over:
            raise CommandTimeout(
                "the VM does not run in time",
                where=f"{vm.zone}/{vm.name}",
                why=f"it is {vm.status}",
            )
        wait.clock.sleep(PAUSE_S)
        vm = fetch_vm(project, cloud, vm.name)
    if vm.status != "RUNNING":
        raise CloudError(
            "the VM does not run, and waiting starts nothing",
            where=f"{vm.zone}/{vm.name}",
            why=f"it is {vm.status}",
            fix=f"{project.program_argv0} vm.start --name {vm.name}",
        )
    return vm


def _wait_for_host(project: Project, name: str, wait: Wait) -> None:
    """Connect until the host answers and, for `ready`, a check finds no difference.

    Prints what is pending whenever that changes.
    """
    target = host_access.resolve_host(project, Targets(host=name))
    printed = ""
    while True:
        try:
            pending = _fetch_pending(project, target, wait.until)
        except Unreachable as error:
            if wait.is_over:
                raise
            pending = error.what
        if not pending:
            return
        if wait.is_over:
            raise CommandTimeout(
                "the host is not ready in time",
                where=name,
                why=f"still to come: {pending}",
                fix=f"{project.program_argv0} vm.provision --host {name}",
            )
        if pending != printed:
            project.emit(Note(f"waiting for {pending}", host=name))
            printed = pending
        wait.clock.sleep(PAUSE_S)


def _fetch_pending(project: Project, target: Host, until: str) -> str:
    """Connect; for `ready` also check the recipe. The resources that differ, empty for none."""
    with contextlib.closing(host_access.connect(project, target)) as transport:
        if until != "ready":
            return ""
        report = engine.converge(
            transport,
            convergence.host_recipe_for(project, target),
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
