"""One exchange: a script with many sections sent on one channel, its framed answer read as it arrives."""

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
from provision.core.frames import Begin, Chunk, Done, End, Frame, FrameReader, LineSplitter
from provision.core.model import Transport
from provision.core.shell import Section, job, wrap

TAIL_LINES = 10
_KEPT_OUTPUT_BYTES = 16 * 2**20
_KEPT_STDERR_BYTES = 16 * 2**10
_TIMEOUT_STATUSES = frozenset({124, 137, 143})
"""GNU timeout ends with 124, or 137 when it had to kill; busybox passes 143 on."""
_GRACE_S = 30.0
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Docker's legacy builder writes what failed in red, terminal or not."""
_SUDO_REFUSES = re.compile(
    r"sudo: .*(password|terminal) is required|in the sudoers file|may not run sudo|Sorry, user \S+ is not allowed"
)


@dataclass(frozen=True)
class Answer:
    """The end of one section: its status, what it printed, how long it took, and whether its time was up."""

    status: int
    output: str
    seconds: float
    timed_out: bool = False


@dataclass
class Listener:
    """Who is told, while it happens, that a section began, printed a line, ended."""

    began: Callable[[str], None] = field(default=lambda key: None)
    line: Callable[[str, str], None] = field(default=lambda key, text: None)
    ended: Callable[[str, Answer], None] = field(default=lambda key, answer: None)


@dataclass(frozen=True)
class Reply:
    """What came back: the sections that ended, whether the job reached its end, and why not."""

    answers: dict[str, Answer]
    begun: frozenset[str]
    stderr: str
    error: ProvisionError | None = None


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """The last lines of what a command printed, without empty ones at the end and without its colours."""
    return "\n".join(_COLOURS.sub("", text).rstrip().splitlines()[-lines:])


class _Conversation:
    """Collects frames into answers. One per exchange."""

    def __init__(
        self, sections: Sequence[Section], listener: Listener, clock: Callable[[], float]
    ) -> None:
        self._timeouts = {section.key: section.timeout_s for section in sections}
        self._listener = listener
        self._clock = clock
        self._output = bytearray()
        self._splitter = LineSplitter(lambda text: None)
        self._started = 0.0
        self.stderr = bytearray()
        self.answers: dict[str, Answer] = {}
        self.begun: set[str] = set()
        self.done = False

    def on_stderr(self, data: bytes) -> None:
        self.stderr += data
        del self.stderr[:-_KEPT_STDERR_BYTES]

    def on_frame(self, frame: Frame) -> None:
        match frame:
            case Begin(key):
                self._begin(key)
            case Chunk(_, data):
                self._output += data
                del self._output[:-_KEPT_OUTPUT_BYTES]
                self._splitter.feed(data)
            case End(key, status):
                self._end(key, status)
            case Done():
                self.done = True

    def _begin(self, key: str) -> None:
        self.begun.add(key)
        self._output.clear()
        self._started = self._clock()
        self._splitter = LineSplitter(lambda text: self._listener.line(key, text))
        self._listener.began(key)

    def _end(self, key: str, status: int) -> None:
        self._splitter.close()
        seconds = self._clock() - self._started
        timed_out = status in _TIMEOUT_STATUSES and seconds >= self._timeouts.get(key, 0.0) * 0.95
        answer = Answer(status, bytes(self._output).decode("utf-8", "replace"), seconds, timed_out)
        self.answers[key] = answer
        self._listener.ended(key, answer)


def exchange(
    transport: Transport,
    sections: Sequence[Section],
    *,
    clock: Callable[[], float],
    listener: Listener | None = None,
) -> Reply:
    """Send the sections as one script on one channel and read the answer as it arrives.

    Never raises for what happens on the host or the wire: `Reply.error` says why the job did not
    reach its end.
    """
    nonce = f":{secrets.token_hex(8)}:"
    talk = _Conversation(sections, listener or Listener(), clock)
    reader = FrameReader(nonce)

    def on_stdout(data: bytes) -> None:
        for frame in reader.feed(data):
            talk.on_frame(frame)

    command, stdin = wrap(
        job(sections, nonce),
        become=transport.host.become,
        secret=any(section.body.has_secret for section in sections),
    )
    error: ProvisionError | None = None
    try:
        limit_s = sum(section.timeout_s + _GRACE_S for section in sections) + _GRACE_S
        status = transport.exchange(
            command, stdin, on_stdout=on_stdout, on_stderr=talk.on_stderr, timeout_s=limit_s
        )
    except HostError as caught:
        error = caught
        status = -1
    stderr = bytes(talk.stderr).decode("utf-8", "replace")
    if error is None and not talk.done:
        error = _ended_early(transport, status, stderr)
    return Reply(talk.answers, frozenset(talk.begun), stderr, error)


def _ended_early(transport: Transport, status: int, stderr: str) -> ProvisionError:
    host = transport.host
    if _SUDO_REFUSES.search(stderr):
        user = host.user or "USER"
        return CommandFailed(
            "sudo refuses to run the script without a password",
            where=host.name,
            why=tail(stderr, 3),
            fix=f"echo '{user} ALL=(ALL) NOPASSWD: ALL' | sudo tee /etc/sudoers.d/provision   (on the host)",
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
        "the script ended before its end",
        where=host.name,
        why=why,
        fix="run the same command again: it continues where it stopped",
    )


def failure(where: str, what: str, answer: Answer, timeout_s: float) -> ProvisionError:
    """The error for a section that ended badly, with its last lines."""
    if answer.timed_out:
        why = f"no end after {timeout_s:g} s" + (
            f"\n{tail(answer.output)}" if answer.output.strip() else ""
        )
        return CommandTimeout(f"{what} did not end in time", where=where, why=why)
    why = tail(answer.output) or "it printed nothing"
    return CommandFailed(f"{what} failed with status {answer.status}", where=where, why=why)
