"""A plain paramiko client of a mock host, independent of the SSH code of this package."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import paramiko

from provision.testing import MockHost

SHELL = "busybox" if os.environ.get("PROVISION_TEST_BUSYBOX") else "system"
"""`make test-busybox` runs the tests marked so with nothing but busybox applets and stand-ins on
the hosts."""


@dataclass(frozen=True)
class Answer:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


def connect(
    host: MockHost, *, port: int | None = None, user: str | None = None
) -> paramiko.SSHClient:
    """Return a client connected to the host, with its key verified."""
    where = host.host
    sock = socket.create_connection((where.address, port or where.port), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client = paramiko.SSHClient()
    kind, data = (where.host_key or "").split()
    entry = paramiko.hostkeys.HostKeyEntry.from_line(
        f"[{where.address}]:{where.port} {kind} {data}"
    )
    assert entry is not None
    assert entry.key is not None
    client.get_host_keys().add(f"[{where.address}]:{where.port}", kind, entry.key)
    try:
        client.connect(
            where.address,
            where.port or 22,
            user or where.user,
            key_filename=where.identity,
            sock=sock,
            allow_agent=False,
            look_for_keys=False,
            timeout=10,
        )
    except BaseException:
        client.close()
        sock.close()
        raise
    return client


def ask(client: paramiko.SSHClient, command: str, stdin: bytes = b"") -> Answer:
    """Run a command and return its exit status and output."""
    feed, out, err = client.exec_command(command, timeout=30)
    feed.channel.sendall(stdin)
    feed.channel.shutdown_write()
    text = out.read().decode(), err.read().decode()
    return Answer(out.channel.recv_exit_status(), *text)


def eventually(holds: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Return whether the condition becomes true within the time."""
    stop = time.monotonic() + timeout_s
    while time.monotonic() < stop:
        if holds():
            return True
        time.sleep(0.02)
    return holds()
