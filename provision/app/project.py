"""The project's files in the container."""

from __future__ import annotations

import re

from provision.app import programs
from provision.app.session import Session
from provision.dev import sync
from provision.errors import CommandFailed, UsageError
from provision.model import Note, Transport


def bring_project(session: Session, transport: Transport) -> None:
    """The project as it is now in the container's workspace, for a command of it. A folder without git is not sent, and that is said."""
    try:
        names = sync.project_files(session.project_dir)
    except UsageError as error:
        session.emit(Note(f"the project's files were not sent: {error.why or error.what}"))
        return
    stage = sync.new_stage()
    send_project(session, transport, sync.pack(session.project_dir, names, stage), stage)


def send_project(session: Session, transport: Transport, packed: bytes, stage: str) -> None:
    """The project's files in the container's workspace; what is no longer among them is removed there."""
    try:
        programs.checked(transport, sync.receive(session.settings.worker.name, stage), "sending the project's files", chunks=[packed])
    except CommandFailed as error:
        if re.search(r"No such container|is not running", error.why):
            raise programs.not_running(session, transport) from error
        raise
