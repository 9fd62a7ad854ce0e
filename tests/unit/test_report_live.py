"""The live reporter, on a terminal that is a string."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from provision.core.model import (
    Change,
    HostConnected,
    HostFinished,
    HostReport,
    HostStarted,
    Note,
    Outcome,
    OutputLine,
    ResourceFinished,
    ResourceStarted,
    RunFinished,
    RunStarted,
    Status,
)
from provision.report import reporter
from provision.report.terminal import LiveReporter, styled


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def status_texts(live: LiveReporter, width: int = 80, height: int = 24) -> list[str]:
    """The status lines without the first character, which is the spinner."""
    lines = []
    for line in live.status_lines(width, height):
        stream = io.StringIO()
        Console(file=stream, width=width, no_color=True, highlight=False).print(line, end="")
        lines.append(stream.getvalue()[2:])
    return lines


def test_terminal_gets_a_live_reporter_unless_it_is_dumb() -> None:
    assert type(reporter(Terminal(), env={"TERM": "xterm-256color"})) is LiveReporter
    assert type(reporter(Terminal(), env={"TERM": "dumb"})) is not LiveReporter
    assert type(reporter(Terminal(), env={"TERM": "xterm"}, plain=True)) is not LiveReporter


def test_status_lines_show_activity_and_elapsed_time(clock: Clock) -> None:
    live = LiveReporter(Terminal(), title="vm.provision", clock=clock)
    clock.now_s += 3
    assert status_texts(live) == ["vm.provision  3 s"]
    live(RunStarted(("dev", "web-10"), "vm.provision"))
    live(HostStarted("dev"))
    clock.now_s += 1
    live(HostStarted("web-10"))
    live(HostConnected("web-10", 0.2))
    assert status_texts(live) == [
        "dev     connecting  1 s",
        "web-10  looking     0 s",
        "0 of 2 hosts done",
    ]
    live(ResourceStarted("dev", "driver"))
    clock.now_s += 65
    assert status_texts(live)[:2] == ["dev     driver   1 min 05 s", "web-10  looking  1 min 05 s"]
    live(HostFinished(HostReport("dev", (Outcome("driver", Status.FAILED),))))
    assert status_texts(live) == ["web-10  looking  1 min 05 s", "1 of 2 hosts done, 1 failed"]
    live(RunFinished((HostReport("dev"),)))
    assert status_texts(live) == ["vm.provision  1 min 09 s"]
    live.close()


def test_status_lines_of_many_hosts_are_limited(clock: Clock) -> None:
    live = LiveReporter(Terminal(), clock=clock)
    names = tuple(f"web-{number}" for number in range(50))
    live(RunStarted(names, "vm.provision"))
    for name in names:
        live(HostStarted(name))
    assert len(status_texts(live, height=60)) == 9
    assert len(status_texts(live, height=12)) == 5
    assert status_texts(live, height=12)[-1] == "0 of 50 hosts done, 46 more at work"
    live.close()


@pytest.mark.parametrize("width", [20, 30, 40])
def test_narrow_terminal_shows_the_elapsed_time(clock: Clock, width: int) -> None:
    live = LiveReporter(Terminal(), clock=clock)
    live(RunStarted(("a-rather-long-name-of-a-host",), "vm.provision"))
    live(ResourceStarted("a-rather-long-name-of-a-host", "driver"))
    (line,) = status_texts(live, width=width)
    assert line.endswith("  0 s")
    assert len(line) + 2 <= width
    live.close()


def written(terminal: Terminal) -> str:
    """The printed lines without cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", terminal.getvalue())


def test_unchanged_resources_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    outcomes = (
        Outcome("gpu", Status.OK),
        Outcome("driver", Status.CHANGED, (Change("version", "1", "2"),), 2.0),
    )
    with LiveReporter(terminal) as live:
        live(RunStarted(("dev",), "vm.provision"))
        live(
            OutputLine(
                "dev",
                "driver",
                "[bold]not markup[/bold] :rocket: https://example.invalid/" + "x" * 100,
            )
        )
        for outcome in outcomes:
            live(ResourceFinished("dev", outcome))
        live(RunFinished((HostReport("dev", outcomes, 2, 2.5),)))
    lines = [line.rstrip() for line in written(terminal).splitlines()]
    assert (
        "dev | driver         | [bold]not markup[/bold] :rocket: https://example.invalid/"
        + "x" * 100
        in lines
    )
    assert "dev | driver         | changed: version  2.00 s" in lines
    assert "dev  ok=1 changed=1 failed=0 skipped=0 unknown=0  2.50 s" in lines
    assert not any("| gpu" in line for line in lines)


def test_no_color_disables_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    failed = ResourceFinished("dev", Outcome("driver", Status.FAILED))
    for variable, coloured in (("", True), ("NO_COLOR", False)):
        if variable:
            monkeypatch.setenv(variable, "1")
        terminal = Terminal()
        with LiveReporter(terminal) as live:
            live(failed)
        assert ("\x1b[1;31m" in terminal.getvalue()) is coloured
        assert "dev | driver         | failed" in written(terminal)


def test_paused_reporter_removes_its_status_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    with LiveReporter(terminal, title="vm.delete") as live:
        live(Note("about to delete"))
        with live.paused():
            assert terminal.getvalue().rstrip().endswith("\x1b[2K"), "the status lines were removed"
            before = terminal.getvalue()
        assert terminal.getvalue() == before


def test_terminal_without_unicode_gets_an_ascii_spinner(clock: Clock) -> None:
    class Latin(Terminal):
        encoding = "iso-8859-1"

    live = LiveReporter(Latin(), title="vm.list", clock=clock)
    (line,) = live.status_lines(80, 24)
    assert line.plain.isascii()


def test_styles_are_converted_for_rich() -> None:
    text = styled((("dev", "strong"), (" | ", "faint"), ("ok", "good"), ("   ", "")))
    assert text.plain == "dev | ok"
    assert [str(span.style) for span in text.spans] == ["bold", "dim", "green"]
