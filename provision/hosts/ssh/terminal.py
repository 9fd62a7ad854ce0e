"""Interactive sessions: the user's terminal becomes the host's.

The system's `ssh` provides them where it is installed, with the pinned keys and the user's own
configuration. Elsewhere paramiko does: raw mode, window size, exit status.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from provision.core.model import Host
from provision.core.shell import Script, script
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh.config import SshConfig
from provision.hosts.ssh.ssh_program import (
    SSH_FAILED,
    check_reachable,
    pinned_file,
    ssh_arguments,
)

if TYPE_CHECKING:
    from provision.hosts.ssh.transport import SshTransport

_BODY = """
R=${PROVISION_MOCK_ROOT-}
export R
eval "$body"
"""
_CHUNK_BYTES = 32 * 1024


def run_interactive(
    host: Host,
    body: Script | None,
    *,
    known_hosts: KnownHosts,
    environ: Mapping[str, str],
    become: bool = True,
    ssh: str | None = "ssh",
) -> int:
    """Run `body`, or a login shell, of a host on this terminal, and return its exit status.

    With `become`, `body` runs as root if the host's settings say how. The host provides a terminal
    only when standard input is one. `ssh` is the program to use; paramiko stands in when it is None
    or not installed.

    Raises `Unreachable` when the host cannot be reached, `HostKeyMismatch` when its key is not
    accepted, `UsageError` for an unsafe host or user name.
    """
    remote = None if body is None else remote_command(body, become=become and host.become == "sudo")
    if host.is_local:
        shell = environ.get("SHELL") or "/bin/sh"
        return _run([shell, "-l"] if remote is None else ["/bin/sh", "-c", remote], environ)
    program = shutil.which(ssh, path=environ.get("PATH")) if ssh else None
    if program is None:
        return _run_with_paramiko(host, remote, known_hosts, environ)
    with pinned_file(host, known_hosts) as pins:
        words = ssh_arguments(
            host, pins=pins, environ=environ, terminal=sys.stdin.isatty(), remote=remote
        )
        status = _run([program, *words], environ)
        if status == SSH_FAILED:  # of ssh or of the host's program: a second call decides
            check_reachable(program, host, pins, known_hosts.own, environ)
        return status


def remote_command(body: Script, *, become: bool) -> str:
    """Return the command line for a login shell that runs `body`; with `become` under `sudo -n`."""
    words = ("sudo", "-n", "sh", "-c") if become else ("sh", "-c")
    return script('exec "$@"', argv=(*words, script(_BODY, body=body.render()).render())).render()


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a program on this terminal, ignore Ctrl-C meanwhile, and return its exit status."""
    with subprocess.Popen(argv, env=dict(environ)) as process, _ignoring_interrupts():
        status = process.wait()
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- without the system's ssh ---------------------------------------------------------------------


def _run_with_paramiko(
    host: Host, remote: str | None, known_hosts: KnownHosts, environ: Mapping[str, str]
) -> int:
    from provision.hosts.ssh.connection import connect

    transport = connect(host, known_hosts=known_hosts, ssh_config=SshConfig.of_user(environ))
    try:
        return attach(transport, remote, term=environ.get("TERM", "vt100"))
    finally:
        transport.close()


def attach(
    transport: SshTransport, remote: str | None, *, term: str, stdin: int = 0, stdout: int = 1
) -> int:
    """Connect two file descriptors to a program on the host, and return its exit status.

    `remote` is a command line, or None for a login shell. Keys are sent as typed: Ctrl-C
    interrupts the host's program, not this one. Raises `Unreachable` when the connection is lost.
    """
    size = os.get_terminal_size(stdin) if os.isatty(stdin) else None
    channel = transport.open_terminal(
        remote, term=term, size=(size.columns, size.lines) if size else None
    )
    try:
        with _raw(stdin), _resizing(channel, stdin):
            _pump(channel, stdin, stdout)
        return transport.exit_status(channel)
    finally:
        channel.close()


def _pump(channel: Any, stdin: int, stdout: int) -> None:
    sources = [channel, stdin]
    while True:
        readable, _, _ = select.select(sources, [], [])
        if channel in readable and not _copy_output(channel, stdout):
            return
        if stdin in readable:
            data = os.read(stdin, _CHUNK_BYTES)
            try:
                if data:
                    channel.sendall(data)
                else:
                    sources.remove(stdin)
                    channel.shutdown_write()
            except OSError:  # the program has ended; more output and its status may still come
                sources = [channel]


def _copy_output(channel: Any, stdout: int) -> bool:
    """Write what has arrived; return False when both streams have ended."""
    received = False
    if channel.recv_stderr_ready():
        received = True
        _write_all(2, channel.recv_stderr(_CHUNK_BYTES))
    if channel.recv_ready() or not received:
        data = channel.recv(_CHUNK_BYTES)
        _write_all(stdout, data)
        received = received or bool(data)
    return received


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def _raw(fd: int) -> Iterator[None]:
    if not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSADRAIN)  # keeps what was typed ahead
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resizing(channel: Any, fd: int) -> Iterator[None]:
    """Report changes of the window size to the host; only the main thread can handle the signal."""
    if not os.isatty(fd) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def resize(_number: int, _frame: object) -> None:
        size = os.get_terminal_size(fd)
        channel.resize_pty(width=size.columns, height=size.lines)

    handler: Callable[[int, Any], None] = resize
    before = signal.signal(signal.SIGWINCH, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
