"""dev.exec: run a command in the worker container."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from provision.commands.dev.shared.program import run_in_worker
from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.project.project import Project


def dev_exec(
    project: Project, targets: Targets, words: Sequence[str], *, count: int | None = None
) -> TaskResult:
    """Run a command in the container, its output streamed; the exit code is its status.

    With `count` it runs so many times at once, and the exit code is the worst status. Raises
    `HostError` when the container does not run, and errors of the connection.
    """
    host = host_access.resolve_host(project, targets)
    with contextlib.closing(host_access.connect(project, host)) as transport:
        return run_in_worker(project, transport, words, count)
