"""The MPS servers of one daemon, and the settings that new servers get."""

# a process for every command: it starts twice as fast without pathlib:
# ruff: noqa: PTH123

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from .environment import MpsEnvironment
from .libcuda import gpu_uuid, visible_devices
from .messages import log_line
from .servers import Server


class ServerPool:
    """The running servers by PID. `log` writes a line to control.log.

    `percentage`, `memory` (limit by device) and `priority` are the defaults for new servers.
    """

    def __init__(
        self, environment: MpsEnvironment, log: Callable[[str], None], *, serves_every_user: bool
    ) -> None:
        self.environment = environment
        self.log = log
        self.serves_every_user = serves_every_user
        self.servers: dict[int, Server] = {}
        self.percentage = 100.0
        self.memory: dict[str, str] = {}
        self.priority = 0

    def first(self) -> Server | None:
        """The oldest server, or None."""
        return next(iter(self.servers.values()), None)

    def devices(self) -> list[str]:
        """UUIDs of the GPUs that clients get: those that the daemon sees."""
        return visible_devices(
            [gpu_uuid(number) for number in range(self.environment.count_gpus())],
            os.environ.get("CUDA_VISIBLE_DEVICES"),
        )

    def start(self, uid: int) -> Server | None:
        """Start a server found on PATH; None when it exits at once, without library or GPU."""
        import shutil
        import subprocess

        program = shutil.which("nvidia-cuda-mps-server")
        if program is None or self.environment.find_libcuda() is None or not self.devices():
            self.log(f"Starting new server 0 for user {uid}")
            self.log("Server 0 exited with status 1")
            return None
        process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        server = Server(process, uid, self.percentage, self.memory)
        self.servers[server.pid] = server
        self.environment.register_server(server.pid)
        self.log(f"Starting new server {server.pid} for user {uid}")
        self.log(f"NEW SERVER {server.pid}: Ready")
        self._server_log(
            server,
            f"Active Threads Percentage set to {server.percentage:.1f}",
            "Server has started",
        )
        return server

    def remove_ended(self) -> None:
        """Remove the servers whose processes have ended."""
        for pid, server in list(self.servers.items()):
            if server.process.poll() is not None:
                self.log(f"Server {pid} exited with status {server.process.returncode}")
                del self.servers[pid]

    def end(self, server: Server) -> None:
        """Terminate a server."""
        server.process.terminate()
        server.process.wait()
        self.servers.pop(server.pid, None)
        self.log(f"Server {server.pid} exited with status 0")

    def status_of(self, server: Server) -> str:
        """The status of a server, such as ACTIVE."""
        if self.environment.fault("mps_server_fault"):
            return "FAULT"
        return server.state

    def _server_log(self, server: Server, *texts: str) -> None:
        """Write lines to server.log."""
        with contextlib.suppress(OSError), open(f"{self.environment.logs}/server.log", "a") as file:
            file.writelines(log_line("Server", server.pid, text) for text in texts)
