"""Who uses the GPU: clients that an MPS server lists, and processes outside MPS. Pure.

A CUDA process holds /dev/nvidia-uvm open, which tools that only ask the driver do not; processes of
other users are visible to root alone. nvidia-smi on the host lists every process with a context. A
process that either source shows and no server lists runs *outside* MPS: a client that cannot
reach a daemon runs without it and reports nothing (NVIDIA MPS guide, architecture).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from provision.core.parsing import parse_int
from provision.mps.status.control_tool import read_v3_clients
from provision.resources.nvidia_smi import SmiGpu, read_process_gpus, read_processes


@dataclass(frozen=True)
class GpuUser:
    """A process that uses the GPU."""

    pid: int
    """In its container."""
    command: str
    container: str = ""
    memory_mib: int | None = None
    """None where nvidia-smi does not report it."""
    host_pid: int | None = None

    def __str__(self) -> str:
        return f"{self.pid} {self.command}" + (f" ({self.container})" if self.container else "")


def tagged_lines(text: str, tag: str) -> str:
    """The rest of every line that begins with `tag|`."""
    return "\n".join(
        line.partition("|")[2] for line in text.split("\n") if line.startswith(f"{tag}|")
    )


def _rows(text: str, tag: str, columns: int) -> list[list[str]]:
    """The lines `tag|NUMBER|…` of so many columns after the tag; the last may hold more `|`."""
    rows = (line.split("|", columns - 1) for line in tagged_lines(text, tag).split("\n"))
    return [row for row in rows if len(row) == columns and parse_int(row[0]) is not None]


def other_gpu_pids(text: str, gpus: Sequence[SmiGpu]) -> frozenset[int]:
    """Host PIDs of the processes that use none of `gpus` but other GPUs.

    A process that nvidia-smi does not list, or lists without a UUID, may use any GPU: a CUDA
    program opens the nodes of every GPU that it may see. Raises `ProbeUnreadable`.
    """
    chosen = {gpu.uuid for gpu in gpus}
    used = read_process_gpus(tagged_lines(text, "place"))
    if not chosen:
        return frozenset()
    return frozenset(
        pid
        for pid, uuids in used.items()
        if not uuids & chosen and all(uuid.startswith("GPU-") for uuid in uuids)
    )


def read_gpu_users(
    text: str, values: Mapping[str, str], excluded_pids: Collection[int]
) -> tuple[list[GpuUser], list[GpuUser]]:
    """The clients that the server lists, and the other users of the GPU.

    A holder of the GPU is known by its PID on the host, a client by its PID in its container; the
    output of `docker top` relates the two. `excluded_pids` are host PIDs that do not count as
    outside. Raises `ProbeUnreadable`.
    """
    listed = _listed_commands(text, values)
    containers = values.get("boxes", "").split()
    clients: dict[str, GpuUser] = {}
    outside = []
    for comm, user in _gpu_holders(text):
        key = str(user.pid)
        if key in listed and (user.container in containers or not containers):
            clients[key] = replace(user, command=listed[key] or user.command)
        elif not comm.startswith("nvidia-cuda-mps") and user.host_pid not in excluded_pids:
            outside.append(user)
    only = containers[0] if len(containers) == 1 else ""
    return [
        clients.get(pid) or GpuUser(int(pid), command, only) for pid, command in listed.items()
    ], outside


def _listed_commands(text: str, values: Mapping[str, str]) -> dict[str, str]:
    """Command by PID of every client that a server lists, of either version of MPS."""
    listed = {
        key[7:]: value.strip()
        for key, value in values.items()
        if key.startswith("client.") and parse_int(key[7:]) is not None
    }
    v3_clients = read_v3_clients(tagged_lines(text, "client"))
    return listed | {str(client.pid): client.command for client in v3_clients}


def _gpu_holders(text: str) -> list[tuple[str, GpuUser]]:
    """Name and record of every process that holds the GPU open or has a context on it."""
    processes = read_processes(tagged_lines(text, "app"))
    memory = {process.pid: process.memory_mib for process in processes}
    container_of = {row[0]: row[1] for row in _rows(text, "top", 2)}
    holders = []
    for host_pid, inner, comm, command in _rows(text, "holder", 4):
        pid = parse_int(inner)
        if pid is not None:
            container = container_of.get(host_pid, "")
            used = memory.get(int(host_pid))
            user = GpuUser(pid, command.strip() or comm, container, used, int(host_pid))
            holders.append((comm, user))
    return holders
