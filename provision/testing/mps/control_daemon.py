"""The MPS control daemon: a process with two sockets, five files and its servers, also processes.

Its behaviour was observed on driver 550 (without a GPU) and 580 (with one), or is from NVIDIA's MPS
guide; see docs/facts.md. A program is a client while it holds a connection on `control` that began
with `attach`, as `libcuda` opens it.
"""

# a process for every command: it starts twice as fast without pathlib:
# ruff: noqa: PTH108, PTH123

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time

from .client_limits import limits_by_device, lowest_limits, parse_limits_variable
from .control_commands import COMMANDS, needs_privilege
from .environment import Message, MpsEnvironment
from .messages import QUIT_REFUSED, REFUSED, log_line, parse_percentage
from .server_pool import ServerPool
from .servers import CONTEXTS, Client, Server

_NOT_READY = "NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list"


class Daemon:
    """The daemon's state. `serve` runs until `quit` or a signal."""

    def __init__(
        self, environment: MpsEnvironment, *, foreground: bool = False, every_user: bool = False
    ) -> None:
        self.environment = environment
        self._foreground = foreground
        self._pool = ServerPool(environment, self.log, serves_every_user=every_user)
        self._tools: set[socket.socket] = set()
        self._pending: list[tuple[socket.socket | None, Message]] = []
        self._selector = selectors.DefaultSelector()
        self._log_file: int | None = None
        self._quitting: tuple[socket.socket, float | None] | None = None
        self._over = False

    # --- life ---

    def prepare(self, lock: int) -> None:
        """Create the five files; keep `lock`, the descriptor of the lock file, open."""
        self._lock = lock
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write("nvidia-cuda-mps-control")
        self._open_log()
        for name in ("control", "control_privileged"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.environment.pipe_file(name))
            listener = self.environment.open_socket(name, "bind")
            listener.listen(16)
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.environment.pipe_file("log"), 0o666)
        with open(self.environment.pipe_file("nvidia-cuda-mps-control.pid"), "w") as file:
            file.write(str(os.getpid()))
        self.log(f"Starting control daemon using socket {self.environment.pipe_name}/control")
        self.log(
            "To connect CUDA applications to this daemon, "
            f"set env CUDA_MPS_PIPE_DIRECTORY={self.environment.pipe_name}"
        )
        self._read_environment()

    def _read_environment(self) -> None:
        text = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        if text is None:
            return
        value = parse_percentage(text)
        if value is None:
            self.log(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE {text} should be between (0.0, 100.0]")
        else:
            self._pool.percentage = value

    def serve(self) -> None:
        """Answer requests until `quit`. SIGTERM ends the process at once and leaves every file."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        while not self._over:
            for key, _ in self._selector.select(0.02):
                key.data(key.fileobj)
            self._pool.remove_ended()
            self._serve_pending()
            self._try_to_quit()

    def _open_log(self) -> None:
        if self._foreground:  # it logs to standard output, without a control.log
            self._log_file = 1
            return
        with contextlib.suppress(OSError):
            self._log_file = os.open(
                f"{self.environment.logs}/control.log",
                os.O_WRONLY | os.O_CREAT | os.O_APPEND,
                0o644,
            )

    def log(self, text: str) -> None:
        """Write a line to control.log."""
        if self._log_file is not None:
            os.write(self._log_file, log_line("Control", os.getpid(), text).encode())

    # --- connections ---

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        self._selector.register(client, selectors.EVENT_READ, self._receive)

    def _receive(self, client: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = client.recv(1 << 16)
        if not data:
            self._drop(client)
            return
        for line in data.splitlines():
            message: Message = json.loads(line)
            if "line" not in message:
                self._handle_client(client, message)
                continue
            self._log_command(client, f"Cmd:{message['line']}")
            answer = self._answer(str(message["line"]), int(message["uid"]), client)
            if answer is not None:
                self._log_command(client, *answer.splitlines())
                client.sendall(json.dumps({"text": answer}).encode() + b"\n")

    def _log_command(self, client: socket.socket, *texts: str) -> None:
        """Log lines of a command and its answer, after the lines of a new connection."""
        if client not in self._tools:
            self._tools.add(client)
            texts = ("Accepting connection...", "NEW UI", *texts)
        for text in texts:
            self.log(text)

    def _drop(self, client: socket.socket) -> None:
        if client in self._tools:
            self._tools.remove(client)
            self.log("UI closed")
        self._selector.unregister(client)
        client.close()
        # observed: a client killed while it waits keeps its turn; a server is started for it
        self._pending = [
            (None if link is client else link, message) for link, message in self._pending
        ]
        for server in self._pool.servers.values():
            server.remove_connection(client)

    # --- clients ---

    def _handle_client(self, link: socket.socket, message: Message) -> None:
        if "attach" in message:
            self.log("Accepting connection...")
            # logged before every accepted client; it means nothing
            self.log("User did not send valid credentials")
            self.log("Accepting connection...")
            self._pending.append((link, message))
            self._serve_pending(first=True)
            return
        found = next(
            (
                (server, client)
                for server in self._pool.servers.values()
                for client in server.clients
                if client.link is link
            ),
            None,
        )
        if found is None:
            return
        server, client = found
        if message.get("illegal"):
            for other in server.clients:
                if other is not client:
                    other.send(sticky=700)
            return
        limit = CONTEXTS[self.environment.capability() >= (7, 0)]
        if message["context"] and server.contexts >= limit:
            self.log(f"Server {server.pid} refuses a context: {limit} are in use")
            client.send(code=808)
            return
        client.contexts += 1 if message["context"] else -1
        client.send(code=0)

    def _serve_pending(self, *, first: bool = False) -> None:
        """Attach waiting clients: of one user at a time, unless the daemon serves every user.

        A client of another user gets no reply while the server has clients. `first` logs that once.
        """
        for link, message in list(self._pending):
            uid, pid = int(message["uid"]), int(message["attach"])
            server = self._pool.first()
            if server is not None and server.uid != uid and not self._pool.serves_every_user:
                if server.clients:
                    if first:
                        self.log(_NOT_READY.format(pid=pid, uid=uid))
                    continue
                self._pool.end(server)
                server = None
            if server is None:
                self.log(_NOT_READY.format(pid=pid, uid=uid))
                server = self._pool.start(uid)
            else:
                self.log(f"NEW CLIENT {pid} from user {uid}: Server already exists")
            self._pending.remove((link, message))
            if link is not None:
                self._attach(link, server, message)

    def _attach(self, link: socket.socket, server: Server | None, message: Message) -> None:
        client = Client(
            link,
            int(message["attach"]),
            same_namespace=message["namespace"] == self.environment.namespace,
        )
        if server is None or self.environment.fault("mps_server_fault"):
            client.send(code=805 if server is None else 807)
            return
        server.clients.append(client)
        client.send(
            code=0,
            devices=self._pool.devices(),
            limits=self._limits(server),
            percentage=server.percentage,
        )

    def _limits(self, server: Server) -> dict[str, int]:
        """Bytes that a client may allocate of each GPU.

        The limit of the daemon's own environment applies too; no command shows it.
        """
        inherited = parse_limits_variable(os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""))
        return lowest_limits(
            *(limits_by_device(asked, self._pool.devices()) for asked in (inherited, server.memory))
        )

    # --- commands and the end ---

    def _answer(self, line: str, uid: int, client: socket.socket) -> str | None:
        """The tool's output for a line; None when the answer comes later."""
        words = line.split()
        if not words:
            return ""
        name, arguments = words[0], words[1:]
        if uid not in {0, self.environment.uid}:  # neither root nor the user who started the daemon
            if name == "quit":
                return QUIT_REFUSED
            if needs_privilege(name, arguments, uid):
                return REFUSED.format(uid=uid)
        if name == "quit":
            timeout_s = float(arguments[1]) if arguments[:1] == ["-t"] and arguments[1:] else None
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            self._quitting = (client, deadline)
            return None
        command = COMMANDS.get(name)
        return f'Unknown command "{name}"\n' if command is None else command(self._pool, arguments)

    def _try_to_quit(self) -> None:
        if self._quitting is None:
            return
        client, deadline = self._quitting
        busy = any(server.clients for server in self._pool.servers.values())
        if busy and (deadline is None or time.monotonic() < deadline):
            return
        for server in list(self._pool.servers.values()):
            self._pool.end(server)
        self.log("Exit with status 0")
        for name in ("nvidia-cuda-mps-control.pid", "log"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.environment.pipe_file(name))
        with contextlib.suppress(OSError):
            client.sendall(json.dumps({"text": ""}).encode() + b"\n")
        self._over = True
