"""Run the user's program in the worker container, once or several times at once."""

from __future__ import annotations

from collections.abc import Sequence

from provision.commands.dev.shared.clients.run import run_clients
from provision.commands.shared.result import TaskResult
from provision.commands.shared.user_program.run import run_program
from provision.core.model import Transport
from provision.project.project import Project


def run_in_worker(
    project: Project, transport: Transport, words: Sequence[str], count: int | None
) -> TaskResult:
    """Run `words` once, with its output unchanged, or `count` times at once.

    Raises `HostError` when the container does not run, and errors of the connection.
    """
    if count is not None:
        return run_clients(project, transport, words, count)
    container = project.settings.worker.name
    return run_program(project, transport, container, words, stdin=project.stdin)
