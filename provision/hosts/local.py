"""The transport of a host with `address: local`: scripts run on this machine, without SSH."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from provision.core.errors import CommandTimeout, Unreachable
from provision.core.model import Host, Sink

_CHUNK_BYTES = 64 * 1024
_POLL_S = 0.05
"""Interval at which to notice the command's end while a child process keeps its output open."""
_GRACE_S = 2.0
"""How long a process group may take to end after SIGTERM; then it gets SIGKILL."""


class LocalTransport:
    """The `Transport` of this machine: `/bin/sh -c` in its own session, with a lifeline.

    The lifeline is the command's standard input: it ends when this process does.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._running: set[_Command] = set()
        self._closed = False

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
        """Run one command line; see `provision.core.model.Transport.exchange`.

        Raises `Unreachable` when `close` is called meanwhile, `CommandTimeout` after `timeout_s`.
        """
        return self._run(_Command(command, (stdin,), ends=False), on_stdout, on_stderr, timeout_s)

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
        return self._run(_Command(command, chunks, ends=True), on_stdout, on_stderr, timeout_s)

    def close(self) -> None:
        """Send SIGTERM to each command's process group; safe from any thread, also twice."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for command in running:
            command.terminate()

    def _run(self, command: _Command, on_stdout: Sink, on_stderr: Sink, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            if self._closed:
                raise self._closed_error()
            command.start()
            self._running.add(command)
        try:
            in_time = command.stream(on_stdout, on_stderr, deadline)
            status = command.wait_for_status(deadline) if in_time else None
        finally:
            with self._lock:
                self._running.discard(command)
            command.close()
        if command.terminated:
            raise self._closed_error()
        if status is None:
            raise CommandTimeout(
                f"no end after {timeout_s:g} s",
                where=self._host.name,
                why="the command was still running",
            )
        return status

    def _closed_error(self) -> Unreachable:
        return Unreachable(
            "the connection was closed",
            where=self._host.name,
            why="closed from our side while a command ran",
        )


class _Command:
    """One command with its three pipes."""

    _process: subprocess.Popen[bytes]

    def __init__(self, command: str, chunks: Iterable[bytes], *, ends: bool) -> None:
        self._argv = ["/bin/sh", "-c", command]
        self._generated = None if isinstance(chunks, Sequence) else chunks
        self._input = _pieces(chunks if isinstance(chunks, Sequence) else ())
        self._piece = memoryview(b"")
        self._ends = ends
        self.terminated = False

    def start(self) -> None:
        """Start the process, and a thread for input that is generated while it runs."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, bufsize=0
        )
        if self._generated is not None:
            stdin = os.dup(_pipes(self._process)[0].fileno())
            threading.Thread(
                target=_write_generated, args=(stdin, self._generated), name="stdin", daemon=True
            ).start()

    def stream(self, on_stdout: Sink, on_stderr: Sink, deadline: float) -> bool:
        """Copy all three streams until both outputs have ended; return False at the deadline."""
        stdin, stdout, stderr = _pipes(self._process)
        with selectors.DefaultSelector() as selector:
            for stream, sink in ((stdout, on_stdout), (stderr, on_stderr)):
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, sink)
            os.set_blocking(stdin.fileno(), self._generated is not None)
            if self._fetch_input():
                selector.register(stdin, selectors.EVENT_WRITE, None)
            outputs = {stdout.fileno(), stderr.fileno()}
            while outputs and not self.terminated:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                ready = selector.select(min(left_s, _POLL_S))
                self._close_input_of_ended_process(selector)
                for key, _ in ready:
                    if key.fd in outputs and not _read(key.fd, key.data):
                        selector.unregister(key.fileobj)
                        outputs.discard(key.fd)
                    elif key.fileobj is stdin and not stdin.closed:
                        self._write(selector, stdin)
        return True

    def _close_input_of_ended_process(self, selector: selectors.BaseSelector) -> None:
        """Close the standard input when the command has ended, as sshd does.

        A child process that the command left running then reads the end of its input.
        """
        stdin = _pipes(self._process)[0]
        if not stdin.closed and self._process.poll() is not None:
            if stdin in selector.get_map():
                selector.unregister(stdin)
            stdin.close()

    def wait_for_status(self, deadline: float) -> int | None:
        """Return the exit status, 128 + number for a signal; None at the deadline."""
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        return code if code >= 0 else 128 - code

    def terminate(self) -> None:
        """Send SIGTERM to the process group, so that the command can end its own children."""
        self.terminated = True
        self._signal(signal.SIGTERM)

    def close(self) -> None:
        """Close the pipes and end the process group: SIGTERM, then SIGKILL."""
        for stream in _pipes(self._process):
            stream.close()
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _fetch_input(self) -> bool:
        """Fetch the next piece if necessary; after the last one, close the input if it `ends`."""
        while not self._piece:
            piece = next(self._input, None)
            if piece is None:
                if self._ends:
                    _pipes(self._process)[0].close()
                return False
            self._piece = piece
        return True

    def _write(self, selector: selectors.BaseSelector, stdin: IO[bytes]) -> None:
        """Write a part of the current piece; unregister the stream when there is no more."""
        try:
            self._piece = self._piece[os.write(stdin.fileno(), self._piece[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            selector.unregister(stdin)
            return
        if not self._piece:
            selector.unregister(stdin)
            if self._fetch_input():
                selector.register(stdin, selectors.EVENT_WRITE, None)


def _write_generated(handle: int, chunks: Iterable[bytes]) -> None:
    """Write chunks as they are generated, then close `handle`; a closed pipe is not an error."""
    try:
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                view = view[os.write(handle, view) :]
    except BrokenPipeError:
        pass
    finally:
        os.close(handle)


def _pieces(chunks: Iterable[bytes]) -> Iterator[memoryview]:
    """Yield a view of each chunk that is not empty."""
    return (memoryview(chunk) for chunk in chunks if chunk)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise RuntimeError("the process has no pipes")
    return process.stdin, process.stdout, process.stderr


def _read(fd: int, sink: Sink) -> bool:
    """Pass what has arrived to the sink; return False at the end of the stream."""
    try:
        data = os.read(fd, _CHUNK_BYTES)
    except BlockingIOError:
        return True
    if data:
        sink(data)
    return bool(data)
