"""One exchange: the results of sections, timeouts, and jobs that do not reach their end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from provision.core import exchange as module
from provision.core.errors import CommandFailed, CommandTimeout, HostError, Unreachable
from provision.core.exchange import (
    ExchangeResult,
    Listener,
    SectionResult,
    exchange,
    section_error,
    tail,
)
from provision.core.job import Section
from provision.core.model import Host, Sink
from provision.core.shell import Secret, script
from tests.unit.scripted import Clock, parse


@dataclass
class Wire:
    """Prints these pieces, each after some seconds; `NONCE` stands for the nonce of the job."""

    pieces: list[tuple[float, bytes]]
    stderr: bytes = b""
    status: int = 0
    error: HostError | None = None
    clock: Clock = field(default_factory=Clock)
    command: str = ""
    stdin: bytes = b""
    timeout_s: float = 0.0
    host: Host = field(default=Host(name="h", address="h.invalid", user="me", become="none"))

    def exchange(
        self,
        command: str,
        stdin: bytes = b"",
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        self.command, self.stdin, self.timeout_s = command, stdin, timeout_s
        nonce = parse(command, stdin).nonce.encode()
        on_stderr(self.stderr)
        for seconds, data in self.pieces:
            self.clock.now += seconds
            on_stdout(data.replace(b"NONCE", nonce))
        if self.error is not None:
            raise self.error
        return self.status

    def send(self, command: str, chunks: object, **more: object) -> int:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


def ask(wire: Wire, *, timeout_s: float = 30.0, listener: Listener | None = None) -> ExchangeResult:
    section = Section("a", script(":"), timeout_s)
    return exchange(wire, [section], clock=wire.clock, listener=listener)


def one(status: int, output: bytes = b"", seconds: float = 0.0) -> list[tuple[float, bytes]]:
    return [(0.0, b"NONCE begin a\n"), (seconds, output + b"NONCE end a %d\nNONCE done\n" % status)]


def test_section_result_has_status_output_and_seconds() -> None:
    reply = ask(Wire(one(3, b"hello\n\xff", 2.5)))
    assert reply.results == {"a": SectionResult(3, "hello\n\ufffd", 2.5)}
    assert reply.started == {"a"}
    assert reply.error is None


@pytest.mark.parametrize(
    ("status", "seconds", "timed_out"),
    [
        (124, 30.0, True),
        (137, 41.0, True),
        (143, 29.9, True),
        (124, 1.0, False),
        (143, 1.0, False),
        (1, 30.0, False),
        (0, 30.0, False),
    ],
)
def test_timeout_is_recognised_by_status_and_seconds(
    status: int, seconds: float, timed_out: bool
) -> None:
    assert ask(Wire(one(status, b"", seconds))).results["a"].timed_out is timed_out


def test_each_exchange_uses_a_new_nonce() -> None:
    first, second = Wire(one(0)), Wire(one(0))
    ask(first)
    ask(second)
    assert parse(first.command, b"").nonce != parse(second.command, b"").nonce


def test_channel_timeout_exceeds_the_section_timeout() -> None:
    wire = Wire(one(0))
    ask(wire, timeout_s=100.0)
    assert wire.timeout_s > 120


def test_secret_is_sent_on_standard_input() -> None:
    wire = Wire(one(0))
    section = Section("a", script(":", token=Secret("hunter2")), 1.0)
    exchange(wire, [section], clock=wire.clock)
    assert "hunter2" not in wire.command
    assert b"hunter2" in wire.stdin


def test_only_the_end_of_large_output_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_OUTPUT_BYTES", 10)
    monkeypatch.setattr(module, "_KEPT_STDERR_BYTES", 4)
    reply = ask(
        Wire(
            [
                (0.0, b"NONCE begin a\n"),
                *[(0.0, b"%04d\n" % number) for number in range(100)],
                (0.0, b"NONCE end a 1\nNONCE done\n"),
            ],
            b"abcdefgh",
        )
    )
    assert reply.results["a"].output == "0098\n0099\n"
    assert reply.stderr == "efgh"


def test_listener_is_called_in_order() -> None:
    reported: list[str] = []
    listener = Listener(
        lambda key: reported.append(f"begin {key}"),
        lambda key, text: reported.append(f"{key}: {text}"),
        lambda key, answer: reported.append(f"end {key} {answer.status}"),
    )
    pieces = [
        (0.0, b"noise\nNONCE beg"),
        (0.0, b"in a\none\ntw"),
        (0.0, b"o\nthr"),
        (0.0, b"eeNONCE end a 0\nNONCE done\n"),
    ]
    ask(Wire(pieces), listener=listener)
    assert reported == ["begin a", "a: one", "a: two", "a: three", "end a 0"]


@pytest.mark.parametrize(
    "pieces", [[], [(0.0, b"NONCE begin a\nhalf")], [(0.0, b"NONCE begin a\nNONCE end a 0\n")]]
)
def test_lost_connection_is_the_error_of_the_result(pieces: list[tuple[float, bytes]]) -> None:
    lost = Unreachable("the connection was lost", where="h")
    reply = ask(Wire(pieces, error=lost))
    assert reply.error is lost
    assert set(reply.results) == ({"a"} if pieces and b"end" in pieces[0][1] else set())


def test_job_that_ends_early_is_unreachable() -> None:
    reply = ask(Wire([(0.0, b"NONCE begin a\n")], status=137))
    assert isinstance(reply.error, Unreachable)
    assert "exit status 137" in reply.error.why
    assert reply.started == {"a"}
    assert reply.results == {}


def test_exit_status_after_a_complete_job_is_ignored() -> None:
    assert ask(Wire(one(0), status=143)).error is None


def test_missing_program_on_the_host_is_command_failed() -> None:
    reply = ask(Wire([], b"sh: 1: setsid: not found\n", 127))
    assert isinstance(reply.error, CommandFailed)
    assert reply.error.why == "exit status 127\nsh: 1: setsid: not found"


@pytest.mark.parametrize(
    "text", ["a password for the wifi is required", "sudoku", "the terminal is not required"]
)
def test_other_messages_with_sudo_are_not_a_refusal(text: str) -> None:
    reply = ask(Wire([], text.encode(), 1))
    assert reply.error is not None
    assert "sudo" not in reply.error.what


def test_section_error_has_the_last_lines_or_the_timeout() -> None:
    error = section_error("h: a", "the probe", SectionResult(2, "1\n" * 50 + "last\n\n", 0.1), 30.0)
    assert isinstance(error, CommandFailed)
    assert (error.what, error.where) == ("the probe failed with status 2", "h: a")
    assert error.why == "\n".join(["1"] * 9 + ["last"])
    assert section_error("h", "x", SectionResult(2, " \n", 0.1), 30.0).why == "it printed nothing"
    slow = section_error("h", "the probe", SectionResult(124, "", 30.0, timed_out=True), 30.0)
    assert isinstance(slow, CommandTimeout)
    assert (slow.what, slow.why) == ("the probe did not end in time", "no end after 30 s")


def test_tail_keeps_the_last_lines() -> None:
    assert tail("a\nb\n\n\n", 1) == "b"
    assert tail("", 3) == ""


def test_tail_removes_colours() -> None:
    """Docker's legacy builder prints errors in red, and a reason is also part of JSON."""
    assert (
        tail("\x1b[91mE: Unable to locate package x\n\x1b[0mstatus 100\x1b[K\n\x1b[0m")
        == "E: Unable to locate package x\nstatus 100"
    )
