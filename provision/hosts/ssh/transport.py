"""Commands over one SSH connection: streamed, bounded in time, and never left hanging."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paramiko import Channel
from paramiko.ssh_exception import SSHException

from provision.core.errors import CommandTimeout, HostError, Unreachable
from provision.core.model import Host, Sink
from provision.hosts.ssh.wire import SESSION, Ending, Opening, Wire, opened

_READ_BYTES = 1024 * 1024
_PACKET_BYTES = 32 * 1024
_INLINE_BYTES = 64 * 1024
"""Input up to this size fits into the socket's buffer and is sent without a thread of its own."""
COMMAND_MAX_BYTES = 128 * 1024 - 1
"""Linux: MAX_ARG_STRLEN; a longer command line cannot be handed to the login shell."""


@dataclass(frozen=True)
class _Input:
    """What a command reads, and whether its input ends after that."""

    chunks: Iterable[bytes]
    ends: bool

    @property
    def size(self) -> int | None:
        """Bytes, where that is known before they come."""
        return (
            sum(map(len, self.chunks))
            if isinstance(self.chunks, Sequence) and len(self.chunks) <= 1
            else None
        )


@dataclass(frozen=True)
class _Sinks:
    stdout: Sink
    stderr: Sink


class SshTransport:
    """The `Transport` of a host that is reached by SSH. Several threads may run commands at once."""

    def __init__(self, host: Host, wire: Wire, close: Callable[[], None]) -> None:
        self._host = host
        self._wire = wire
        self._close = close
        self._lock = threading.Lock()
        self._closed = False
        self._over = threading.Event()
        self._spare: Opening | None = wire.spare or wire.begin(SESSION)

    @property
    def host(self) -> Host:
        """The host this transport leads to."""
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

        Death by a signal gives 128 + its number, as a shell would say it.
        """
        return self._run(
            command,
            _Input((stdin,) if stdin else (), ends=False),
            _Sinks(on_stdout, on_stderr),
            timeout_s,
        )

    def send(
        self,
        command: str,
        chunks: Iterable[bytes],
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        """Like `exchange`, but the input ends after the last chunk."""
        return self._run(
            command, _Input(chunks, ends=True), _Sinks(on_stdout, on_stderr), timeout_s
        )

    def close(self) -> None:
        """End the connection and every gateway on the way; safe to call twice and from another thread."""
        with self._lock:
            already, self._closed = self._closed, True
        if not already:
            self._over.set()
            self._close()

    def open_terminal(
        self,
        command: str | None,
        *,
        term: str,
        size: tuple[int, int] | None,
        timeout_s: float = 30.0,
    ) -> Channel:
        """A channel with a login shell (or `command`) on it; with `size` (columns, lines) on a terminal of the host's."""
        channel = self._session(time.monotonic() + timeout_s, timeout_s)
        channel.settimeout(timeout_s)
        self._wire.endings[channel.chanid] = Ending()
        try:
            if size:
                channel.get_pty(term, *size)
            if command is None:
                channel.invoke_shell()
            else:
                channel.exec_command(command)
        except SSHException as error:
            channel.close()
            raise self._refused() if self._wire.is_active() else self._lost(str(error)) from error
        channel.settimeout(None)
        return channel

    def exit_status(self, channel: Channel, timeout_s: float = 30.0) -> int:
        """How the program on a channel of `open_terminal` ended, once its output has."""
        ending = self._wire.endings.pop(channel.chanid, Ending())
        return self._status(channel, ending, time.monotonic() + timeout_s, timeout_s)

    def _run(self, command: str, given: _Input, sinks: _Sinks, timeout_s: float) -> int:
        line = command.encode("utf-8", "surrogateescape")
        if len(line) > COMMAND_MAX_BYTES or b"\0" in line:
            raise ValueError(
                f"a command line of {len(line)} bytes; at most {COMMAND_MAX_BYTES}, none NUL: send it on standard input"
            )
        deadline = time.monotonic() + timeout_s
        channel = self._session(deadline, timeout_s)
        try:
            wake = _Wake(channel)
            ending = self._start(channel, line, given)
            if not _stream(channel, wake, sinks, deadline):
                raise self._timeout(timeout_s)
            return self._status(channel, ending, deadline, timeout_s)
        finally:
            self._wire.endings.pop(channel.chanid, None)
            with contextlib.suppress(OSError, EOFError, SSHException):
                channel.close()

    def _start(self, channel: Channel, line: bytes, given: _Input) -> Ending:
        try:
            ending = self._wire.start_command(channel, line)
            self._feed(channel, given)
        except (OSError, EOFError, SSHException) as error:
            raise self._lost(str(error)) from error
        self._prefetch()
        return ending

    def _session(self, deadline: float, timeout_s: float) -> Channel:
        with self._lock:
            opening, self._spare = self._spare, None
        refusal = ""
        # what was refused in advance, or closed because nobody used it (sshd's ChannelTimeout), or
        # refused while the server still buries an ended command, may be granted now
        for pause_s in (0.0, 0.0, 0.1, 0.3):
            self._over.wait(pause_s)
            asked, opening = opening or self._begin(), None
            channel = opened(self._wire, asked, deadline)
            if channel is not None:
                return channel
            if not self._wire.is_active():
                raise self._lost("")
            refusal = self._wire.refusals.pop(
                asked.channel.chanid, "closed at once" if asked.channel.closed else ""
            )
            if not refusal:
                raise self._timeout(timeout_s)
        raise self._too_many(refusal)

    def _begin(self) -> Opening:
        try:
            return self._wire.begin(SESSION)
        except (OSError, EOFError, SSHException) as error:
            raise self._lost(str(error)) from error

    def _prefetch(self) -> None:
        """Ask for the next session while this command runs, so that the next command costs one round trip."""
        with self._lock:
            if self._spare is None and not self._closed:
                self._spare = self._begin()

    def _feed(self, channel: Channel, given: _Input) -> None:
        if given.size is not None and given.size <= min(_INLINE_BYTES, channel.out_window_size):
            _send_all(channel, given)
        else:
            threading.Thread(
                target=_send_all,
                args=(channel, given),
                name=f"stdin of {self._host.name}",
                daemon=True,
            ).start()

    def _status(self, channel: Channel, ending: Ending, deadline: float, timeout_s: float) -> int:
        if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
            raise self._timeout(timeout_s)
        if ending.refused and self._wire.is_active():
            raise self._refused()
        # OpenSSH may send the status before the last of the output: a connection cut in between has
        # not delivered all
        if not (channel.eof_received or ending.closed):
            raise self._lost("")
        if channel.exit_status >= 0:
            return channel.exit_status
        if ending.signal:
            return 128 + _signal_number(ending.signal)
        raise self._lost("")

    def _lost(self, why: str) -> Unreachable:
        if self._closed:
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
            "the connection was lost", where=self._host.name, why=reason, fix=self._try()
        )

    def _refused(self) -> HostError:
        return HostError(
            "the server refuses to run commands",
            where=self._host.name,
            why="exec request refused",
            fix=self._try(),
        )

    def _too_many(self, refusal: str) -> HostError:
        why = f"{refusal} (OpenSSH grants MaxSessions, by default 10, at once on one connection)"
        return HostError(
            "the server refuses another session",
            where=self._host.name,
            why=why,
            fix="sudo sshd -T | grep -i maxsessions",
        )

    def _timeout(self, timeout_s: float) -> CommandTimeout:
        return CommandTimeout(
            f"no end after {timeout_s:g} s",
            where=self._host.name,
            why="the command was still running",
            fix=self._try(),
        )

    def _try(self) -> str:
        user = f"{self._host.user}@" if self._host.user else ""
        port = f"-p {self._host.port} " if self._host.port else ""
        return f"ssh {port}{user}{self._host.address} uptime"


class _Wake:
    """Set by the connection's thread whenever either stream has something to read or has ended.

    Two buffers share it, so "this buffer is empty now" must not clear what the other one set:
    `clear` does nothing and the reader resets it before it looks.
    """

    def __init__(self, channel: Channel) -> None:
        self._event = threading.Event()
        for buffer in (channel.in_buffer, channel.in_stderr_buffer):
            buffer.set_event(self)  # type: ignore[arg-type]

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        pass

    def reset(self) -> None:
        self._event.clear()

    def wait(self, timeout_s: float) -> bool:
        return self._event.wait(timeout_s)


def _stream(channel: Channel, wake: _Wake, sinks: _Sinks, deadline: float) -> bool:
    """Hand over what arrives until both streams have ended; False when the deadline passed first.

    Each stream in turn, so that a flood on one holds up neither the other nor the deadline.
    """
    while (left_s := deadline - time.monotonic()) > 0:
        wake.reset()
        ended = bool(channel.eof_received) or channel.closed
        out = _receive(channel.recv) if channel.recv_ready() else b""
        err = _receive(channel.recv_stderr) if channel.recv_stderr_ready() else b""
        if out:
            sinks.stdout(out)
        if err:
            sinks.stderr(err)
        if not out and not err:
            if ended:
                return True
            wake.wait(left_s)
    return False


def _receive(receive: Callable[[int], bytes]) -> bytes:
    """What a stream holds. Reading also grants the server more room, which fails when the connection is gone: then it has ended."""
    try:
        return receive(_READ_BYTES)
    except (OSError, EOFError, SSHException):
        return b""


def _send_all(channel: Channel, given: _Input) -> None:
    """Write the input; a command that ends or closes its input before it has read all is no error."""
    with contextlib.suppress(OSError, EOFError, SSHException):
        for chunk in given.chunks:
            view = memoryview(chunk)
            while view:
                sent = channel.send(bytes(view[:_PACKET_BYTES]))
                if sent == 0:
                    return
                view = view[sent:]
        if given.ends:
            channel.shutdown_write()


def _signal_number(name: str) -> int:
    """The number of a signal as RFC 4254 §6.10 names it (without SIG); 0 for one this system does not know."""
    with contextlib.suppress(KeyError):
        return int(signal.Signals[f"SIG{name}"])
    return 0
