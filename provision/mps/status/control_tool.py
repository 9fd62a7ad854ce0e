"""Readers of what nvidia-cuda-mps-control prints, as values and records. Pure.

Sources: the NVIDIA MPS guide (commands, server states, columns of MPS v3),
nvidia-cuda-mps-control(1), and answers recorded on drivers 550 and 580 (docs/facts.md). The tool
exits 0 for unknown commands, missing servers and refused privileges, so only its text counts.

A missing scalar reads None or empty. A malformed table raises `ProbeUnreadable`.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass

from provision.core.parsing import parse_decimal, parse_int, unreadable_answer

SERVER_STATES = ("INITIALIZING", "ACTIVE", "FAULT")
"""States of a server (MPS guide, architecture). MPS v3 prints `Ready` for ACTIVE."""


# --- version 2 ------------------------------------------------------------------------------------


def read_percentage(text: str) -> float | None:
    """The answer of `get_default_active_thread_percentage` and its kin, in (0, 100]; else None."""
    value = parse_decimal(text)
    return value if value is not None and 0.0 < value <= 100.0 else None


def read_server_state(text: str) -> str:
    """The answer of `get_server_status`: one of `SERVER_STATES`; empty for anything else."""
    word = text.strip().upper()
    return "ACTIVE" if word == "READY" else word if word in SERVER_STATES else ""


def read_memory_limit_mib(text: str) -> int | None:
    """The answer of `get_device_pinned_mem_limit` and its kin (`3G`, `512M`) in MiB.

    None where no limit is set. The tool prints whole gigabytes only: `1500M` reads back as `1G`.
    """
    match = re.fullmatch(r"(\d{1,9})([KMG]?)B?", text.strip(), re.ASCII)
    if match is None:
        return None
    value = int(match[1])
    return value * 1024 if match[2] == "G" else value // 1024 if match[2] == "K" else value


# --- version 3 (CSV) ------------------------------------------------------------------------------


@dataclass(frozen=True)
class V3Client:
    """A client of a server of MPS v3: one row of `client list --format=csv`."""

    pid: int
    command: str
    server: str
    device: str
    namespace: str


@dataclass(frozen=True)
class V3Server:
    """A server of MPS v3: one row of `server list --format=csv`."""

    name: str
    uid: int
    pid: int | None
    state: str
    pipe_directory: str


def _read_csv(command: str, text: str, heading: str, min_columns: int) -> list[list[str]]:
    """The rows of a CSV answer, without its heading row, whose first column is `heading`.

    Raises `ProbeUnreadable` for text that is not CSV and for a row of fewer than `min_columns`.
    """
    try:
        rows = [
            [cell.strip() for cell in row]
            for row in csv.reader(io.StringIO(text.replace("\0", "�")))
            if any(map(str.strip, row))
        ]
    except csv.Error as error:
        raise unreadable_answer(command, str(error)) from None
    body = [row for row in rows if row[0].lower() != heading]
    for row in body:
        if len(row) < min_columns:
            raise unreadable_answer(command, ",".join(row))
    return body


def read_v3_servers(text: str) -> tuple[V3Server, ...]:
    """The servers that `server list --format=csv` prints.

    Columns: name, uid, pid, status, pipe-directory, allowed-devices, context-ids. Raises
    `ProbeUnreadable` for a malformed table.
    """
    servers = []
    for name, uid_text, pid, status, pipe, *_ in _read_csv("server list", text, "name", 5):
        uid = parse_int(uid_text)
        if uid is None:
            raise unreadable_answer("server list", f"{name},{uid_text}")
        servers.append(V3Server(name, uid, parse_int(pid), read_server_state(status), pipe))
    return tuple(servers)


def read_v3_clients(text: str) -> tuple[V3Client, ...]:
    """The clients that `client list --format=csv` prints.

    Columns: pid, server, device, namespace, cmd; a command may hold commas of its own. Raises
    `ProbeUnreadable` for a malformed table.
    """
    clients = []
    for pid_text, server, device, namespace, *cmd in _read_csv("client list", text, "pid", 5):
        pid = parse_int(pid_text)
        if pid is None:
            raise unreadable_answer("client list", f"{pid_text},{server}")
        clients.append(V3Client(pid, ",".join(cmd), server, device, namespace))
    return tuple(clients)
