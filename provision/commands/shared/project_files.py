"""Send the project's files into the worker container."""

from __future__ import annotations

import re

from provision.commands.shared.run_script import run_script
from provision.commands.shared.worker_container import container_not_running
from provision.core.errors import CommandFailed, UsageError
from provision.core.model import Note, Transport
from provision.project.project import Project
from provision.sync import project_tar


def bring_project(project: Project, transport: Transport) -> None:
    """Send the project's files; for a folder without git, emit a note and send nothing.

    Raises what `send_project` raises.
    """
    try:
        names = project_tar.project_files(project.project_dir)
    except UsageError as error:
        project.emit(Note(f"the project's files were not sent: {error.why or error.what}"))
        return
    stage = project_tar.new_stage()
    send_project(project, transport, project_tar.pack(project.project_dir, names, stage), stage)


def send_project(project: Project, transport: Transport, packed: bytes, stage: str) -> None:
    """Unpack `packed` in the container's workspace; remove sent files that it no longer has.

    Raises `HostError` when the container does not run, `CommandFailed` for other failures.
    """
    try:
        run_script(
            transport,
            project_tar.receive(project.settings.worker.name, stage),
            "sending the project's files",
            chunks=[packed],
        )
    except CommandFailed as error:
        if re.search(r"No such container|is not running", error.why):
            raise container_not_running(project, transport) from error
        raise
