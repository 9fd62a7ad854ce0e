"""Commands over one SSH connection: streamed, bounded in time, several at once."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable

from paramiko import Channel
from paramiko.ssh_exception import SSHException

from provision.core.errors import CommandTimeout, HostError, Unreachable
from provision.core.model import Host, Sink
from provision.hosts.ssh.streams import CommandInput, DataReady, Sinks, copy_output, send_all
from provision.hosts.ssh.wire import SESSION, CommandEnd, PendingChannel, Wire, wait_for_channel

_INLINE_BYTES = 64 * 1024
"""Input up to this size fits into the socket's buffer and needs no thread of its own."""
COMMAND_MAX_BYTES = 128 * 1024 - 1
"""Linux: MAX_ARG_STRLEN; the login shell cannot receive a longer command line."""
_SESSION_PAUSES_S = (0.0, 0.0, 0.1, 0.3)
"""Waits before each attempt to get a session.

A second attempt can succeed: a session requested in advance may have been refused, or closed for
want of use (sshd's ChannelTimeout), or refused while the server still cleans up an ended command.
"""


class SshTransport:
    """The `Transport` of a host reached by SSH. Several threads may run commands at once."""

    def __init__(self, host: Host, wire: Wire, close: Callable[[], None]) -> None:
        self._host = host
        self._wire = wire
        self._close = close
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._next_session: PendingChannel | None = wire.early_channel or wire.request_channel(
            SESSION
        )
        """Requested in advance, so that the next command costs one round trip."""

    @property
    def host(self) -> Host:
        """The host that this transport leads to."""
        return self._host

    def exchange(
        self,
        command: str,
        stdin: bytes = b"",
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        """Run one command line in the login shell; see `provision.core.model.Transport.exchange`.

        Returns the exit status; for a command ended by a signal, 128 + its number, as shells do.
        Raises `Unreachable` when the connection is lost, `CommandTimeout` after `timeout_s`,
        `HostError` when the server refuses the session or the command, and ValueError for a command
        line that is too long or contains NUL.
        """
        command_input = CommandInput((stdin,) if stdin else (), ends=False)
        return self._run(command, command_input, Sinks(on_stdout, on_stderr), timeout_s)

    def send(
        self,
        command: str,
        chunks: Iterable[bytes],
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        """Like `exchange`, but the command's standard input ends after the last chunk."""
        command_input = CommandInput(chunks, ends=True)
        return self._run(command, command_input, Sinks(on_stdout, on_stderr), timeout_s)

    def close(self) -> None:
        """Close the connection and its gateways; safe to call twice and from another thread."""
        with self._lock:
            already_closed = self._closing.is_set()
            self._closing.set()
        if not already_closed:
            self._close()

    def open_terminal(
        self,
        command: str | None,
        *,
        term: str,
        size: tuple[int, int] | None,
        timeout_s: float = 30.0,
    ) -> Channel:
        """Return a channel that runs `command`, or a login shell for None.

        With `size` (columns, lines), it has a terminal on the host. Raises `HostError` when the
        server refuses, `Unreachable` when the connection is lost.
        """
        channel = self._open_session(time.monotonic() + timeout_s, timeout_s)
        channel.settimeout(timeout_s)
        self._wire.command_ends[channel.chanid] = CommandEnd()
        try:
            if size:
                channel.get_pty(term, *size)
            if command is None:
                channel.invoke_shell()
            else:
                channel.exec_command(command)
        except SSHException as error:
            channel.close()
            if self._wire.is_active():
                raise self._command_refused() from error
            raise self._connection_lost(str(error)) from error
        channel.settimeout(None)
        return channel

    def exit_status(self, channel: Channel, timeout_s: float = 30.0) -> int:
        """Return the exit status of a channel from `open_terminal`, after its output has ended.

        Raises as `exchange` does.
        """
        end = self._wire.command_ends.pop(channel.chanid, CommandEnd())
        return self._wait_for_status(channel, end, time.monotonic() + timeout_s, timeout_s)

    def _run(
        self, command: str, command_input: CommandInput, sinks: Sinks, timeout_s: float
    ) -> int:
        line = command.encode("utf-8", "surrogateescape")
        if len(line) > COMMAND_MAX_BYTES or b"\0" in line:
            raise ValueError(
                f"a command line of {len(line)} bytes; at most {COMMAND_MAX_BYTES}, none NUL: "
                "send it on standard input"
            )
        deadline = time.monotonic() + timeout_s
        channel = self._open_session(deadline, timeout_s)
        try:
            data_ready = DataReady(channel)
            end = self._start(channel, line, command_input)
            if not copy_output(channel, data_ready, sinks, deadline):
                raise self._timed_out(timeout_s)
            return self._wait_for_status(channel, end, deadline, timeout_s)
        finally:
            self._wire.command_ends.pop(channel.chanid, None)
            with contextlib.suppress(OSError, EOFError, SSHException):
                channel.close()

    def _start(self, channel: Channel, line: bytes, command_input: CommandInput) -> CommandEnd:
        try:
            end = self._wire.start_command(channel, line)
            self._send_input(channel, command_input)
        except (OSError, EOFError, SSHException) as error:
            raise self._connection_lost(str(error)) from error
        self._request_next_session()
        return end

    def _open_session(self, deadline: float, timeout_s: float) -> Channel:
        with self._lock:
            pending, self._next_session = self._next_session, None
        refusal = ""
        for pause_s in _SESSION_PAUSES_S:
            self._closing.wait(pause_s)
            attempt, pending = pending or self._request_session(), None
            channel = wait_for_channel(self._wire, attempt, deadline)
            if channel is not None:
                return channel
            if not self._wire.is_active():
                raise self._connection_lost("")
            refusal = self._wire.refusals.pop(
                attempt.channel.chanid, "closed at once" if attempt.channel.closed else ""
            )
            if not refusal:
                raise self._timed_out(timeout_s)
        raise self._session_refused(refusal)

    def _request_session(self) -> PendingChannel:
        try:
            return self._wire.request_channel(SESSION)
        except (OSError, EOFError, SSHException) as error:
            raise self._connection_lost(str(error)) from error

    def _request_next_session(self) -> None:
        with self._lock:
            if self._next_session is None and not self._closing.is_set():
                self._next_session = self._request_session()

    def _send_input(self, channel: Channel, command_input: CommandInput) -> None:
        size = command_input.size
        if size is not None and size <= min(_INLINE_BYTES, channel.out_window_size):
            send_all(channel, command_input)
        else:
            threading.Thread(
                target=send_all,
                args=(channel, command_input),
                name=f"stdin of {self._host.name}",
                daemon=True,
            ).start()

    def _wait_for_status(
        self, channel: Channel, end: CommandEnd, deadline: float, timeout_s: float
    ) -> int:
        if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
            raise self._timed_out(timeout_s)
        if end.refused and self._wire.is_active():
            raise self._command_refused()
        # OpenSSH may send the status before the end of the output: a connection lost in between has
        # not delivered all of it.
        if not (channel.eof_received or end.closed):
            raise self._connection_lost("")
        if channel.exit_status >= 0:
            return channel.exit_status
        if end.signal:
            return 128 + _signal_number(end.signal)
        raise self._connection_lost("")

    def _connection_lost(self, why: str) -> Unreachable:
        if self._closing.is_set():
            return Unreachable(
                "the connection was closed",
                where=self._host.name,
                why="closed from our side while a command ran",
            )
        saved = self._wire.saved_exception
        reason = (
            self._wire.disconnect_reason
            or why
            or (str(saved) if saved else "")
            or "no exit status arrived"
        )
        return Unreachable(
            "the connection was lost",
            where=self._host.name,
            why=reason,
            fix=self._manual_check(),
        )

    def _command_refused(self) -> HostError:
        return HostError(
            "the server refuses to run commands",
            where=self._host.name,
            why="exec request refused",
            fix=self._manual_check(),
        )

    def _session_refused(self, refusal: str) -> HostError:
        why = f"{refusal} (OpenSSH grants MaxSessions, by default 10, at once on one connection)"
        return HostError(
            "the server refuses another session",
            where=self._host.name,
            why=why,
            fix="sudo sshd -T | grep -i maxsessions",
        )

    def _timed_out(self, timeout_s: float) -> CommandTimeout:
        return CommandTimeout(
            f"no end after {timeout_s:g} s",
            where=self._host.name,
            why="the command was still running",
            fix=self._manual_check(),
        )

    def _manual_check(self) -> str:
        user = f"{self._host.user}@" if self._host.user else ""
        port = f"-p {self._host.port} " if self._host.port else ""
        return f"ssh {port}{user}{self._host.address} uptime"


def _signal_number(name: str) -> int:
    """Return the number of a signal named as in RFC 4254 §6.10 (without SIG); 0 if unknown here."""
    with contextlib.suppress(KeyError):
        return int(signal.Signals[f"SIG{name}"])
    return 0
