"""Closing connections: all hops of a chain, from any thread, and at a time limit."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from paramiko import SSHClient
from paramiko.ssh_exception import SSHException

from provision.hosts.ssh.dial import shut_down


class Closers:
    """The functions that close a chain of connections, called last opened first.

    `close` may come from another thread while the chain is still being opened: what opens after
    that is closed at once.
    """

    def __init__(self) -> None:
        self.proxy_stderr: Callable[[], str] = lambda: ""
        """Returns the end of the proxy command's standard error, for error messages."""
        self._closers: list[Callable[[], object]] = []
        self._closed = False
        self._lock = threading.Lock()

    def add(self, close: Callable[[], object]) -> None:
        """Register a function; call it at once if `close` has been called."""
        with self._lock:
            self._closers.append(close)
            late = self._closed
        if late:
            self.close()

    def close(self) -> None:
        """Call and drop every registered function."""
        with self._lock:
            closers, self._closers, self._closed = self._closers[::-1], [], True
        for close in closers:
            with contextlib.suppress(OSError, EOFError, SSHException):
                close()

    @property
    def closed(self) -> bool:
        """True once `close` has been called."""
        return self._closed


def close_client(client: SSHClient, sock: Any) -> None:
    """Close a client's connection, or `sock` when the handshake has not begun."""
    wire = client.get_transport()
    if wire is None:
        sock.close()
    else:
        close_wire(wire, sock)
    client.close()


def close_wire(wire: Any, sock: Any) -> None:
    """Close a connection and its socket, wake up every waiting thread, and join the reader."""
    wire.packetizer.complete_handshake()  # its timer would keep the process alive
    if isinstance(sock, socket.socket):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)  # wakes up the reading thread at once
    wire.close()
    sock.close()
    for answered in list(wire.channel_events.values()):
        answered.set()
    if wire.is_alive() and wire is not threading.current_thread():
        wire.join(1.0)


@contextlib.contextmanager
def closed_after(timeout_s: float, sock: Any) -> Iterator[None]:
    """Close `sock` if the block takes longer: a server that trickles bytes must not hold us."""
    close = (lambda: shut_down(sock)) if isinstance(sock, socket.socket) else sock.close
    timer = threading.Timer(timeout_s, close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
