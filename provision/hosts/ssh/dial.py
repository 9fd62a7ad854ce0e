"""Sockets for SSH: a TCP connection, or the standard streams of a proxy command."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any

KEEPALIVE_S = 15
"""Seconds of silence after which the connection is tested."""
USER_TIMEOUT_S = 60
"""Seconds that sent data may stay unacknowledged before the kernel gives up the connection."""


def connect_tcp(
    address: str,
    port: int,
    *,
    timeout_s: float,
    family: int = socket.AF_UNSPEC,
    bind: str | None = None,
    on_socket: Callable[[socket.socket], object] | None = None,
) -> socket.socket:
    """Connect to the first address of a host that answers, and return the socket.

    `on_socket` receives each socket before it connects, so that another thread can end the attempt.
    `timeout_s` bounds each attempt. Raises OSError; its subclass socket.gaierror means that the
    name does not resolve.
    """
    failure: OSError = OSError(f"{address} has no address")
    for found_family, kind, protocol, _, target in socket.getaddrinfo(
        address, port, family, socket.SOCK_STREAM
    ):
        sock = socket.socket(found_family, kind, protocol)
        if on_socket:
            on_socket(sock)
        try:
            sock.settimeout(timeout_s)
            if bind:
                sock.bind((bind, 0))
            sock.connect(target)
        except OSError as error:
            sock.close()
            failure = error
            continue
        set_tcp_options(sock)
        return sock
    raise failure


def set_tcp_options(sock: socket.socket) -> None:
    """Switch off Nagle's delay, and let the kernel detect a silent peer where it can.

    The delay costs 44 ms a command on loopback.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {
        "TCP_KEEPIDLE": KEEPALIVE_S,
        "TCP_KEEPINTVL": KEEPALIVE_S,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": USER_TIMEOUT_S * 1000,
    }
    for name, value in wanted.items():
        option = getattr(socket, name, None)  # macOS lacks some of them
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


class ProxyProcess:
    """A running ProxyCommand; `sock` is our end of its standard input and output.

    It is a socket pair instead of two pipes, so that the SSH layer reads it like any connection.
    `words` are a program and its arguments; `of_shell` takes a command line instead. Raises OSError
    when the program cannot be started.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.sock, remote_end = socket.socketpair()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        streams: dict[str, Any] = {
            "stdin": remote_end.fileno(),
            "stdout": remote_end.fileno(),
            "stderr": self._stderr.fileno(),
        }
        try:
            with remote_end:
                self._process = subprocess.Popen(words, **streams, start_new_session=True)
        except OSError:
            self.sock.close()
            self._stderr.close()
            raise

    @classmethod
    def of_shell(cls, command: str) -> ProxyProcess:
        """Start the ProxyCommand of an ssh_config as ssh(1) starts it: through a shell."""
        return cls(["/bin/sh", "-c", f"exec {command}"])

    def stderr_tail(self, limit: int = 500) -> str:
        """Return the last `limit` bytes of the command's standard error."""
        if self._stderr.closed:
            return ""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - limit))
        return self._stderr.read().decode(errors="replace").strip()

    def close(self) -> None:
        """End the command and every process that it started."""
        shut_down(self.sock)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._stderr.close()


def shut_down(sock: socket.socket) -> None:
    """Close a socket and wake up every thread that reads from it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
