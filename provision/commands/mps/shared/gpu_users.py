"""Who else uses the GPU: a figure that is measured beside others is theirs as well."""

from __future__ import annotations

from provision.commands.mps.control import look
from provision.core.errors import HostError
from provision.core.model import Transport
from provision.mps.status.status import MpsStatus
from provision.project.project import Project


def alone(project: Project, transport: Transport, gpu: str) -> MpsStatus:
    """The status of MPS, as long as nobody uses `gpu` (index or UUID; empty for any of the host). Raises `HostError`, which names who does.

    Others are seen from the host, since nvidia-smi in a container shows no process of another PID
    namespace.
    """
    status = look(project, transport.host, transport, gpu=gpu)
    if busy := named(status):
        where = transport.host.name
        raise HostError(
            "other programs use the GPU: the figures would be theirs as well",
            where=where,
            why=busy,
            fix="stop them",
        )
    return status


def named(status: MpsStatus) -> str:
    """Everyone who uses the GPU, inside MPS and outside; empty for nobody."""
    users = [*status.clients, *status.outside]
    return "; ".join(
        " ".join(filter(None, (user.container, str(user.pid), user.command))) for user in users
    )
