"""An SSH server on loopback whose sessions are real processes on a mock host. Built on paramiko's server interface.

What Container-Optimized OS answers, this answers: publickey only, no environment requests, ten
sessions per connection (the MaxSessions of OpenSSH), direct-tcpip to loopback, SFTP, terminals of
any size. A command whose connection goes away loses its standard input and goes on, as under
OpenSSH without a terminal.
"""

# The methods of a server interface are named, and their arguments counted, by paramiko:
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

from provision.testing.faults import Faults, Stats
from provision.testing.ssh.session import GONE, Session, SessionStarter, Terminal
from provision.testing.ssh.sftp import FilesServer, FilesSubsystem

MAX_SESSIONS = 10
"""Sessions on one connection; OpenSSH's default, and Container-Optimized OS documents no other."""

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


@dataclass
class Access:
    """Who may log in: per user the public keys, as `(type, base64)`, and whoever `asked` names at that moment (OS Login)."""

    keys: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    asked: Callable[[], Iterable[tuple[str, str]]] = tuple
    """(user, public key line), as sshd's AuthorizedKeysCommand asks for them."""

    def allow(self, user: str, line: str) -> None:
        """Let `user` in with the key of an authorized_keys line."""
        words = line.split()
        self.keys.setdefault(user, set()).add((words[0], words[1]))

    def allows(self, user: str, key: paramiko.PKey) -> bool:
        """True when the key is one of the user's."""
        shown = (key.get_name(), key.get_base64())
        return shown in self.keys.get(user, set()) or any(
            who == user and tuple(line.split()[:2]) == shown for who, line in self.asked()
        )


class Wire:
    """A socket that counts bytes; paramiko reads and writes through it."""

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

    def cut(self) -> None:
        """Drop the connection at once, as when the network goes: the peer sees a reset."""
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
    """A transport that says when a channel request has been answered.

    A command must not start before: a quick one would end, and its channel close, before the client
    reads that its request was accepted, which clients take for a refusal.
    """

    requested: Callable[[paramiko.Channel], None]
    _channel_handler_table: ClassVar = {
        **_TRANSPORT._channel_handler_table,  # noqa: SLF001
        MSG_CHANNEL_REQUEST: _handle_request,
    }


class Connection(paramiko.ServerInterface):
    """What one client asks on one connection."""

    def __init__(self, server: SshServer, wire: Wire) -> None:
        self.server = server
        self.wire = wire
        self.user = ""
        self.transport = _Transport(wire)  # type: ignore[arg-type]
        self.transport.requested = self._start
        self._sessions: dict[int, Session] = {}
        self._targets: dict[int, tuple[str, int]] = {}
        self._channels: list[
            paramiko.Channel
        ] = []  # held: paramiko closes a channel that nobody refers to

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
            self.server.starter, self.user, self.server.faults, self.server.stats, self.wire.cut
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
        transport.set_subsystem_handler(
            "sftp", FilesSubsystem, FilesServer, self.server.starter, self
        )
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
        """End the connection; what its commands read as standard input ends."""
        self.transport.close()
        for session in self._sessions.values():
            session.hang_up()
        self.wire.cut()


class SshServer:
    """The listener of one mock host. `port` is chosen by the system unless one is asked for."""

    def __init__(
        self,
        starter: SessionStarter,
        access: Access,
        host_key: paramiko.PKey,
        faults: Faults,
        stats: Stats,
    ) -> None:
        self.starter = starter
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
        """Listen on 127.0.0.1, on `port` or on another one where it is taken, and return the port."""
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
        """Cut every connection, as a reboot does."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.wire.cut()
            connection.close()
            connection.transport.join(5)

    @property
    def open_connections(self) -> int:
        """Connections that are being served."""
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
        connection = Connection(self, Wire(client, self.stats))
        with self._lock:
            self._connections.add(connection)
        try:
            connection.run()
        finally:
            with self._lock:
                self._connections.discard(connection)
            self.on_activity()


def _forward(channel: paramiko.Channel, target: tuple[str, int]) -> None:
    """Carry a direct-tcpip channel to its target on this machine."""
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
    with contextlib.suppress(EOFError, OSError):  # whoever asked for it has gone
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
