"""A transport that runs the text of every exchange on a dictionary and can fail at any byte."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from provision.core.errors import HostError, Unreachable
from provision.core.model import Event, Facts, Host, HostReport, Outcome, Sink, State, Status
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import Script, script

FACTS_KEY = "f"
_WORD = re.compile(r"(?:'[^']*'|\\.|[^\s'\\])+")
_PIECE = re.compile(r"'([^']*)'|\\(.)", re.DOTALL)


@dataclass
class Clock:
    """A clock that stands still unless it is set."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


# --- what was sent --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    """One section of an exchange, as the host sees it."""

    key: str
    timeout_s: float
    gate: bool
    merge: bool
    body: str

    @cached_property
    def words(self) -> list[str]:
        """The body's words; assignments first."""
        return words(self.body)

    @property
    def writes(self) -> bool:
        """True when it would change the host."""
        return "put" in self.words


@dataclass(frozen=True)
class Job:
    """The job of one exchange."""

    nonce: str
    sections: tuple[Sent, ...]

    @property
    def keys(self) -> list[str]:
        """The sections in order."""
        return [section.key for section in self.sections]


def words(text: str) -> list[str]:
    """The words of shell text, as far as `quote` writes them (shlex is a hundred times slower)."""
    return [
        _PIECE.sub(lambda piece: piece[1] or piece[2] or "", word) for word in _WORD.findall(text)
    ]


def parse(command: str, stdin: bytes) -> Job:
    """The job in the command line of a channel or on its standard input."""
    *outer, wrapped = words(command)
    assert outer in (["exec", "sh", "-c"], ["exec", "sudo", "-n", "sh", "-c"])
    inner = words(wrapped)
    text = stdin.decode() if stdin else inner[0].removeprefix("job=")
    nonce = re.search(r"^nonce=(.+)$", text, re.MULTILINE)
    assert nonce is not None
    calls = words(text[text.index("\nrun ") :])
    sections = []
    while calls[0] == "run":
        _, key, timeout, gate, merge, body, _large, *calls = calls
        sections.append(Sent(key, float(timeout), bool(gate), bool(merge), body))
    assert calls[0] == "finish"
    return Job(nonce[1], tuple(sections))


# --- the host -------------------------------------------------------------------------------------


@dataclass
class FakeHost:
    """Keys with values. A put may fail, do nothing, print or take time; a get may fail."""

    values: dict[str, str] = field(default_factory=dict)
    failing: dict[str, tuple[int, str]] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)
    prints: dict[str, str] = field(default_factory=dict)
    slow: dict[str, float] = field(default_factory=dict)
    garbage: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, tuple[int, str]] = field(default_factory=dict)
    facts_status: int = 0
    clock: Clock = field(default_factory=Clock)
    puts: list[str] = field(default_factory=list)

    def play(self, section: Sent) -> tuple[int, str]:
        """Run one section: its status and what it prints."""
        if section.key == FACTS_KEY:
            return self.facts_status, f"ID=fake\nkernel={self.values.get('kernel', '')}\n"
        start = section.words.index("host")
        bound = dict(word.split("=", 1) for word in section.words[:start] if "=" in word)
        key = bound["key"]
        if section.words[start + 1] == "get":
            return self._get(key)
        return self._put(key, bound["value"], section.timeout_s)

    def _get(self, key: str) -> tuple[int, str]:
        if key in self.unreadable:
            return self.unreadable[key]
        if key in self.garbage:
            return 0, self.garbage[key]
        return 0, f"value={self.values[key]}\n" if key in self.values else ""

    def _put(self, key: str, value: str, timeout_s: float) -> tuple[int, str]:
        self.puts.append(key)
        seconds = self.slow.get(key, 0.0)
        if seconds > timeout_s:
            self.clock.now += timeout_s
            return 124, self.prints.get(key, "")
        self.clock.now += seconds
        if key in self.failing:
            return self.failing[key]
        if key not in self.stuck:
            self.values[key] = value
        return 0, self.prints.get(key, "")


@dataclass
class ScriptedTransport:
    """Runs every exchange on `fake`.

    `cut_at` loses the connection after that many bytes of output of all exchanges. The host ends
    what it had begun by then, and with `carries_on` also the rest. `chunk` bytes arrive at once.
    """

    fake: FakeHost
    cut_at: int | None = None
    carries_on: bool = False
    chunk: int = 65536
    before: bytes = b""
    stderr: bytes = b""
    status: int = 0
    error: HostError | None = None
    become: str = "none"
    jobs: list[Job] = field(default_factory=list)
    delivered: list[bytes] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    @property
    def host(self) -> Host:
        return Host(name="fake", address="fake.invalid", user="me", become=self.become)

    @property
    def puts(self) -> int:
        """The number of writing sections that were sent."""
        return sum(section.writes for job in self.jobs for section in job.sections)

    def exchange(
        self,
        command: str,
        stdin: bytes = b"",
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        job = parse(command, stdin)
        self.jobs.append(job)
        self.limits.append(timeout_s)
        on_stderr(self.stderr)
        if self.error is not None:
            raise self.error
        if self.status:
            return self.status
        room = None if self.cut_at is None else max(0, self.cut_at - sum(map(len, self.delivered)))
        answer = bytearray()
        self.delivered.append(b"")
        for piece in itertools.chain([self.before], self._answer(job, room)):
            self._deliver(piece if room is None else piece[: max(0, room - len(answer))], on_stdout)
            answer += piece
        if room is not None and room <= len(answer):
            raise Unreachable("the connection was lost", where="fake", why="cut by the test")
        return 0

    def _deliver(self, data: bytes, on_stdout: Sink) -> None:
        self.delivered[-1] += data
        for start in range(0, len(data), self.chunk):
            on_stdout(data[start : start + self.chunk])

    def _answer(self, job: Job, room: int | None) -> Iterator[bytes]:
        sent = 0
        failed = False
        for section in job.sections:
            if section.gate and failed:
                continue
            begin = f"{job.nonce} begin {section.key}\n".encode()
            yield begin
            sent += len(begin)
            if room is not None and sent > room and not self.carries_on:
                return
            status, output = self.fake.play(section)
            failed = failed or (section.gate and status != 0)
            end = output.encode() + f"{job.nonce} end {section.key} {status}\n".encode()
            yield end
            sent += len(end)
        yield f"{job.nonce} done\n".encode()

    def send(
        self,
        command: str,
        chunks: Iterable[bytes],
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


# --- what is on it --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Item(Resource):
    """A key with a value. With `from_kernel` its desired value is the kernel among the facts."""

    value: str = "new"
    from_kernel: bool = False
    absent: bool = False
    fixed: bool = False
    means: str = ""

    def probe(self) -> Script:
        return script('host get "$key"', key=self.name)

    def read(self, text: str) -> State | None:
        return {"value": text.split("value=", 1)[1].rstrip("\n")} if text.strip() else None

    def desired(self, facts: Facts) -> State | None:
        return None if self.absent else {"value": facts.kernel if self.from_kernel else self.value}

    def ensure(self, facts: Facts) -> Script | None:
        if self.fixed:
            return None
        return script(
            'host put "$key" "$value"',
            key=self.name,
            value=facts.kernel if self.from_kernel else self.value,
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:
        return (
            Diagnosis(f"{self.means} ({output.strip()}, {actual})", "try this")
            if self.means
            else None
        )


@dataclass
class Log:
    """The events of a run."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)


def statuses(report: HostReport) -> dict[str, Status]:
    """Each resource with how it ended."""
    return {outcome.resource: outcome.status for outcome in report.outcomes}


def outcome(report: HostReport, name: str) -> Outcome:
    """How one resource ended."""
    return next(found for found in report.outcomes if found.resource == name)


Play = Callable[[], HostReport]
