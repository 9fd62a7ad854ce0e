"""The reporter of terminals: lines scroll by, and below them stands what runs right now and since when."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from provision.core import durations
from provision.core.model import (
    Event,
    HostConnected,
    HostFinished,
    HostStarted,
    ResourceFinished,
    ResourceStarted,
    RunFinished,
    RunStarted,
    Status,
)
from provision.report.lines import LineReporter
from provision.report.text import Line, Style

_STYLES: dict[Style, str] = {
    "": "",
    "faint": "dim",
    "good": "green",
    "changed": "yellow",
    "bad": "bold red",
    "warn": "magenta",
    "strong": "bold",
}
_ROWS_MAX = 8


@dataclass
class _Busy:
    what: str
    since: float


class LiveReporter(LineReporter):
    """Like `LineReporter`, in colour unless NO_COLOR forbids it, and with a live foot; what is as it should be is only counted."""

    def __init__(
        self,
        stream: TextIO,
        *,
        title: str = "",
        diff: bool = False,
        brief: bool = False,
        program: str = "invoke",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream, diff=diff, brief=brief, program=program)
        self._title = title
        self._began = clock()
        self._clock = clock
        self._console = Console(
            file=cast("TextIO", self._stream),
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
        )
        self._spinner = Spinner(
            "dots" if self._stream.encoding.lower().startswith("utf") else "line"
        )
        self._busy: dict[str, _Busy] = {}
        self._hosts = 0
        self._ended = 0
        self._failed = 0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._title and not self._brief:
            self._start()
        return self

    def __call__(self, event: Event) -> None:
        """Show one event."""
        with self._lock:
            self._track(event)
            super().__call__(event)

    def close(self) -> None:
        """Take the foot away; the terminal is free for others."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _write(self, line: Line) -> None:
        self._console.print(styled(line), soft_wrap=True)

    def _silent(self, status: Status) -> bool:
        return status is Status.OK

    def _track(self, event: Event) -> None:
        match event:
            case RunStarted(hosts):
                self._hosts, self._ended, self._failed = len(hosts), 0, 0
                self._busy.clear()
                self._start()
            case HostStarted(host):
                self._busy[host] = _Busy("connecting", self._clock())
                self._start()
            case HostConnected(host):
                self._busy[host] = _Busy("looking", self._clock())
            case ResourceStarted(host, resource):
                self._busy[host] = _Busy(resource, self._clock())
            case ResourceFinished(host):
                if host in self._busy and self._busy[host].what not in {"connecting", "looking"}:
                    self._busy[host] = _Busy("verifying", self._clock())
            case HostFinished(report):
                self._busy.pop(report.host, None)
                self._ended += 1
                self._failed += report.failed
            case RunFinished():
                self._busy.clear()
                self._hosts = 0
                if self._brief or not self._title:
                    self.close()

    def _start(self) -> None:
        if self._live is None:
            self._live = Live(
                _Foot(self),
                console=self._console,
                transient=True,
                refresh_per_second=10,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def foot(self, width: int, height: int) -> list[Text]:
        """The lines below the scrolling ones: who is at what and since when; how many hosts are done."""
        now = self._clock()
        rows = max(1, min(_ROWS_MAX, height // 3))
        busy = sorted(self._busy.items(), key=lambda item: item[1].since)
        names = max((len(host) for host, _ in busy[:rows]), default=0)
        frame = self._spinner.render(time.monotonic())
        things = max((len(entry.what) for _, entry in busy[:rows]), default=0)
        lines = [
            _row(
                str(frame),
                host.ljust(names),
                entry.what.ljust(things),
                durations.elapsed(now - entry.since),
                width,
            )
            for host, entry in busy[:rows]
        ]
        if not busy and self._hosts == 0 and self._title:
            lines.append(
                _row(str(frame), self._title, "", durations.elapsed(now - self._began), width)
            )
        if self._hosts > 1:
            waiting = len(busy) - rows
            parts = [
                f"{self._ended} of {self._hosts} hosts done",
                f"{self._failed} failed" if self._failed else "",
            ]
            parts.append(f"{waiting} more at work" if waiting > 0 else "")
            lines.append(
                Text(
                    "  " + ", ".join(filter(None, parts)),
                    style="dim",
                    no_wrap=True,
                    overflow="ellipsis",
                )
            )
        return lines


class _Foot:
    """What rich draws again and again."""

    def __init__(self, reporter: LiveReporter) -> None:
        self._reporter = reporter

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._reporter.foot(options.max_width, console.size.height)


def _row(frame: str, host: str, what: str, spent: str, width: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{frame} ", style="cyan")
    line.append(host, style="bold")
    line.append(f"  {what}" if what else "")
    line.truncate(max(1, width - len(spent) - 2), overflow="ellipsis")
    line.append(f"  {spent}", style="dim")
    return line


def styled(line: Line) -> Text:
    """A line of ours as rich's."""
    made = Text()
    for part, style in line:
        made.append(part, style=_STYLES[style])
    made.rstrip()
    return made
