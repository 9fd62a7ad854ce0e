"""One exchange: a job is sent on one channel, and its output is read as it arrives."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from provision.core.errors import (
    CommandFailed,
    CommandTimeout,
    HostError,
    ProvisionError,
    Unreachable,
)
from provision.core.frames import (
    Chunk,
    Frame,
    FrameReader,
    JobEnd,
    LineSplitter,
    SectionBegin,
    SectionEnd,
)
from provision.core.job import Section, job_command
from provision.core.model import Transport

TAIL_LINES = 10
_KEPT_OUTPUT_BYTES = 16 * 2**20
_KEPT_STDERR_BYTES = 16 * 2**10
_TIMEOUT_STATUSES = frozenset({124, 137, 143})
"""GNU timeout ends with 124, or 137 when it had to kill; busybox passes 143 on."""
_TIMEOUT_SHARE = 0.95
"""A section ran into its time limit when it took at least this share of it."""
_GRACE_S = 30.0
"""Seconds that a section and the job as a whole may take beyond their time limits."""
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Docker's legacy builder prints errors in red even without a terminal."""
_SUDO_REFUSES = re.compile(
    r"sudo: .*(password|terminal) is required|in the sudoers file|may not run sudo"
    r"|Sorry, user \S+ is not allowed"
)


@dataclass(frozen=True)
class SectionResult:
    """How a section ended: its status, what it printed, and how many seconds it took."""

    status: int
    output: str
    seconds: float
    timed_out: bool = False


@dataclass
class Listener:
    """Functions that are called while an exchange runs, with the key of a section first."""

    on_begin: Callable[[str], None] = field(default=lambda key: None)
    on_line: Callable[[str, str], None] = field(default=lambda key, text: None)
    on_end: Callable[[str, SectionResult], None] = field(default=lambda key, result: None)


@dataclass(frozen=True)
class ExchangeResult:
    """The sections that ended, those that were started, and why the job did not reach its end."""

    results: dict[str, SectionResult]
    started: frozenset[str]
    stderr: str
    error: ProvisionError | None = None


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """The last lines of a command's output, without colours and without empty lines at the end."""
    return "\n".join(_COLOURS.sub("", text).rstrip().splitlines()[-lines:])


class _Collector:
    """Collects the frames of one exchange into results."""

    def __init__(
        self, sections: Sequence[Section], listener: Listener, clock: Callable[[], float]
    ) -> None:
        self._timeouts = {section.key: section.timeout_s for section in sections}
        self._listener = listener
        self._clock = clock
        self._output = bytearray()
        self._splitter = LineSplitter(lambda text: None)
        self._began_at = 0.0
        self.stderr = bytearray()
        self.results: dict[str, SectionResult] = {}
        self.started: set[str] = set()
        self.is_complete = False

    def on_stderr(self, data: bytes) -> None:
        self.stderr += data
        del self.stderr[:-_KEPT_STDERR_BYTES]

    def on_frame(self, frame: Frame) -> None:
        match frame:
            case SectionBegin(key):
                self._begin(key)
            case Chunk(_, data):
                self._output += data
                del self._output[:-_KEPT_OUTPUT_BYTES]
                self._splitter.feed(data)
            case SectionEnd(key, status):
                self._end(key, status)
            case JobEnd():
                self.is_complete = True

    def _begin(self, key: str) -> None:
        self.started.add(key)
        self._output.clear()
        self._began_at = self._clock()
        self._splitter = LineSplitter(lambda text: self._listener.on_line(key, text))
        self._listener.on_begin(key)

    def _end(self, key: str, status: int) -> None:
        self._splitter.close()
        seconds = self._clock() - self._began_at
        limit_s = self._timeouts.get(key, 0.0)
        timed_out = status in _TIMEOUT_STATUSES and seconds >= limit_s * _TIMEOUT_SHARE
        output = bytes(self._output).decode("utf-8", "replace")
        self.results[key] = SectionResult(status, output, seconds, timed_out)
        self._listener.on_end(key, self.results[key])


def exchange(
    transport: Transport,
    sections: Sequence[Section],
    *,
    clock: Callable[[], float],
    listener: Listener | None = None,
) -> ExchangeResult:
    """Send the sections as one job on one channel and read its output as it arrives.

    Raises nothing for what happens on the host or on the wire: `ExchangeResult.error` says why
    the job did not reach its end.
    """
    nonce = f":{secrets.token_hex(8)}:"
    collector = _Collector(sections, listener or Listener(), clock)
    reader = FrameReader(nonce)

    def on_stdout(data: bytes) -> None:
        for frame in reader.feed(data):
            collector.on_frame(frame)

    command, stdin = job_command(sections, nonce, become=transport.host.become)
    error: ProvisionError | None = None
    try:
        limit_s = sum(section.timeout_s + _GRACE_S for section in sections) + _GRACE_S
        status = transport.exchange(
            command, stdin, on_stdout=on_stdout, on_stderr=collector.on_stderr, timeout_s=limit_s
        )
    except HostError as caught:
        error = caught
        status = -1
    stderr = bytes(collector.stderr).decode("utf-8", "replace")
    if error is None and not collector.is_complete:
        error = _incomplete_job_error(transport, status, stderr)
    return ExchangeResult(collector.results, frozenset(collector.started), stderr, error)


def _incomplete_job_error(transport: Transport, status: int, stderr: str) -> ProvisionError:
    host = transport.host
    if _SUDO_REFUSES.search(stderr):
        user = host.user or "USER"
        return CommandFailed(
            "sudo refuses to run the script without a password",
            where=host.name,
            why=tail(stderr, 3),
            fix=f"echo '{user} ALL=(ALL) NOPASSWD: ALL' | sudo tee /etc/sudoers.d/provision"
            "   (on the host)",
        )
    why = f"exit status {status}" + (f"\n{tail(stderr)}" if stderr.strip() else "")
    if status in {126, 127} or stderr.strip():
        return CommandFailed(
            "the script could not run",
            where=host.name,
            why=why,
            fix=f"ssh to {host.name} and run: sh -c 'command -v setsid timeout'",
        )
    return Unreachable(
        "the script did not reach its end",
        where=host.name,
        why=why,
        fix="run the same command again: it continues where it stopped",
    )


def section_error(where: str, what: str, result: SectionResult, timeout_s: float) -> ProvisionError:
    """The error for a section that failed, with the last lines of its output."""
    if result.timed_out:
        output = f"\n{tail(result.output)}" if result.output.strip() else ""
        why = f"no end after {timeout_s:g} s{output}"
        return CommandTimeout(f"{what} did not end in time", where=where, why=why)
    why = tail(result.output) or "it printed nothing"
    return CommandFailed(f"{what} failed with status {result.status}", where=where, why=why)
