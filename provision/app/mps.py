"""MPS in the worker container: on, off, and what it says of itself."""

from __future__ import annotations

from typing import Any

from provision.app import converging, programs
from provision.app.session import Done, Session, Targets
from provision.errors import EXIT_FAILED
from provision.recipes import mps
from provision.resources.mps import MpsStatus, read_status, status_script


def mps_enable(session: Session, targets: Targets) -> Done:
    """A control daemon that answers and a server that is ACTIVE; again after a boot."""
    return converging.run(session, targets, lambda target: mps(session.settings), "mps.enable")


def mps_disable(session: Session, targets: Targets) -> Done:
    """No daemon; directories and compute mode as they were found."""
    return converging.run(session, targets, lambda target: mps(session.settings, present=False), "mps.disable")


def mps_status(session: Session, targets: Targets) -> Done:
    """What the control daemon of one host says. Exit status 1 when none answers."""
    target = converging.host(session, targets)
    transport = converging.connect(session, target)
    try:
        text = programs.checked(transport, status_script(session.settings.worker.name), "reading the MPS status", timeout_s=60.0)
    finally:
        transport.close()
    status = read_status(text)
    return Done(_document(session, status), 0 if status.daemon else EXIT_FAILED, _text(session, status))


def _document(session: Session, status: MpsStatus) -> dict[str, Any]:
    server = {"state": status.server_state, "pid": status.server_pid, "uid": status.server_uid} if status.server_pid is not None else None
    container = session.settings.worker.name
    clients = [{"pid": client.pid, "command": client.command, "container": container, "memory_mib": None} for client in status.clients]
    return {
        "daemon": status.daemon,
        "server": server,
        "compute_mode": status.compute_mode or None,
        "thread_percentage": status.thread_percentage,
        "memory_limit": None,
        "client_limit": None,
        "clients": clients,
        "outside": None,
    }


def _text(session: Session, status: MpsStatus) -> str:
    if not status.container_running:
        return f"the worker container is not running: {session.program_argv0} dev.up"
    if not status.daemon:
        said = f" ({status.said})" if status.said else ""
        return f"no MPS daemon answers in the container{said}: {session.program_argv0} mps.enable"
    lines = [
        "daemon             answers",
        f"server             {status.server_state or 'none yet: the first client starts it'}"
        + (f" (pid {status.server_pid}, uid {status.server_uid})" if status.server_pid else ""),
        f"compute mode       {status.compute_mode or '-'}",
        f"thread percentage  {status.thread_percentage:g}",
        f"clients            {len(status.clients)}",
    ]
    return "\n".join([*lines, *(f"  {client.pid:>7}  {client.command}" for client in status.clients)])
