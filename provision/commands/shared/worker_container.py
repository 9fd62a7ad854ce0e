"""Check that the worker container runs, and the error where it does not."""

from __future__ import annotations

from pathlib import Path

from provision.core.errors import HostError
from provision.core.job import script_command
from provision.core.model import Transport
from provision.core.shell import script
from provision.project.project import Project
from provision.resources.container import IS_RUNNING

HERE = Path(__file__).parent


def check_container_runs(project: Project, transport: Transport) -> None:
    """Raise `HostError` when the worker container does not run. Asks the host."""
    body = script(HERE / "check_running.sh", uses=[IS_RUNNING], name=project.settings.worker.name)
    command, stdin = script_command(body, become=transport.host.become)
    status = transport.exchange(
        command, stdin, on_stdout=lambda data: None, on_stderr=lambda data: None, timeout_s=60.0
    )
    if status != 0:
        raise container_not_running(project, transport)


def container_not_running(
    project: Project, transport: Transport, container: str | None = None
) -> HostError:
    """The error for a container that is absent or stopped; the worker's for None."""
    name = project.settings.worker.name
    which = "the worker container" if container in {None, name} else f"the container {container}"
    return HostError(
        f"{which} is not running",
        where=transport.host.name,
        why=f"no running container {container or name}",
        fix=f"{project.program_argv0} dev.up",
    )
