"""The commands of nvidia-cuda-mps-control, as driver 580 answers them; sources in docs/facts.md.

A command gets the daemon's servers and its arguments, and returns the text that the tool prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .client_limits import with_limit
from .libcuda import gpu_uuid
from .messages import format_limit, parse_percentage, server_not_found
from .server_pool import ServerPool
from .servers import Server


def needs_privilege(name: str, arguments: list[str], uid: int) -> bool:
    """True for a command that only root and the daemon's own user may give.

    Every user may start a server of its own.
    """
    if name == "start_server" and arguments[:2] == ["-uid", str(uid)]:
        return False
    return name.startswith(("set_", "start_", "shutdown_", "terminate_"))


def _find_server(pool: ServerPool, words: list[str]) -> Server | None:
    return pool.servers.get(int(words[0])) if words and words[0].isdigit() else None


def _get_server_list(pool: ServerPool, _words: list[str]) -> str:
    return "".join(f"{pid}\n" for pid in pool.servers)


def _get_server_status(pool: ServerPool, words: list[str]) -> str:
    server = _find_server(pool, words)
    return server_not_found(words) if server is None else pool.status_of(server) + "\n"


def _start_server(pool: ServerPool, words: list[str]) -> str:
    if words[:1] != ["-uid"] or len(words) < 2 or not words[1].isdigit():
        return "A user id (UID) is required to start a new server\n"
    uid = int(words[1])
    for server in list(pool.servers.values()):
        idle = not server.clients
        if idle and server.uid != uid and not pool.serves_every_user:
            pool.end(server)
    if not pool.servers:
        pool.start(uid)
    return ""


def _shutdown_server(pool: ServerPool, words: list[str]) -> str:
    server = _find_server(pool, words)
    if server is None:
        return server_not_found(words)
    if server.clients and "-f" not in words:
        pool.log(
            f"Server {server.pid} has {len(server.clients)} active worker threads. "
            "Server will not shutdown."
        )
        return ""
    pool.end(server)
    return ""


def _get_client_list(pool: ServerPool, words: list[str]) -> str:
    server = _find_server(pool, words)
    return (
        server_not_found(words)
        if server is None
        else "".join(f"{client.pid}\n" for client in server.clients)
    )


def _get_device_client_list(pool: ServerPool, _words: list[str]) -> str:
    clients = [client for server in pool.servers.values() for client in server.clients]
    return (
        ""
        if not clients
        else f"[0] 00:00.0, {pool.environment.gpu_name()}\n"
        + "".join(f"{client.pid}.1\n" for client in clients)
    )


def _ps(pool: ServerPool, words: list[str]) -> str:
    by_pid = words[:1] == ["-p"]
    asked = [_find_server(pool, words[1:])] if by_pid else list(pool.servers.values())
    servers = [server for server in asked if server is not None]
    if not servers:
        return server_not_found(words[1:]) * 2 + "\n" if by_pid else "Server not found\n"
    lines = ["PID       ID    SERVER    DEVICE             NAMESPACE      COMMAND"]
    for server in servers:
        for number, client in enumerate(server.clients, 1):
            lines.append(
                f"{client.pid:<9} {number:<5} {server.pid:<9} {gpu_uuid(0)[:22]}  "
                f"{client.namespace:<14} {client.command}"
            )
    return "\n".join(lines) + "\n"


def _terminate_client(pool: ServerPool, words: list[str]) -> str:
    server = _find_server(pool, words)
    client = (
        server.find_client(int(words[1]))
        if server and len(words) > 1 and words[1].isdigit()
        else None
    )
    if server is None:
        return server_not_found(words) + server_not_found(words).replace("\n", "!\n") + "1\n"
    if client is None:
        return f"Invalid process {words[1] if len(words) > 1 else 0}!\n1\n"
    server.clients.remove(client)
    client.send(sticky=810)
    return "0\n"


def _get_default_active_thread_percentage(pool: ServerPool, _words: list[str]) -> str:
    return f"{pool.percentage:.1f}\n"


def _set_default_active_thread_percentage(pool: ServerPool, words: list[str]) -> str:
    value = parse_percentage(words[0]) if words else None
    if value is not None:  # an invalid one prints the old value, without an error
        pool.percentage = value
    return f"{pool.percentage:.1f}\n"


def _get_active_thread_percentage(pool: ServerPool, words: list[str]) -> str:
    server = _find_server(pool, words)
    return server_not_found(words) if server is None else f"{server.percentage:.1f}\n"


def _set_active_thread_percentage(pool: ServerPool, words: list[str]) -> str:
    server = _find_server(pool, words)
    if server is None:
        return server_not_found(words)
    value = parse_percentage(words[1]) if len(words) > 1 else None
    if value is not None:
        server.percentage = value
    return f"{server.percentage:.1f}\n"


def _get_default_device_pinned_mem_limit(pool: ServerPool, words: list[str]) -> str:
    return format_limit(pool.memory.get(words[0], "")) if words else ""


def _set_default_device_pinned_mem_limit(pool: ServerPool, words: list[str]) -> str:
    if len(words) > 1:
        pool.memory = with_limit(pool.memory, words[0], words[1])
    return ""


def _get_device_pinned_mem_limit(pool: ServerPool, words: list[str]) -> str:
    server = _find_server(pool, words)
    return (
        server_not_found(words)
        if server is None or len(words) < 2
        else format_limit(server.memory.get(words[1], ""))
    )


def _set_device_pinned_mem_limit(pool: ServerPool, words: list[str]) -> str:
    server = _find_server(pool, words)
    if server is None or len(words) < 3:
        return server_not_found(words)
    server.memory = with_limit(server.memory, words[1], words[2])
    return ""


def _get_default_client_priority(pool: ServerPool, _words: list[str]) -> str:
    return f"{pool.priority}\n"


def _set_default_client_priority(pool: ServerPool, words: list[str]) -> str:
    if words[:1] not in (["0"], ["1"]):
        return "Invalid priority value - must be 0 or 1!\n"
    pool.priority = int(words[0])
    return ""


COMMANDS: Mapping[str, Callable[[ServerPool, list[str]], str]] = {
    "get_server_list": _get_server_list,
    "get_server_status": _get_server_status,
    "start_server": _start_server,
    "shutdown_server": _shutdown_server,
    "get_client_list": _get_client_list,
    "get_device_client_list": _get_device_client_list,
    "ps": _ps,
    "terminate_client": _terminate_client,
    "get_default_active_thread_percentage": _get_default_active_thread_percentage,
    "set_default_active_thread_percentage": _set_default_active_thread_percentage,
    "get_active_thread_percentage": _get_active_thread_percentage,
    "set_active_thread_percentage": _set_active_thread_percentage,
    "get_default_device_pinned_mem_limit": _get_default_device_pinned_mem_limit,
    "set_default_device_pinned_mem_limit": _set_default_device_pinned_mem_limit,
    "get_device_pinned_mem_limit": _get_device_pinned_mem_limit,
    "set_device_pinned_mem_limit": _set_device_pinned_mem_limit,
    "get_default_client_priority": _get_default_client_priority,
    "set_default_client_priority": _set_default_client_priority,
}
