"""Reports: lines, diffs, recap and failures for people, the JSON document for scripts."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core import durations
from provision.core.errors import CommandFailed, NotConverged, Unreachable
from provision.core.model import (
    Change,
    Event,
    HostConnected,
    HostFinished,
    HostReport,
    HostStarted,
    Note,
    Outcome,
    OutputLine,
    ResourceFinished,
    RunFinished,
    RunStarted,
    Status,
)
from provision.core.shell import Secret
from provision.report import LineReporter, fan_out, hosts_document, reporter
from provision.report.recap import failures, recap
from provision.report.text import clean, plain

OK = Outcome("gpu", Status.OK)
MOUNT = Outcome("driver-mount", Status.CHANGED, (Change("options", "noexec", "exec"),), 1.5)
BAD = NotConverged(
    "did not converge",
    where="dev: driver",
    why="version: 535 -> 550\nlast line",
    fix="invoke vm.provision --diff",
)
DRIVER = Outcome("driver", Status.FAILED, (Change("version", "535", "550"),), 12.34, BAD)


def shown(events: Sequence[Event], *, diff: bool = False, brief: bool = False) -> list[str]:
    stream = io.StringIO()
    with LineReporter(stream, diff=diff, brief=brief) as report:
        for event in events:
            report(event)
    return stream.getvalue().splitlines()


def report(host: str, *outcomes: Outcome, spent: float = 0.61) -> HostReport:
    return HostReport(host, outcomes, 1, spent)


# --- lines ----------------------------------------------------------------------------------------


def test_event_is_printed_with_host_and_resource() -> None:
    assert shown(
        [
            RunStarted(("dev", "web-10"), "vm.provision"),
            HostStarted("dev"),
            HostConnected("dev", 0.2),
            ResourceFinished("dev", OK),
            OutputLine("web-10", "driver-mount", "mounting"),
            ResourceFinished("web-10", MOUNT),
            Note("first\nsecond"),
            Note("hello", host="dev"),
        ]
    ) == [
        "vm.provision on 2 hosts",
        "dev    | connected  0.20 s",
        "dev    | gpu            | ok",
        "web-10 | driver-mount   | mounting",
        "web-10 | driver-mount   | changed: options  1.50 s",
        "first",
        "second",
        "dev    | hello",
    ]


def test_check_mode_prints_would_change() -> None:
    lines = shown(
        [RunStarted(("dev",), "vm.provision", check=True), ResourceFinished("dev", MOUNT)]
    )
    assert lines == [
        "vm.provision: check, nothing is changed",
        "dev | driver-mount   | would change: options  1.50 s",
    ]


def test_note_says_why_a_resource_was_not_changed() -> None:
    outcomes = [
        Outcome("worker", Status.SKIPPED, note="what it depends on failed"),
        Outcome("mps", Status.UNKNOWN, note="depends on worker, which would change"),
        Outcome("image", Status.CHANGED, tuple(Change(key, "a", "b") for key in "vwxyz")),
    ]
    assert shown([ResourceFinished("dev", outcome) for outcome in outcomes]) == [
        "dev | worker         | skipped: what it depends on failed",
        "dev | mps            | unknown: depends on worker, which would change",
        "dev | image          | changed: v, w, x, y and 1 more",
    ]


def test_diff_of_several_lines_is_unified() -> None:
    outcome = Outcome(
        "unit",
        Status.CHANGED,
        (Change("content", "a\nb\n", "a\nc\n"), Change("enabled", actual=False, desired=True)),
    )
    assert shown([ResourceFinished("dev", outcome)], diff=True)[1:] == [
        "dev | unit           |   --- content (host)",
        "dev | unit           |   +++ content (desired)",
        "dev | unit           |   @@ -1,2 +1,2 @@",
        "dev | unit           |    a",
        "dev | unit           |   -b",
        "dev | unit           |   +c",
        "dev | unit           |   enabled: no -> yes",
    ]
    assert len(shown([ResourceFinished("dev", outcome)])) == 1, "only with --diff"


def test_brief_prints_only_changes_and_failures() -> None:
    good = report("dev", OK)
    calm: list[Event] = [
        RunStarted(("dev",), "dev.exec"),
        HostConnected("dev", 0.1),
        ResourceFinished("dev", OK),
        RunFinished((good,)),
    ]
    assert shown(calm, brief=True) == []
    bad = report("dev", DRIVER)
    assert "failed dev: driver: did not converge" in shown(
        [*calm[:2], ResourceFinished("dev", DRIVER), RunFinished((bad,))], brief=True
    )


def test_failed_host_is_printed_when_it_fails() -> None:
    error = Unreachable("is unreachable", where="dev", why="Connection refused")
    assert shown([HostFinished(HostReport("dev", error=error))]) == ["dev | failed: is unreachable"]


# --- what hosts print -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "visible"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (" 10%\r 50%\r100%", "100%"),
        ("100%\r", "100%"),
        ("a\tb", "a       b"),
        ("bell\x07 and \x1bcreset", "bell and reset"),
        ("\u202eevil", "evil"),
        ("\x9b31mred", "31mred"),
        ("", ""),
    ],
)
def test_terminal_sequences_are_removed(raw: str, visible: str) -> None:
    assert clean(raw) == visible


@given(st.text())
def test_control_characters_are_removed(raw: str) -> None:
    text = clean(raw)
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text)
    assert clean(text) == text.rstrip()


def test_secrets_are_masked_in_every_output() -> None:
    secret = Secret("hunter2")
    outcome = Outcome("login", Status.CHANGED, (Change("token", None, secret),))  # type: ignore[arg-type]
    lines = shown(
        [ResourceFinished("dev", outcome), RunFinished((report("dev", outcome),))], diff=True
    )
    document = json.dumps(hosts_document(RunFinished((report("dev", outcome),))), default=str)
    assert "***" in "".join(lines)
    assert "hunter2" not in "".join(lines) + document


# --- the end --------------------------------------------------------------------------------------


def recap_of(run: RunFinished, *, check: bool = False) -> list[str]:
    return [plain(line) for line in recap(run, check=check)]


def test_recap_of_one_host_counts_each_status() -> None:
    assert recap_of(RunFinished((report("dev", *[OK] * 9),))) == [
        "dev  ok=9 changed=0 failed=0 skipped=0 unknown=0  0.61 s"
    ]


def test_the_recap_of_several_hosts_is_aligned() -> None:
    run = RunFinished((report("a", *[OK] * 12, spent=102), report("web-1", OK, MOUNT)), ("web-2",))
    assert recap_of(run) == [
        "a      ok=12 changed=0 failed=0 skipped=0 unknown=0  1 min 42 s",
        "web-1  ok=1  changed=1 failed=0 skipped=0 unknown=0      0.61 s",
        "web-2  not started",
    ]


def test_recap_repeats_failures_in_three_lines() -> None:
    assert recap_of(RunFinished((report("dev", OK, DRIVER),)))[1:] == [
        "",
        "failed dev: driver: did not converge",
        "  why: version: 535 -> 550",
        "       last line",
        "  try: invoke vm.provision --diff",
    ]


def test_recap_line_of_unreachable_host_has_its_error() -> None:
    error = Unreachable(
        "is unreachable", where="dev", why="Connection refused", fix="invoke vm.show"
    )
    lines = recap_of(RunFinished((HostReport("dev", error=error, seconds=5),)))
    assert lines[0] == "dev  ok=0 changed=0 failed=0 skipped=0 unknown=0  5.00 s  is unreachable"
    assert lines[2:] == [
        "failed dev: is unreachable",
        "  why: Connection refused",
        "  try: invoke vm.show",
    ]


def test_same_failure_of_many_hosts_is_printed_once() -> None:
    reports = []
    for number in range(9):
        error = CommandFailed(
            "exit status 1",
            where=f"web-{number}: image",
            why=f"web-{number}: disk full",
            fix=f"ssh web-{number} df",
        )
        reports.append(report(f"web-{number}", Outcome("image", Status.FAILED, error=error)))
    lines = [plain(line) for line in failures(reports)]
    assert lines[1:] == [
        "failed web-0, web-1, web-2, web-3, web-4, web-5 and 3 more: image: exit status 1",
        "  why: web-0: disk full",
        "  try: ssh web-0 df",
    ]


def test_different_failures_are_printed_separately() -> None:
    other = CommandFailed("exit status 2", where="b: image", why="no such file")
    reports = [report("a", DRIVER), report("b", Outcome("image", Status.FAILED, error=other))]
    heads = [plain(line) for line in failures(reports) if plain(line).startswith("failed")]
    assert heads == ["failed dev: driver: did not converge", "failed b: image: exit status 2"]


def test_check_ends_with_the_number_of_changes() -> None:
    assert (
        recap_of(RunFinished((report("dev", OK),)), check=True)[-1] == "check: nothing would change"
    )
    changing = RunFinished((report("a", MOUNT, MOUNT), report("b", OK), report("c", MOUNT)))
    assert (
        recap_of(changing, check=True)[-1]
        == "check: 3 would change on 2 hosts; nothing was changed"
    )


def test_recap_reports_an_interruption() -> None:
    run = RunFinished(
        (report("dev", Outcome("driver", Status.UNKNOWN)),), ("web",), interrupted=True
    )
    assert recap_of(run)[0].startswith("dev  ok=0 changed=0 failed=0 skipped=0 unknown=1")
    assert recap_of(run)[-1].startswith("interrupted: an unfinished change is unknown")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00 s"),
        (0.614, "0.61 s"),
        (9.996, "10.0 s"),
        (99.96, "1 min 40 s"),
        (125.4, "2 min 05 s"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert durations.measured(value) == text


def test_running_times_are_whole_seconds() -> None:
    assert [durations.elapsed(value) for value in (0.9, 59.9, 61)] == ["0 s", "59 s", "1 min 01 s"]


# --- the document ---------------------------------------------------------------------------------


def test_document_has_hosts_results_and_first_error() -> None:
    document = hosts_document(RunFinished((report("dev", OK, MOUNT, DRIVER),), ("web",)))
    assert list(document["hosts"]["dev"]) == [
        "ok",
        "changed",
        "failed",
        "skipped",
        "unknown",
        "round_trips",
        "seconds",
        "results",
    ]
    assert document["hosts"]["dev"]["results"] == [
        {"resource": "gpu", "status": "ok", "diff": None, "seconds": 0.0},
        {
            "resource": "driver-mount",
            "status": "changed",
            "diff": [{"key": "options", "actual": "noexec", "desired": "exec"}],
            "seconds": 1.5,
        },
        {
            "resource": "driver",
            "status": "failed",
            "diff": [{"key": "version", "actual": "535", "desired": "550"}],
            "seconds": 12.34,
            "error": BAD.as_dict(),
        },
    ]
    assert document["error"] == BAD.as_dict()
    assert document["not_started"] == ["web"]
    assert "interrupted" not in document


def test_document_of_a_successful_run_has_only_hosts() -> None:
    assert list(hosts_document(RunFinished((report("dev", OK),)))) == ["hosts"]


def test_document_of_unreachable_host_has_its_error() -> None:
    error = Unreachable("is unreachable", where="dev")
    document = hosts_document(RunFinished((HostReport("dev", error=error),), interrupted=True))
    assert document["hosts"]["dev"]["error"] == document["error"] == error.as_dict()
    assert document["interrupted"] is True


# --- streams --------------------------------------------------------------------------------------


class Gone(io.StringIO):
    def write(self, data: str) -> int:
        raise BrokenPipeError


def test_run_continues_after_a_closed_pipe() -> None:
    show = LineReporter(Gone())
    for number in range(3):
        show(Note(f"line {number}"))


def test_stream_without_terminal_gets_a_line_reporter() -> None:
    assert type(reporter(io.StringIO(), env={"TERM": "xterm"})) is LineReporter


def test_events_reach_every_subscriber_in_order() -> None:
    seen: list[str] = []
    fan_out(lambda event: seen.append("first"), lambda event: seen.append("second"))(Note("x"))
    assert seen == ["first", "second"]
