"""Sockets for SSH: a TCP connection that neither delays packets nor waits for ever, or a proxy command's ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any

from provision.core.errors import UsageError

KEEPALIVE_S = 15
"""Seconds of silence after which the connection is tested."""
USER_TIMEOUT_S = 60
"""Seconds for which sent data may stay unacknowledged before the kernel gives the connection up."""

_HOST_FORBIDDEN = (
    set("'`\"$\\;&<>|(){}!*?#~") | {chr(code) for code in range(33)} | {"\x7f", "/", "@"}
)
_USER_FORBIDDEN = set("'`\";&<>|(){}") | {chr(code) for code in range(32)} | {"\x7f"}


def check_host_name(address: str, *, where: str) -> str:
    """The address itself; raises `UsageError` where it could be read as an option or by a proxy command's shell.

    OpenSSH refuses the same characters since 9.6 (ssh.c, valid_hostname).
    """
    bad = sorted(set(address) & _HOST_FORBIDDEN)
    if not address or address.startswith("-") or bad or address.count(":") == 1:
        why = (
            f"{address!r} contains {bad[0]!r}"
            if bad
            else f"{address!r} is empty, begins with '-' or holds a port"
        )
        raise UsageError(
            "not a host name or address",
            where=where,
            why=why,
            fix=f"set provision.hosts.{where}.address",
        )
    return address


def check_user(user: str, *, where: str) -> str:
    """The user name itself; raises `UsageError` for what OpenSSH refuses (ssh.c, valid_ruser)."""
    bad = sorted(set(user) & _USER_FORBIDDEN)
    if not user or user.startswith("-") or bad or user.endswith("\\") or user != user.strip():
        why = (
            f"{user!r} contains {bad[0]!r}"
            if bad
            else f"{user!r} is empty, begins with '-' or ends with a space or backslash"
        )
        raise UsageError(
            "not a user name", where=where, why=why, fix=f"set provision.hosts.{where}.user"
        )
    return user


def tcp(
    address: str,
    port: int,
    *,
    timeout_s: float,
    family: int = socket.AF_UNSPEC,
    bind: str | None = None,
    on_socket: Callable[[socket.socket], object] | None = None,
) -> socket.socket:
    """A connected TCP socket: no Nagle delay (44 ms a command on loopback otherwise), kept alive, bounded in silence.

    `on_socket` gets each socket before it connects, so that another thread can end the attempt.
    Raises OSError (of which socket.gaierror says that the name does not resolve).
    """
    failure: OSError = OSError(f"{address} has no address")
    for found_family, kind, protocol, _, where in socket.getaddrinfo(
        address, port, family, socket.SOCK_STREAM
    ):
        sock = socket.socket(found_family, kind, protocol)
        if on_socket:
            on_socket(sock)
        try:
            sock.settimeout(timeout_s)
            if bind:
                sock.bind((bind, 0))
            sock.connect(where)
        except OSError as error:
            sock.close()
            failure = error
            continue
        tune(sock)
        return sock
    raise failure


def tune(sock: socket.socket) -> None:
    """Set TCP_NODELAY and keep-alive, and, where the system has them, their intervals and TCP_USER_TIMEOUT."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_KEEPIDLE": KEEPALIVE_S,
        "TCP_KEEPINTVL": KEEPALIVE_S,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": USER_TIMEOUT_S * 1000,
    }
    for name, value in wanted.items():
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


class ProxyProcess:
    """A running ProxyCommand: `sock` is our end of its standard input and output.

    A socket pair instead of pipes, so that the SSH layer reads it as it reads any connection.
    `words` are a program and its arguments; a command line of the user's ssh_config is one for a
    shell, see `of_shell`. Raises OSError where there is no such program.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.sock, theirs = socket.socketpair()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        ends: dict[str, Any] = {
            "stdin": theirs.fileno(),
            "stdout": theirs.fileno(),
            "stderr": self._said.fileno(),
        }
        try:
            with theirs:
                self._process = subprocess.Popen(words, **ends, start_new_session=True)
        except OSError:
            self.sock.close()
            self._said.close()
            raise

    @classmethod
    def of_shell(cls, command: str) -> ProxyProcess:
        """The ProxyCommand of an ssh_config, run as ssh(1) runs it."""
        return cls(["/bin/sh", "-c", f"exec {command}"])

    def last_words(self, limit: int = 500) -> str:
        """The end of what the command wrote on its standard error."""
        if self._said.closed:
            return ""
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - limit))
        return self._said.read().decode(errors="replace").strip()

    def close(self) -> None:
        """End the command and everything it started."""
        hang_up(self.sock)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._said.close()


def hang_up(sock: socket.socket) -> None:
    """Close a socket so that a thread that reads it wakes up at once."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
