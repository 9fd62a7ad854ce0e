"""The status of MPS as the document of `--json` and as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from provision.mps.plan import gpu_limits
from provision.mps.status.gpu_users import GpuUser
from provision.mps.status.status import MpsStatus
from provision.project.project import Project
from provision.recipes.worker import daemon_container_name
from provision.report.text import clean
from provision.resources.nvidia_smi import SmiGpu


def client_limit(status: MpsStatus) -> int | None:
    """How many contexts one server takes; None where the GPU or the driver is not known."""
    capabilities = [gpu.compute_capability for gpu in status.gpus if gpu.compute_capability]
    if not capabilities or status.cuda is None:
        return None
    return gpu_limits.client_limit(min(capabilities), status.cuda)


# --- the document ---------------------------------------------------------------------------------


def status_document(project: Project, status: MpsStatus) -> dict[str, Any]:
    """The document of `--json`."""
    return {
        "container": status.container_running,
        "daemon": status.daemon,
        "server": _server_document(status),
        "compute_mode": status.compute_mode or None,
        "thread_percentage": status.thread_percentage,
        "memory_limit": status.memory_limit,
        "client_limit": client_limit(status),
        "clients": _users_document(status.clients),
        "outside": _users_document(status.outside),
        "outside_known": status.outside_known,
        "named": _v3_servers_document(status),
        "topology": project.settings.mps.topology,
        "missing": list(status.missing_workers),
        "cpus": status.cpus or None,
        "gpu": status.gpu or None,
        "proof": dict(status.proof) or None,
        "gpus": [_gpu_document(gpu) for gpu in status.gpus],
    }


def _server_document(status: MpsStatus) -> dict[str, Any] | None:
    if status.server_pid is None:
        return None
    return {"state": status.server_state, "pid": status.server_pid, "uid": status.server_uid}


def _v3_servers_document(status: MpsStatus) -> list[dict[str, Any]] | None:
    rows = [
        {"name": server.name, "uid": server.uid, "pid": server.pid, "state": server.state}
        for server in status.v3_servers
    ]
    return rows or None


def _gpu_document(gpu: SmiGpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "utilization_percent": gpu.utilization,
        "memory_used_mib": gpu.memory_used_mib,
        "memory_total_mib": gpu.memory_total_mib,
    }


def _users_document(users: Iterable[GpuUser]) -> list[dict[str, Any]]:
    return [
        {
            "pid": user.pid,
            "command": user.command,
            "container": user.container,
            "memory_mib": user.memory_mib,
        }
        for user in users
    ]


# --- the text -------------------------------------------------------------------------------------


def status_text(project: Project, status: MpsStatus) -> str:
    """The status for people. Escape sequences in names and commands are removed."""
    if not status.container_running:
        lines = _no_container_lines(project)
    elif status.v3_servers:
        lines = _v3_lines(status)
    elif not status.daemon:
        lines = _no_daemon_lines(project, status)
    else:
        lines = _daemon_lines(status)
    return "\n".join(lines)


def _no_container_lines(project: Project) -> list[str]:
    name = daemon_container_name(project.settings)
    is_worker = name == project.settings.worker.name
    container = "the worker container" if is_worker else f"the container {name}"
    return [f"{container} is not running: {project.program_argv0} dev.up"]


def _v3_lines(status: MpsStatus) -> list[str]:
    servers = ", ".join(
        f"{server.name} (uid {server.uid}, {server.state or 'not running'})"
        for server in status.v3_servers
    )
    return [
        f"a daemon of MPS v3 answers, which this toolkit did not start: server {servers}",
        *_user_table("", status.clients),
        *_user_table("these use the GPU without MPS", status.outside),
    ]


def _no_daemon_lines(project: Project, status: MpsStatus) -> list[str]:
    reason = f" ({clean(status.why_no_answer)})" if status.why_no_answer else ""
    return [
        f"no MPS daemon answers in the container{reason}",
        f"  try: {project.program_argv0} mps.enable",
        *_user_table("these use the GPU without MPS", status.outside),
    ]


def _daemon_lines(status: MpsStatus) -> list[str]:
    """Properties of the daemon, then the processes outside MPS, then the clients.

    Processes outside MPS need an action, so they come first where a screen is too low for all.
    """
    properties = [f"{name:<18} {clean(value)}" for name, value in _properties(status) if value]
    outside = _user_table("these use the GPU outside MPS: restart them", status.outside)
    return [*properties, *outside, *_user_table("attached" if outside else "", status.clients)]


def _properties(status: MpsStatus) -> list[tuple[str, str]]:
    """Name and value of each line; a property without a value is left out."""
    limit = client_limit(status)
    unknown = "not known: only root sees it, and nvidia-smi does not report it (become: sudo)"
    memory = f"{status.memory_limit} for each client" if status.memory_limit else "none"
    return [
        ("daemon", f"answers (pid {status.daemon_pid})" if status.daemon_pid else "answers"),
        ("server", _server(status)),
        ("workers", _workers(status)),
        ("proof", _proof(status)),
        ("compute mode", status.compute_mode or "not known"),
        ("thread percentage", f"{status.thread_percentage:g} % for each client"),
        ("memory limit", memory),
        ("cpus", "" if status.cpus == "all" else status.cpus),
        ("gpu", status.gpu),
        ("clients", f"{len(status.clients)} of {limit}" if limit else f"{len(status.clients)}"),
        ("outside", "" if status.outside_known else unknown),
    ]


def _server(status: MpsStatus) -> str:
    if status.server_pid is None:
        return "none yet: the first client starts it"
    return f"{status.server_state} (pid {status.server_pid}, uid {status.server_uid})"


def _workers(status: MpsStatus) -> str:
    """How many worker containers run, and which do not; empty without worker containers."""
    if not status.worker_count:
        return ""
    running = f"{status.worker_count - len(status.missing_workers)} of {status.worker_count}"
    return (
        f"{running}; not running: {', '.join(status.missing_workers)}"
        if status.missing_workers
        else running
    )


def _proof(status: MpsStatus) -> str:
    """What the probe clients printed; one line for all when every one is attached."""
    if not status.proof:
        is_single = status.worker_count is None
        where = "on this server" if is_single else "with this server and these containers"
        return f"not tried {where}: mps.enable tries it"
    if not status.attached:
        failures = [each for each in status.proof if not each[1].startswith("attached")]
        return "; ".join(f"{container}: {answer}" for container, answer in failures)
    if len(status.proof) == 1:
        return status.proof[0][1]
    return f"a client of each of {len(status.proof)} containers was attached"


def _user_table(title: str, users: Sequence[GpuUser]) -> list[str]:
    """A line for each process, sorted by PID, below an empty line, `title` and a heading."""
    if not users:
        return []
    width = max(9, *(len(clean(user.container)) for user in users))
    rows = [
        f"  {user.pid:>7}  {clean(user.container):<{width}}  {_memory(user):>10}"
        f"  {clean(user.command)}"
        for user in sorted(users, key=lambda user: user.pid)
    ]
    heading = f"  {'pid':>7}  {'container':<{width}}  {'memory':>10}  command"
    return ["", *filter(None, [title]), heading, *rows]


def _memory(user: GpuUser) -> str:
    return "-" if user.memory_mib is None else f"{user.memory_mib} MiB"
