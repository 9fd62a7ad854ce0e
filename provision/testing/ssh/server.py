"""The SSH server of a mock host, on loopback; its sessions are real processes.

It behaves as Container-Optimized OS: publickey authentication only, no environment requests, ten
sessions per connection (OpenSSH's MaxSessions), direct-tcpip to loopback, SFTP, terminals of any
size. A command whose connection drops loses its standard input and goes on, as under OpenSSH
without a terminal.
"""

# paramiko defines the names and parameters of the methods:
# ruff: noqa: D102, ARG002, PLR0917

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import paramiko
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    MSG_CHANNEL_REQUEST,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_FAILED_CONNECT_FAILED,
    OPEN_FAILED_UNKNOWN_CHANNEL_TYPE,
    OPEN_SUCCEEDED,
)

from provision.testing.host_faults import Faults, Stats
from provision.testing.ssh.session import GONE, Session, SessionHost, Terminal
from provision.testing.ssh.sftp import SftpFiles, SftpSubsystem

MAX_SESSIONS = 10
"""Sessions per connection, OpenSSH's default."""

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


@dataclass
class Access:
    """The keys that may log in: `keys` by user, as (type, base64), and those of `look_up`."""

    keys: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    look_up: Callable[[], Iterable[tuple[str, str]]] = tuple
    """Returns (user, public key line) pairs at each login, as sshd's AuthorizedKeysCommand does."""

    def allow(self, user: str, line: str) -> None:
        """Authorize the key of an authorized_keys line for `user`."""
        words = line.split()
        self.keys.setdefault(user, set()).add((words[0], words[1]))

    def allows(self, user: str, key: paramiko.PKey) -> bool:
        """True when the key is authorized for the user."""
        wanted = (key.get_name(), key.get_base64())
        return wanted in self.keys.get(user, set()) or any(
            name == user and tuple(line.split()[:2]) == wanted for name, line in self.look_up()
        )


class CountingSocket:
    """A socket that counts its bytes; paramiko reads and writes through it."""

    def __init__(self, inner: socket.socket, stats: Stats) -> None:
        self._inner = inner
        self._stats = stats

    def send(self, data: bytes) -> int:
        """Send and count."""
        sent = self._inner.send(data)
        self._stats.add("bytes_out", sent)
        return sent

    def recv(self, size: int) -> bytes:
        """Receive and count."""
        data = self._inner.recv(size)
        self._stats.add("bytes_in", len(data))
        return data

    def drop(self) -> None:
        """Drop the connection at once: the peer sees a reset."""
        try:
            self._inner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._inner.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._inner.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def _handle_request(channel: Any, message: paramiko.Message) -> None:
    channel._handle_request(message)  # noqa: SLF001
    channel.get_transport().requested(channel)


_TRANSPORT: Any = paramiko.Transport


class _Transport(paramiko.Transport):
    """A transport that calls `requested` after each answered channel request.

    A command starts then. Before, a quick command could end and close its channel before the client
    reads that its request was accepted, which clients take for a refusal.
    """

    requested: Callable[[paramiko.Channel], None]
    _channel_handler_table: ClassVar = {
        **_TRANSPORT._channel_handler_table,  # noqa: SLF001
        MSG_CHANNEL_REQUEST: _handle_request,
    }


class Connection(paramiko.ServerInterface):
    """One client's connection with its sessions."""

    def __init__(self, server: SshServer, client_socket: CountingSocket) -> None:
        self.server = server
        self.client_socket = client_socket
        self.user = ""
        self.transport = _Transport(client_socket)  # type: ignore[arg-type]
        self.transport.requested = self._start
        self._sessions: dict[int, Session] = {}
        self._targets: dict[int, tuple[str, int]] = {}
        # paramiko closes a channel without a reference
        self._channels: list[paramiko.Channel] = []

    # --- authentication ---

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.server.stats.add("auth_attempts")
        if not self.server.faults.refuse_auth and self.server.access.allows(username, key):
            self.user = username
            return AUTH_SUCCESSFUL
        self.server.stats.add("auth_failures")
        return AUTH_FAILED

    # --- channels ---

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind != "session":
            return OPEN_FAILED_UNKNOWN_CHANNEL_TYPE
        self._sessions = {
            number: session for number, session in self._sessions.items() if not session.closed
        }
        if self.server.faults.refuse_channels or len(self._sessions) >= MAX_SESSIONS:
            self.server.stats.add("refused_channels")
            return OPEN_FAILED_CONNECT_FAILED
        self._sessions[chanid] = Session(
            self.server.host,
            self.user,
            self.server.faults,
            self.server.stats,
            self.client_socket.drop,
        )
        return OPEN_SUCCEEDED

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        if destination[0] not in ("127.0.0.1", "localhost", "::1"):
            return OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        self.server.stats.add("forwards")
        self._targets[chanid] = destination
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.server.stats.add("exchanges")
        text = command.decode("utf-8", "surrogateescape")
        self.server.stats.commands.append(text)
        return self._sessions[channel.get_id()].request(channel, text)

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        self.server.stats.add("shells")
        return self._sessions[channel.get_id()].request(channel, None)

    def check_channel_pty_request(
        self,
        channel: paramiko.Channel,
        term: bytes,
        width: int,
        height: int,
        pixelwidth: int,
        pixelheight: int,
        modes: bytes,
    ) -> bool:
        size = Terminal(term.decode("ascii", "replace"), width, height)
        return self._sessions[channel.get_id()].open_terminal(size)

    def check_channel_window_change_request(
        self, channel: paramiko.Channel, width: int, height: int, pixelwidth: int, pixelheight: int
    ) -> bool:
        return self._sessions[channel.get_id()].resize(width, height)

    def check_channel_env_request(
        self, channel: paramiko.Channel, name: bytes, value: bytes
    ) -> bool:
        return False

    def check_channel_subsystem_request(self, channel: paramiko.Channel, name: str) -> bool:
        if name == "sftp":
            self.server.stats.add("sftp_sessions")
        return super().check_channel_subsystem_request(channel, name)

    # --- life ---

    def _start(self, channel: paramiko.Channel) -> None:
        if (session := self._sessions.get(channel.get_id())) is not None:
            session.start()

    def run(self) -> None:
        """Serve the connection until it ends."""
        transport = self.transport
        transport.local_version = "SSH-2.0-OpenSSH_10.0"
        transport.add_server_key(self.server.host_key)
        transport.set_subsystem_handler("sftp", SftpSubsystem, SftpFiles, self.server.host, self)
        try:
            transport.start_server(server=self)
            while transport.is_active():
                channel = transport.accept(1)
                if channel is None:
                    continue
                self._channels = [known for known in (*self._channels, channel) if not known.closed]
                target = self._targets.pop(channel.get_id(), None)
                if target is not None:
                    threading.Thread(
                        target=_forward, args=(channel, target), name="mock-forward", daemon=True
                    ).start()
        except (paramiko.SSHException, EOFError, OSError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """End the connection and the standard input of its commands."""
        self.transport.close()
        for session in self._sessions.values():
            session.hang_up()
        self.client_socket.drop()


class SshServer:
    """The listener of one mock host and its connections."""

    def __init__(
        self,
        host: SessionHost,
        access: Access,
        host_key: paramiko.PKey,
        faults: Faults,
        stats: Stats,
    ) -> None:
        self.host = host
        self.access = access
        self.host_key = host_key
        self.faults = faults
        self.stats = stats
        self.port = 0
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.on_activity: Callable[[], None] = lambda: None

    def start(self, port: int = 0) -> int:
        """Listen on 127.0.0.1, on `port` or, if it is taken, on a free one; return the port."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        self._listener = listener
        self.port = listener.getsockname()[1]
        self._stopping.clear()
        self._thread = threading.Thread(
            target=self._accept, args=(listener,), name=f"mock-ssh-{self.port}", daemon=True
        )
        self._thread.start()
        return int(self.port)

    def stop(self) -> None:
        """Close the listener and every connection."""
        self._stopping.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        if self._thread is not None:
            self._thread.join(5)
        self.drop_connections()

    def drop_connections(self) -> None:
        """Drop every connection, as a reboot does."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.client_socket.drop()
            connection.close()
            connection.transport.join(5)

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        with self._lock:
            return len(self._connections)

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.stats.add("connections")
            self.on_activity()
            threading.Thread(
                target=self._serve, args=(client,), name="mock-ssh-connection", daemon=True
            ).start()

    def _serve(self, client: socket.socket) -> None:
        if self.faults.banner_delay_s and self._stopping.wait(self.faults.banner_delay_s):
            client.close()
            return
        connection = Connection(self, CountingSocket(client, self.stats))
        with self._lock:
            self._connections.add(connection)
        try:
            connection.run()
        finally:
            with self._lock:
                self._connections.discard(connection)
            self.on_activity()


def _forward(channel: paramiko.Channel, target: tuple[str, int]) -> None:
    """Forward a direct-tcpip channel to its target on this machine."""
    try:
        remote = socket.create_connection(target, timeout=10)
    except OSError:
        channel.close()
        return
    remote.settimeout(None)
    remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(
        target=_pump, args=(remote.recv, channel.sendall, channel.shutdown_write), daemon=True
    )
    back.start()
    _pump(channel.recv, remote.sendall, lambda: remote.shutdown(socket.SHUT_WR))
    back.join()
    remote.close()
    with contextlib.suppress(EOFError, OSError):  # the client has gone
        channel.close()


def _pump(
    read: Callable[[int], bytes], write: Callable[[bytes], object], finish: Callable[[], object]
) -> None:
    try:
        while data := read(1 << 16):
            write(data)
        finish()
    except GONE:
        return
