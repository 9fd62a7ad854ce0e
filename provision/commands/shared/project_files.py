"""The project's files in the container."""

from __future__ import annotations

import re

from provision.commands.shared import remote_exec
from provision.core.errors import CommandFailed, UsageError
from provision.core.model import Note, Transport
from provision.project.project import Project
from provision.sync import project_tar


def bring_project(project: Project, transport: Transport) -> None:
    """The project as it is now in the container's workspace, for a command of it. A folder without git is not sent, and that is said."""
    try:
        names = project_tar.project_files(project.project_dir)
    except UsageError as error:
        project.emit(Note(f"the project's files were not sent: {error.why or error.what}"))
        return
    stage = project_tar.new_stage()
    send_project(project, transport, project_tar.pack(project.project_dir, names, stage), stage)


def send_project(project: Project, transport: Transport, packed: bytes, stage: str) -> None:
    """The project's files in the container's workspace; what is no longer among them is removed there."""
    try:
        remote_exec.checked(
            transport,
            project_tar.receive(project.settings.worker.name, stage),
            "sending the project's files",
            chunks=[packed],
        )
    except CommandFailed as error:
        if re.search(r"No such container|is not running", error.why):
            raise remote_exec.not_running(project, transport) from error
        raise
