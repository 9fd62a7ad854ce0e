"""One session channel of the mock SSH server: a process with its streams or its terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import termios
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST

from provision.testing.host.processes import MockHostError, Process, Processes
from provision.testing.host_faults import Faults, Stats

_BLOCK = 1 << 15
GONE = (OSError, EOFError)
"""What paramiko raises when the connection has ended."""
_SIGNALS = {
    1: "HUP",
    2: "INT",
    3: "QUIT",
    4: "ILL",
    6: "ABRT",
    8: "FPE",
    9: "KILL",
    10: "USR1",
    11: "SEGV",
    12: "USR2",
    13: "PIPE",
    14: "ALRM",
    15: "TERM",
}


@dataclass
class Terminal:
    """The terminal a client asked for."""

    term: str
    columns: int
    rows: int


class SessionHost(Protocol):
    """What a session needs of the host."""

    @property
    def processes(self) -> Processes:
        """The processes of the host."""
        ...

    def start_command(
        self, user: str, command: str | None, fds: list[int], terminal: Terminal | None
    ) -> Process:
        """Start the user's shell with `command`, or an interactive one when it is None."""
        ...


class Session:
    """A session from the opening of its channel to the exit status. `drop` ends the connection."""

    def __init__(
        self,
        host: SessionHost,
        user: str,
        faults: Faults,
        stats: Stats,
        drop: Callable[[], None],
    ) -> None:
        self._host = host
        self._user = user
        self._faults = faults
        self._stats = stats
        self._drop_connection = drop
        self._channel: paramiko.Channel | None = None
        self._command: str | None = None
        self._started = False
        self._terminal: Terminal | None = None
        self._master = self._slave = -1
        self._stdin = -1
        self._lock = threading.Lock()
        self._over = False

    @property
    def closed(self) -> bool:
        """True once the channel does not count as an open session any more."""
        return self._over or (self._channel is not None and self._channel.closed)

    # --- the terminal ---

    def open_terminal(self, terminal: Terminal) -> bool:
        """Open a terminal of the requested size for the command."""
        self._terminal = terminal
        self._master, self._slave = pty.openpty()
        if self._host.processes.as_root:
            os.fchown(self._slave, self._host.processes.uid, -1)
        return self.resize(terminal.columns, terminal.rows)

    def resize(self, columns: int, rows: int) -> bool:
        """Set the size of the terminal; False without a terminal."""
        with self._lock:
            if self._master < 0:
                return False
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        return True

    # --- the command ---

    def request(self, channel: paramiko.Channel, command: str | None) -> bool:
        """Accept one command, which `start` starts; False for a second one."""
        if self._channel is not None:
            return False
        self._channel = channel
        self._command = command
        return True

    def start(self) -> None:
        """Start the accepted command, once; threads copy its streams until it ends."""
        if self._channel is not None and not self._started:
            self._started = True
            threading.Thread(
                target=self._run,
                args=(self._channel, self._command),
                name="mock-session",
                daemon=True,
            ).start()

    def _run(self, channel: paramiko.Channel, command: str | None) -> None:
        try:
            if self._faults.login_noise:
                channel.sendall(self._faults.login_noise.encode())
            if self._terminal is not None:
                self._run_on_terminal(channel, command)
            else:
                self._run_on_pipes(channel, command)
        except (*GONE, MockHostError):  # the client has gone, or the host has stopped
            pass
        finally:
            self.hang_up()
            self._over = True
            with contextlib.suppress(*GONE):
                channel.close()

    def _run_on_pipes(self, channel: paramiko.Channel, command: str | None) -> None:
        in_read, self._stdin = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        child_fds = [in_read, out_write, err_write]
        try:
            process = self._host.start_command(self._user, command, child_fds, None)
        finally:
            for fd in child_fds:
                os.close(fd)
        self._send_stderr_flood(channel)
        feeder = threading.Thread(
            target=self._copy_input, args=(channel,), name="mock-stdin", daemon=True
        )
        copiers = [
            threading.Thread(
                target=self._copy_output,
                args=(out_read, channel.sendall),
                name="mock-stdout",
                daemon=True,
            ),
            threading.Thread(
                target=self._copy_output,
                args=(err_read, channel.sendall_stderr),
                name="mock-stderr",
                daemon=True,
            ),
        ]
        for thread in (feeder, *copiers):
            thread.start()
        status = self._wait(process, channel)
        self._close_stdin()  # as sshd does: background processes read the end of the input
        if status is not None:
            _send_status(channel, status, copiers)

    def _run_on_terminal(self, channel: paramiko.Channel, command: str | None) -> None:
        try:
            process = self._host.start_command(self._user, command, [self._slave], self._terminal)
        finally:
            os.close(self._slave)
        feeder = threading.Thread(
            target=self._copy_terminal_input, args=(channel,), name="mock-stdin", daemon=True
        )
        copier = threading.Thread(
            target=self._copy_terminal_output,
            args=(os.dup(self._master), channel),
            name="mock-stdout",
            daemon=True,
        )
        feeder.start()
        copier.start()
        status = self._wait(process, channel)
        if status is not None:
            copier.join(0.5)  # a background process may keep the terminal open
            _send_status(channel, status, [])

    def _wait(self, process: Process, channel: paramiko.Channel) -> int | None:
        """The status of the process; None when the channel closes first and the process goes on."""
        while not process.ended.wait(0.2):
            if channel.closed:
                return None
        return process.status

    # --- the streams ---

    def _copy_input(self, channel: paramiko.Channel) -> None:
        try:
            while data := channel.recv(_BLOCK):
                self._count_input(len(data))
                with self._lock:
                    if self._stdin < 0:
                        return
                    fd = os.dup(self._stdin)
                try:
                    _write_all(fd, data)
                finally:
                    os.close(fd)
        except GONE:  # the command does not read any more, or the client has gone
            pass
        finally:
            self._close_stdin()

    def _copy_terminal_input(self, channel: paramiko.Channel) -> None:
        try:
            while data := channel.recv(_BLOCK):
                self._count_input(len(data))
                _write_all(self._master, data)
        except GONE:
            return

    def _copy_output(self, fd: int, send: Callable[[bytes], object]) -> None:
        try:
            while data := os.read(fd, _BLOCK):
                self._send(data, send)
        except GONE:  # the command gets SIGPIPE when it writes again
            return
        finally:
            os.close(fd)

    def _copy_terminal_output(self, fd: int, channel: paramiko.Channel) -> None:
        """Copy output until the client has gone; then the terminal's programs get SIGHUP."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        try:
            while not channel.closed:
                if poll.poll(200):
                    self._send(os.read(fd, _BLOCK), channel.sendall)
        except GONE:  # no program has the terminal open any more, or the client has gone
            return
        finally:
            os.close(fd)

    def _send(self, data: bytes, send: Callable[[bytes], object]) -> None:
        limit = self._faults.cut_after_output
        if limit is not None and len(data) >= limit:
            self._faults.cut_after_output = None
            send(data[:limit])
            self._drop_connection()
            raise ConnectionError("dropped by the fault cut_after_output")
        if limit is not None:
            self._faults.cut_after_output = limit - len(data)
        send(data)

    def _count_input(self, size: int) -> None:
        limit = self._faults.cut_after_input
        if limit is None:
            return
        if size >= limit:
            self._faults.cut_after_input = None
            self._drop_connection()
            raise ConnectionError("dropped by the fault cut_after_input")
        self._faults.cut_after_input = limit - size

    def _send_stderr_flood(self, channel: paramiko.Channel) -> None:
        rest = self._faults.stderr_flood
        while rest > 0:
            piece = (b"noise on standard error\n" * 1366)[: min(rest, _BLOCK)]
            channel.sendall_stderr(piece)
            rest -= len(piece)

    def _close_stdin(self) -> None:
        with self._lock:
            if self._stdin >= 0:
                os.close(self._stdin)
                self._stdin = -1

    def hang_up(self) -> None:
        """Close standard input and the terminal, whose programs get SIGHUP."""
        self._close_stdin()
        with self._lock:
            if self._master >= 0:
                os.close(self._master)
                self._master = -1


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _send_status(channel: paramiko.Channel, status: int, copiers: list[threading.Thread]) -> None:
    """Send the exit status after the output; keep the channel while a process has the pipes open.

    OpenSSH does the same.
    """
    for thread in copiers:
        thread.join(0.2)
    if channel.closed:
        return
    if status >= 0:
        channel.send_exit_status(status)
    else:
        _send_signal(channel, -status)
    for thread in copiers:
        while thread.is_alive() and not channel.closed:
            thread.join(0.2)


def _send_signal(channel: paramiko.Channel, number: int) -> None:
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("exit-signal")
    message.add_boolean(False)
    message.add_string(_SIGNALS.get(number, "TERM"))
    message.add_boolean(False)
    message.add_string("")
    message.add_string("")
    transport: Any = channel.get_transport()
    transport._send_user_message(message)  # noqa: SLF001 - paramiko has no public method
