"""The streams of one command on an SSH channel: its input, and its two outputs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paramiko import Channel
from paramiko.ssh_exception import SSHException

from provision.core.model import Sink

_READ_BYTES = 1024 * 1024
_PACKET_BYTES = 32 * 1024


@dataclass(frozen=True)
class CommandInput:
    """What a command reads; with `ends`, its standard input is closed after that."""

    chunks: Iterable[bytes]
    ends: bool

    @property
    def size(self) -> int | None:
        """Bytes; None when the size is not known in advance."""
        known = isinstance(self.chunks, Sequence) and len(self.chunks) <= 1
        return sum(map(len, self.chunks)) if known else None


@dataclass(frozen=True)
class Sinks:
    """Where a command's two outputs go."""

    stdout: Sink
    stderr: Sink


class DataReady:
    """An event that paramiko sets whenever one of a channel's two streams has data or has ended.

    Two buffers share it, and each clears it when it is empty itself. That must not hide the other
    one's data: `clear` does nothing, and the reader calls `reset` before it looks.
    """

    def __init__(self, channel: Channel) -> None:
        self._event = threading.Event()
        for buffer in (channel.in_buffer, channel.in_stderr_buffer):
            buffer.set_event(self)  # type: ignore[arg-type]

    def set(self) -> None:
        """Report that a buffer has data or has ended; paramiko calls it."""
        self._event.set()

    def clear(self) -> None:
        """Do nothing: one empty buffer does not mean that the other one is empty."""

    def reset(self) -> None:
        """Forget earlier reports, before both buffers are looked at."""
        self._event.clear()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a report; return False when none came in time."""
        return self._event.wait(timeout_s)


def copy_output(channel: Channel, ready: DataReady, sinks: Sinks, deadline: float) -> bool:
    """Pass output to the sinks until both streams have ended; return False at the deadline.

    The streams take turns, so that a flood on one delays neither the other nor the deadline.
    """
    while (left_s := deadline - time.monotonic()) > 0:
        ready.reset()
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
            ready.wait(left_s)
    return False


def _receive(receive: Callable[[int], bytes]) -> bytes:
    """Read what a stream holds; empty when the connection is lost.

    Reading also enlarges the server's window, which fails once the connection is lost.
    """
    try:
        return receive(_READ_BYTES)
    except (OSError, EOFError, SSHException):
        return b""


def send_all(channel: Channel, command_input: CommandInput) -> None:
    """Write the input; a command that ends or closes its input early is not an error."""
    with contextlib.suppress(OSError, EOFError, SSHException):
        for chunk in command_input.chunks:
            view = memoryview(chunk)
            while view:
                sent = channel.send(bytes(view[:_PACKET_BYTES]))
                if sent == 0:
                    return
                view = view[sent:]
        if command_input.ends:
            channel.shutdown_write()
