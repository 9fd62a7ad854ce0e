"""Fetch the status of MPS from a host."""

from __future__ import annotations

from provision.commands.shared.run_script import run_script
from provision.core.model import Host, Transport
from provision.core.shell import Script
from provision.mps.status.status import MpsStatus, read_status, status_script
from provision.project.project import Project
from provision.recipes.worker import daemon_container_name
from provision.resources.driver import DRIVER_DIR


def fetch_status(
    project: Project, target: Host, transport: Transport, *, gpu: str | None = None
) -> MpsStatus:
    """The status of MPS and the users of the GPU on a host, in one exchange.

    `gpu` (index or UUID) replaces the GPU of the settings. Raises `CommandFailed` when the script
    fails, `ProbeUnreadable` for an answer that cannot be read, and errors of the connection.
    """
    answer = run_script(
        transport,
        status_script_for(project, target, gpu=gpu),
        "reading the MPS status",
        timeout_s=60.0,
    )
    return read_status(answer)


def status_script_for(project: Project, target: Host, *, gpu: str | None = None) -> Script:
    """The script that `fetch_status` runs; `read_status` reads its answer."""
    settings = project.settings
    return status_script(
        daemon_container_name(settings),
        worker=settings.worker.name if settings.mps.topology == "containers" else "",
        workers=settings.worker.processes,
        device=gpu or settings.mps.gpu or "",
        users=True,
        driver_dir=target.driver_dir or DRIVER_DIR.path,
    )
