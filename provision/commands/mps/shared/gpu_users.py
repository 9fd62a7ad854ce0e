"""Find processes that use the GPU: a measurement taken beside them would include their load."""

from __future__ import annotations

from provision.commands.mps.shared.fetch_status import fetch_status
from provision.core.errors import HostError
from provision.core.model import Transport
from provision.mps.status.status import MpsStatus
from provision.project.project import Project


def check_gpu_unused(project: Project, transport: Transport, gpu: str) -> MpsStatus:
    """The status of MPS, provided that no process uses `gpu` (index or UUID; empty: any GPU).

    Asks the host, since nvidia-smi in a container lists no process of another PID namespace. Raises
    `HostError`, which lists the processes, when there are some.
    """
    status = fetch_status(project, transport.host, transport, gpu=gpu)
    if users := describe_gpu_users(status):
        raise HostError(
            "other programs use the GPU: the figures would include their load",
            where=transport.host.name,
            why=users,
            fix="stop them",
        )
    return status


def describe_gpu_users(status: MpsStatus) -> str:
    """Container, PID and command of every process that uses the GPU; empty for none."""
    users = [*status.clients, *status.outside]
    return "; ".join(
        " ".join(filter(None, (user.container, str(user.pid), user.command))) for user in users
    )
