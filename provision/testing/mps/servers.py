"""MPS servers of the control daemon, and their clients."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    import subprocess
    from typing import Any

READY_S = 0.05
CONTEXTS = {True: 48, False: 16}
"""Contexts that a server takes, from Volta on and before (MPS guide; 48 measured on CUDA 13.0)."""


class Client:
    """A program that holds a connection. Its PID is 0 in another PID namespace."""

    def __init__(self, link: socket.socket, pid: int, *, same_namespace: bool) -> None:
        self.link = link
        self.pid = pid if same_namespace else 0
        self.contexts = 0

    def send(self, **message: Any) -> None:
        """Send a message, unless the client has gone."""
        with contextlib.suppress(OSError):
            self.link.sendall(json.dumps(message).encode() + b"\n")

    @property
    def command(self) -> str:
        """The command name of the client, as `ps` shows it."""
        try:
            with open(f"/proc/{self.pid}/comm") as file:  # noqa: PTH123 - starts faster
                return file.read().strip()
        except OSError:
            return "?"

    @property
    def namespace(self) -> str:
        """The inode of its PID namespace."""
        try:
            return os.readlink(f"/proc/{self.pid}/ns/pid").strip("pid:[]")  # noqa: PTH115
        except OSError:
            return "0"


class Server:
    """One MPS server: its process, its user, its limits, its clients."""

    def __init__(
        self, process: subprocess.Popen[bytes], uid: int, percentage: float, memory: dict[str, str]
    ) -> None:
        self.process = process
        self.pid = process.pid
        self.uid = uid
        self.percentage = percentage
        self.memory = dict(memory)
        self.clients: list[Client] = []
        self.started_at = time.monotonic()

    @property
    def state(self) -> str:
        """INITIALIZING for a moment, then ACTIVE."""
        return "ACTIVE" if time.monotonic() - self.started_at >= READY_S else "INITIALIZING"

    @property
    def contexts(self) -> int:
        """Contexts of all its clients."""
        return sum(client.contexts for client in self.clients)

    def find_client(self, pid: int) -> Client | None:
        """The client with this PID, or None."""
        return next((client for client in self.clients if client.pid == pid), None)

    def remove_connection(self, link: socket.socket) -> None:
        """Remove the client of a closed connection."""
        self.clients = [client for client in self.clients if client.link is not link]
