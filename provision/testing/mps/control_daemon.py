"""The control daemon: one real process with its sockets, its servers (real processes too), its five files.

What it answers was observed on driver 550 (without a GPU) and 580 (with one), and is told by
NVIDIA's MPS guide; see docs/facts.md. A program is listed as a client while it holds a connection
on `control` that began with `attach`; the stand-in for libcuda (`cuda`) does so.
"""

# a process for every question: it starts twice as fast without pathlib:
# ruff: noqa: PTH108, PTH123

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable

from .client_limits import limits, lowest, of_variable, with_limit
from .environment import Message, Place
from .libcuda import chosen, uuid
from .messages import REFUSED, missing, percentage, shown, stamped
from .servers import CONTEXTS, Client, Server


class Daemon:
    """State and answers. `serve` runs until `quit` or a signal."""

    def __init__(self, place: Place, *, foreground: bool = False, every_user: bool = False) -> None:
        self.place = place
        self._foreground = foreground
        self._every_user = every_user
        self._asking: set[socket.socket] = set()
        self._pending: list[tuple[socket.socket | None, Message]] = []
        self.percentage = 100.0
        self.memory: dict[str, str] = {}
        self.priority = 0
        self.servers: dict[int, Server] = {}
        self._selector = selectors.DefaultSelector()
        self._log_file: int | None = None
        self._quitting: tuple[socket.socket, float | None] | None = None
        self._over = False

    # --- life ---

    def prepare(self, lock: int) -> None:
        """Make the five files; `lock` is held for life."""
        self._lock = lock
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write("nvidia-cuda-mps-control")
        self._open_log()
        for name in ("control", "control_privileged"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.place.file(name))
            listener = self.place.socket_at(name, "bind")
            listener.listen(16)
            self._selector.register(listener, selectors.EVENT_READ, self._accept)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.place.file("log"), 0o666)
        with open(self.place.file("nvidia-cuda-mps-control.pid"), "w") as file:
            file.write(str(os.getpid()))
        self.log(f"Starting control daemon using socket {self.place.pipe_name}/control")
        self.log(
            f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={self.place.pipe_name}"
        )
        self._read_environment()

    def _read_environment(self) -> None:
        text = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        if text is None:
            return
        value = percentage(text)
        if value is None:
            self.log(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE {text} should be between (0.0, 100.0]")
        else:
            self.percentage = value

    def serve(self) -> None:
        """Answer until told to end. SIGTERM ends at once and leaves every file."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        while not self._over:
            for key, _ in self._selector.select(0.02):
                key.data(key.fileobj)
            self._reap()
            self._serve_pending()
            self._try_to_quit()

    def _open_log(self) -> None:
        if self._foreground:  # then it logs to standard output, and makes no control.log
            self._log_file = 1
            return
        with contextlib.suppress(OSError):
            self._log_file = os.open(
                f"{self.place.logs}/control.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
            )

    def log(self, text: str) -> None:
        """A line of control.log."""
        if self._log_file is not None:
            os.write(self._log_file, stamped("Control", os.getpid(), text).encode())

    def _server_log(self, server: Server, *texts: str) -> None:
        """Lines of server.log."""
        with contextlib.suppress(OSError), open(f"{self.place.logs}/server.log", "a") as file:
            file.writelines(stamped("Server", server.pid, text) for text in texts)

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
                self._client_says(client, message)
                continue
            self._note(client, f"Cmd:{message['line']}")
            answer = self.answer(str(message["line"]), int(message["uid"]), client)
            if answer is not None:
                self._note(client, *answer.splitlines())
                client.sendall(json.dumps({"text": answer}).encode() + b"\n")

    def _note(self, client: socket.socket, *texts: str) -> None:
        """What is asked, and what is answered, goes into control.log."""
        if client not in self._asking:
            self._asking.add(client)
            texts = ("Accepting connection...", "NEW UI", *texts)
        for text in texts:
            self.log(text)

    def _drop(self, client: socket.socket) -> None:
        if client in self._asking:
            self._asking.remove(client)
            self.log("UI closed")
        self._selector.unregister(client)
        client.close()
        # observed: who is killed while it waits keeps its turn, and has a server started that
        # nobody asked for
        self._pending = [
            (None if link is client else link, message) for link, message in self._pending
        ]
        for server in self.servers.values():
            server.forget(client)

    # --- clients ---

    def _client_says(self, link: socket.socket, message: Message) -> None:
        if "attach" in message:
            self.log("Accepting connection...")
            self.log(
                "User did not send valid credentials"
            )  # before every good client, and means nothing
            self.log("Accepting connection...")
            self._pending.append((link, message))
            self._serve_pending(first=True)
            return
        server = next(
            (
                each
                for each in self.servers.values()
                if any(client.link is link for client in each.clients)
            ),
            None,
        )
        if server is None:
            return
        client = next(each for each in server.clients if each.link is link)
        if message.get("illegal"):
            for other in server.clients:
                if other is not client:
                    other.tell(sticky=700)
            return
        most = CONTEXTS[self.place.capability() >= (7, 0)]
        if message["context"] and server.contexts >= most:
            self.log(f"Server {server.pid} refuses a context: {most} are in use")
            client.tell(code=808)
            return
        client.contexts += 1 if message["context"] else -1
        client.tell(code=0)

    def _serve_pending(self, *, first: bool = False) -> None:
        """Attach who waits: one user at a time, unless the daemon serves every user. Whoever is of another user waits in silence."""
        for link, message in list(self._pending):
            uid, pid = int(message["uid"]), int(message["attach"])
            server = next(iter(self.servers.values()), None)
            if server is not None and server.uid != uid and not self._every_user:
                if server.clients:
                    if first:
                        self.log(
                            f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list"
                        )
                    continue
                self._end_server(server)
                server = None
            if server is None:
                self.log(
                    f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list"
                )
                server = self._start(uid)
            else:
                self.log(f"NEW CLIENT {pid} from user {uid}: Server already exists")
            self._pending.remove((link, message))
            if link is not None:
                self._attach(link, server, message)

    def _attach(self, link: socket.socket, server: Server | None, message: Message) -> None:
        client = Client(
            link,
            int(message["attach"]),
            same_namespace=message["namespace"] == self.place.namespace,
        )
        if server is None or self.place.fault("mps_server_fault"):
            client.tell(code=805 if server is None else 807)
            return
        server.clients.append(client)
        client.tell(
            code=0,
            devices=self._devices(),
            limits=self._limits(server),
            percentage=server.percentage,
        )

    def _limits(self, server: Server) -> dict[str, int]:
        """What a client may allocate of each GPU. The limit of the daemon's own environment is in force, and no command shows it."""
        inherited = of_variable(os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""))
        return lowest(*(limits(asked, self._devices()) for asked in (inherited, server.memory)))

    def _devices(self) -> list[str]:
        """The GPUs that clients are offered: those that the daemon itself sees."""
        return chosen(
            [uuid(number) for number in range(self.place.gpus())],
            os.environ.get("CUDA_VISIBLE_DEVICES"),
        )

    # --- servers ---

    def _start(self, uid: int) -> Server | None:
        """Start a server by PATH, as the real daemon does. Without library or GPU it dies, and control.log alone says so."""
        import shutil
        import subprocess

        program = shutil.which("nvidia-cuda-mps-server")
        if program is None or self.place.library() is None or not self._devices():
            self.log(f"Starting new server 0 for user {uid}")
            self.log("Server 0 exited with status 1")
            return None
        process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        server = Server(process, uid, self.percentage, self.memory)
        self.servers[server.pid] = server
        self.place.serve(server.pid)
        self.log(f"Starting new server {server.pid} for user {uid}")
        self.log(f"NEW SERVER {server.pid}: Ready")
        self._server_log(
            server,
            f"Active Threads Percentage set to {server.percentage:.1f}",
            "Server has started",
        )
        return server

    def _reap(self) -> None:
        for pid, server in list(self.servers.items()):
            if server.process.poll() is not None:
                self.log(f"Server {pid} exited with status {server.process.returncode}")
                del self.servers[pid]

    def _end_server(self, server: Server) -> None:
        server.process.terminate()
        server.process.wait()
        self.servers.pop(server.pid, None)
        self.log(f"Server {server.pid} exited with status 0")

    def _status(self, server: Server) -> str:
        if self.place.fault("mps_server_fault"):
            return "FAULT"
        return server.state

    # --- commands ---

    def answer(self, line: str, uid: int, client: socket.socket) -> str | None:
        """What the tool prints for a line; None when the answer comes later."""
        words = line.split()
        if not words:
            return ""
        name, rest = words[0], words[1:]
        may = uid in (0, self.place.uid)  # root, and whoever started it
        if not may and name == "quit":
            return "Not enough privilege to execute quit command\n"
        own = name == "start_server" and rest[:2] == [
            "-uid",
            str(uid),
        ]  # a server of one's own may be started
        if not may and not own and name.startswith(("set_", "start_", "shutdown_", "terminate_")):
            return REFUSED.format(uid=uid)
        if name == "quit":
            self._quitting = (
                client,
                time.monotonic() + float(rest[1]) if rest[:1] == ["-t"] and len(rest) > 1 else None,
            )
            return None
        function: Callable[[list[str]], str] | None = getattr(self, f"_do_{name}", None)
        return f'Unknown command "{name}"\n' if function is None else function(rest)

    def _try_to_quit(self) -> None:
        if self._quitting is None:
            return
        client, deadline = self._quitting
        busy = any(server.clients for server in self.servers.values())
        if busy and (deadline is None or time.monotonic() < deadline):
            return
        for server in list(self.servers.values()):
            self._end_server(server)
        self.log("Exit with status 0")
        for name in ("nvidia-cuda-mps-control.pid", "log"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.place.file(name))
        with contextlib.suppress(OSError):
            client.sendall(json.dumps({"text": ""}).encode() + b"\n")
        self._over = True

    def _server(self, words: list[str]) -> Server | None:
        return self.servers.get(int(words[0])) if words and words[0].isdigit() else None

    def _do_get_server_list(self, words: list[str]) -> str:
        del words
        return "".join(f"{pid}\n" for pid in self.servers)

    def _do_get_server_status(self, words: list[str]) -> str:
        server = self._server(words)
        return missing(words) if server is None else self._status(server) + "\n"

    def _do_start_server(self, words: list[str]) -> str:
        if words[:1] != ["-uid"] or len(words) < 2 or not words[1].isdigit():
            return "A user id (UID) is required to start a new server\n"
        uid = int(words[1])
        for server in list(self.servers.values()):
            if (
                server.uid != uid and not server.clients and not self._every_user
            ):  # one that is idle makes way
                self._end_server(server)
        if not self.servers:
            self._start(uid)
        return ""

    def _do_shutdown_server(self, words: list[str]) -> str:
        server = self._server(words)
        if server is None:
            return missing(words)
        if server.clients and "-f" not in words:
            self.log(
                f"Server {server.pid} has {len(server.clients)} active worker threads. Server will not shutdown."
            )
            return ""
        self._end_server(server)
        return ""

    def _do_get_client_list(self, words: list[str]) -> str:
        server = self._server(words)
        return (
            missing(words)
            if server is None
            else "".join(f"{client.pid}\n" for client in server.clients)
        )

    def _do_get_device_client_list(self, words: list[str]) -> str:
        del words
        clients = [client for server in self.servers.values() for client in server.clients]
        return (
            ""
            if not clients
            else f"[0] 00:00.0, {self.place.gpu_name()}\n"
            + "".join(f"{client.pid}.1\n" for client in clients)
        )

    def _do_ps(self, words: list[str]) -> str:
        chosen = [self._server(words[1:])] if words[:1] == ["-p"] else list(self.servers.values())
        servers = [server for server in chosen if server is not None]
        if not servers:
            return "Server not found\n" if words[:1] != ["-p"] else missing(words[1:]) * 2 + "\n"
        lines = ["PID       ID    SERVER    DEVICE             NAMESPACE      COMMAND"]
        for server in servers:
            for number, client in enumerate(server.clients, 1):
                lines.append(
                    f"{client.pid:<9} {number:<5} {server.pid:<9} {uuid(0)[:22]}  {client.namespace:<14} {client.command}"
                )
        return "\n".join(lines) + "\n"

    def _do_terminate_client(self, words: list[str]) -> str:
        server = self._server(words)
        client = (
            server.client(int(words[1]))
            if server and len(words) > 1 and words[1].isdigit()
            else None
        )
        if server is None:
            return missing(words) + missing(words).replace("\n", "!\n") + "1\n"
        if client is None:
            return f"Invalid process {words[1] if len(words) > 1 else 0}!\n1\n"
        server.clients.remove(client)
        client.tell(sticky=810)
        return "0\n"

    def _do_get_default_active_thread_percentage(self, words: list[str]) -> str:
        del words
        return f"{self.percentage:.1f}\n"

    def _do_set_default_active_thread_percentage(self, words: list[str]) -> str:
        value = percentage(words[0]) if words else None
        self.percentage = (
            self.percentage if value is None else value
        )  # a bad one prints the old value, and all is well
        return f"{self.percentage:.1f}\n"

    def _do_get_active_thread_percentage(self, words: list[str]) -> str:
        server = self._server(words)
        return missing(words) if server is None else f"{server.percentage:.1f}\n"

    def _do_set_active_thread_percentage(self, words: list[str]) -> str:
        server = self._server(words)
        if server is None:
            return missing(words)
        value = percentage(words[1]) if len(words) > 1 else None
        server.percentage = server.percentage if value is None else value
        return f"{server.percentage:.1f}\n"

    def _do_get_default_device_pinned_mem_limit(self, words: list[str]) -> str:
        return shown(self.memory.get(words[0], "")) if words else ""

    def _do_set_default_device_pinned_mem_limit(self, words: list[str]) -> str:
        if len(words) > 1:
            self.memory = with_limit(self.memory, words[0], words[1])
        return ""

    def _do_get_device_pinned_mem_limit(self, words: list[str]) -> str:
        server = self._server(words)
        return (
            missing(words)
            if server is None or len(words) < 2
            else shown(server.memory.get(words[1], ""))
        )

    def _do_set_device_pinned_mem_limit(self, words: list[str]) -> str:
        server = self._server(words)
        if server is None or len(words) < 3:
            return missing(words)
        server.memory = with_limit(server.memory, words[1], words[2])
        return ""

    def _do_get_default_client_priority(self, words: list[str]) -> str:
        del words
        return f"{self.priority}\n"

    def _do_set_default_client_priority(self, words: list[str]) -> str:
        if words[:1] not in (["0"], ["1"]):
            return "Invalid priority value - must be 0 or 1!\n"
        self.priority = int(words[0])
        return ""
