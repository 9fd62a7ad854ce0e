"""Hosts to act on, connections to them, and a recipe run over them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from provision.cloud.api.protocol import ComputeCloud
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core import engine, fleet
from provision.core.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_WOULD_CHANGE,
    UsageError,
    worst_exit,
)
from provision.core.fleet import Cancel
from provision.core.model import (
    Emit,
    Host,
    HostConnected,
    HostReport,
    HostStarted,
    RunFinished,
    Status,
    Transport,
)
from provision.core.resource import Resource
from provision.hosts.local import LocalTransport
from provision.hosts.patterns import has_filters, select_by_name
from provision.project import host_keys, inventory, vm_address
from provision.project.project import Project
from provision.recipes import host_recipe
from provision.report import hosts_document

RecipeFor = Callable[[Host], Sequence[Resource]]


def hosts(project: Project, targets: Targets) -> list[Host]:
    """The hosts that `--host` or `--limit` choose; without either, the one that the settings name.

    Nobody is asked for names; a filter asks the cloud once, and so does a name while a VM that was
    made is not remembered.
    """
    if targets.limit is not None and (
        has_filters(targets.limit) or inventory.has_unrecorded_vm(project)
    ):
        return inventory.fetch_matching_hosts(project, targets.limit)
    everything = inventory.recorded_hosts(project)
    if targets.limit is not None:
        return inventory.prepare_access(project, select_by_name(everything, targets.limit))
    name = targets.host or project.settings.name
    if all(each.name != name for each in everything) and inventory.has_unrecorded_vm(project):
        found = inventory.fetch_inventory(project).find(project, name)
        if found is not None:
            return [found.host]
    return inventory.prepare_access(project, [_one(project, everything, name)])


def host(project: Project, targets: Targets) -> Host:
    """The single host of a task that acts on one. Raises `UsageError` when the pattern names several."""
    chosen = hosts(project, targets)
    if len(chosen) != 1:
        names = ", ".join(each.name for each in chosen)
        raise UsageError(
            "this task acts on one host",
            why=f"the pattern names {len(chosen)}: {names}",
            fix="--host NAME",
        )
    return chosen[0]


def _one(project: Project, everything: Sequence[Host], name: str) -> Host:
    found = next((each for each in everything if each.name == name), None)
    if found is None:
        known = ", ".join(each.name for each in everything)
        none = f"no VM was made yet in the project {project.project_dir}, and its settings name no hosts"
        why = f"known hosts: {known}" if known else none
        fix = f"{project.program_argv0} vm.create --name {shlex.quote(name)}" + (
            ", or --host NAME" if known else ""
        )
        raise UsageError(f"there is no host named {name}", why=why, fix=fix)
    return found


def connect(
    project: Project,
    target: Host,
    *,
    timeout_s: float = 15.0,
    on_closer: Callable[[Callable[[], None]], None] | None = None,
    cloud: ComputeCloud | None = None,
) -> Transport:
    """An open transport: this machine itself, or one SSH connection. Raises `Unreachable`, `HostKeyMismatch`.

    `on_closer` is given, before the connection stands, what ends it. A VM whose key is not the
    pinned one is asked once, through the cloud, which keys it publishes; one that is not reached is
    looked for there, unless `cloud` is given by who knows that it runs.
    """
    if target.is_local:
        return LocalTransport(target)
    from provision.hosts.ssh import connection

    def once(where: Host) -> Transport:
        config = project.ssh_config
        return connection.connect(
            where,
            known_hosts=project.known_hosts,
            timeout_s=timeout_s,
            ssh_config=config,
            on_closer=on_closer,
        )

    def trusted(where: Host) -> Transport:
        return host_keys.retry_with_published_keys(project, cloud, where, once)

    return (
        trusted(target)
        if cloud is not None
        else vm_address.retry_at_current_address(project, target, trusted)
    )


def cos_recipe(project: Project, target: Host) -> list[Resource]:
    """The host's own recipe with the user's extra ones."""
    return host_recipe(project.settings, project.project_dir, host=target)


def converge(
    project: Project, targets: Targets, chosen: Sequence[Host], recipe: RecipeFor, title: str
) -> RunFinished:
    """Run a recipe on hosts and return the reports. One connection for each host."""

    def work(target: Host, emit: Emit, cancel: Cancel) -> HostReport:
        resources = recipe(target)
        started = time.monotonic()
        emit(HostStarted(target.name))
        transport = connect(
            project, target, on_closer=lambda close: cancel.register(target.name, close)
        )
        cancel.register(target.name, transport.close)
        try:
            emit(HostConnected(target.name, time.monotonic() - started))
            report = engine.converge(
                transport, resources, emit, clock=time.monotonic, check=targets.check
            )
        finally:
            transport.close()
        return replace(report, seconds=time.monotonic() - started)

    return fleet.run(
        chosen, work, project.emit, title=title, pace=targets.pace, check=targets.check
    )


def done(finished: RunFinished, *, check: bool, **more: Any) -> TaskResult:
    """The run as a `TaskResult`: its document and the worst exit status of its hosts."""
    codes = [_exit_code(report, check=check) for report in finished.reports]
    if finished.interrupted:
        codes.append(EXIT_INTERRUPTED)
    if finished.not_started and not finished.interrupted:
        codes.append(EXIT_FAILED)
    return TaskResult({**more, **hosts_document(finished)}, worst_exit(codes))


def _exit_code(report: HostReport, *, check: bool) -> int:
    if report.error is not None:
        return report.error.exit_code
    failures = [
        outcome.error.exit_code if outcome.error else EXIT_FAILED
        for outcome in report.outcomes
        if outcome.status is Status.FAILED
    ]
    if failures:
        return worst_exit(failures)
    if check and report.count(Status.CHANGED) + report.count(Status.UNKNOWN):
        return EXIT_WOULD_CHANGE
    return EXIT_FAILED if report.count(Status.UNKNOWN) + report.count(Status.SKIPPED) else EXIT_OK


def run(project: Project, targets: Targets, recipe: RecipeFor, title: str) -> TaskResult:
    """A recipe over the chosen hosts, from beginning to end."""
    finished = converge(project, targets, hosts(project, targets), recipe, title)
    return done(finished, check=targets.check)
