"""Run a recipe over the hosts of a task, and report the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core import engine, fleet
from provision.core.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_WOULD_CHANGE,
    worst_exit,
)
from provision.core.fleet import Cancel
from provision.core.model import (
    Emit,
    Host,
    HostReport,
    RunFinished,
    Status,
)
from provision.core.resource import Resource
from provision.project.project import Project
from provision.recipes import host_recipe
from provision.report import hosts_document

RecipeFor = Callable[[Host], Sequence[Resource]]


def host_recipe_for(project: Project, target: Host) -> list[Resource]:
    """The recipe of a GPU host with the user's extra ones."""
    return host_recipe(project.settings, project.project_dir, host=target)


def converge_hosts(
    project: Project, targets: Targets, hosts: Sequence[Host], recipe: RecipeFor, title: str
) -> RunFinished:
    """The reports of a recipe run on `hosts`, over one connection for each.

    `title` is the name of the task. A failure of a host is in its report.
    """

    def work(target: Host, emit: Emit, cancel: Cancel) -> HostReport:
        resources = recipe(target)
        started = time.monotonic()
        with host_access.connection_of_run(project, target, emit, cancel) as transport:
            report = engine.converge(
                transport, resources, emit, clock=time.monotonic, check=targets.check
            )
        return replace(report, seconds=time.monotonic() - started)

    return fleet.run(hosts, work, project.emit, title=title, pace=targets.pace, check=targets.check)


def task_result(finished: RunFinished, *, check: bool, **more: Any) -> TaskResult:
    """The result of a run: its document and the keys `more`, the worst exit code of its hosts."""
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


def converge_targets(
    project: Project, targets: Targets, recipe: RecipeFor, title: str
) -> TaskResult:
    """Find the hosts of the task, run a recipe on them, and return the result."""
    hosts = host_access.resolve_hosts(project, targets)
    finished = converge_hosts(project, targets, hosts, recipe, title)
    return task_result(finished, check=targets.check)
