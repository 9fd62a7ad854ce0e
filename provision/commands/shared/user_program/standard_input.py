"""Run a program that reads the task's standard input, and end it with the connection."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from provision.core.errors import HostError, UsageError
from provision.core.job import reading_command
from provision.core.model import Sink, Transport
from provision.core.shell import ARGUMENT_LIMIT_BYTES, Script

_PIECE_BYTES = 64 * 1024
_CLOSE_S = 5.0
"""How long the channel of the watching script may take to close."""


def run_reading_program(
    transport: Transport,
    body: Script,
    watching: Script,
    stdin: int,
    *,
    on_stdout: Sink,
    on_stderr: Sink,
    timeout_s: float,
) -> int:
    """The exit status of `body`, which reads the file descriptor `stdin`.

    `watching` runs beside it, and ends the program unless its input is the line `over`. Raises
    `UsageError` when the command line is too long, and errors of the connection.
    """
    command = reading_command(body, become=transport.host.become)
    if len(command.encode("utf-8", "surrogateescape")) > ARGUMENT_LIMIT_BYTES:
        raise UsageError(
            "the command is too long for one that reads its standard input",
            fix="the same command with </dev/null",
        )
    with _watched(transport, watching, timeout_s):
        return transport.send(
            command,
            _pieces(stdin),
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            timeout_s=timeout_s,
        )


def _pieces(handle: int) -> Iterator[bytes]:
    """The bytes of a file descriptor until its end."""
    with contextlib.suppress(OSError):
        while piece := os.read(handle, _PIECE_BYTES):
            yield piece


@contextlib.contextmanager
def _watched(transport: Transport, watching: Script, timeout_s: float) -> Iterator[None]:
    """Run the watching script in a thread, and signal to it that the program ended by itself.

    It gets the line `over` when the block ends without an exception. After an exception, Ctrl-C
    included, it gets an empty input, and ends the program.
    """
    started, finished, succeeded = threading.Event(), threading.Event(), threading.Event()
    errors: list[HostError] = []

    def last_word() -> Iterator[bytes]:
        finished.wait()
        if succeeded.is_set():
            yield b"over\n"

    def watch() -> None:
        try:
            transport.send(
                reading_command(watching, become=transport.host.become),
                last_word(),
                on_stdout=lambda _: started.set(),
                on_stderr=lambda _: None,
                timeout_s=timeout_s,
            )
        except HostError as error:
            errors.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=watch, name="lifeline", daemon=True)
    thread.start()
    try:
        started.wait()
        if errors:
            raise errors[0]
        yield
        succeeded.set()
    finally:
        finished.set()
    thread.join(_CLOSE_S)
