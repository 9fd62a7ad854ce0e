"""mps.status: what the MPS daemon of one host reports, and which processes use the GPU."""

from __future__ import annotations

from contextlib import closing

from provision.commands.mps.shared.fetch_status import fetch_status
from provision.commands.mps.shared.status_report import status_document, status_text
from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import EXIT_FAILED, EXIT_OK
from provision.mps.status.status import MpsStatus
from provision.project.project import Project


def mps_status(project: Project, targets: Targets, *, strict: bool = False) -> TaskResult:
    """The status of MPS on one host. Exit status 1 unless `is_healthy`."""
    target = host_access.resolve_host(project, targets)
    with closing(host_access.connect(project, target)) as transport:
        status = fetch_status(project, target, transport)
    return TaskResult(
        status_document(project, status),
        EXIT_OK if is_healthy(status, strict=strict) else EXIT_FAILED,
        status_text(project, status),
    )


def is_healthy(status: MpsStatus, *, strict: bool) -> bool:
    """True where a daemon answers.

    With `strict`, also the server is ACTIVE, a client of every container was proven to attach, and
    it is known that no process uses the GPU outside MPS.
    """
    if not strict:
        return status.daemon
    serves = status.daemon and status.server_state == "ACTIVE" and status.attached
    return serves and not status.outside and status.outside_known
