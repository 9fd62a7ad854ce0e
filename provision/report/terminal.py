"""The reporter for terminals: lines that scroll, and below them what runs now and since when."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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


_CONNECTING = "connecting"
_PROBING = "looking"
_VERIFYING = "verifying"


@dataclass
class _Activity:
    name: str
    since: float


class LiveReporter(LineReporter):
    """A `LineReporter` with colours, unless NO_COLOR is set, and with status lines at the bottom.

    Resources that are as desired are counted and not listed.
    """

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
        self._started_at = clock()
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
        self._activities: dict[str, _Activity] = {}
        self._hosts = 0
        self._ended = 0
        self._failed = 0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._title and not self._brief:
            self._start()
        return self

    def __call__(self, event: Event) -> None:
        """Print one event and update the status lines."""
        with self._lock:
            self._track(event)
            super().__call__(event)

    def close(self) -> None:
        """Remove the status lines, so that others can use the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _write(self, line: Line) -> None:
        self._console.print(styled(line), soft_wrap=True)

    def _is_hidden(self, status: Status) -> bool:
        return status is Status.OK

    def _is_changing(self, host: str) -> bool:
        activity = self._activities.get(host)
        return activity is not None and activity.name not in {_CONNECTING, _PROBING}

    def _track(self, event: Event) -> None:
        match event:
            case RunStarted(hosts):
                self._hosts, self._ended, self._failed = len(hosts), 0, 0
                self._activities.clear()
                self._start()
            case HostStarted(host):
                self._activities[host] = _Activity(_CONNECTING, self._clock())
                self._start()
            case HostConnected(host):
                self._activities[host] = _Activity(_PROBING, self._clock())
            case ResourceStarted(host, resource):
                self._activities[host] = _Activity(resource, self._clock())
            case ResourceFinished(host):
                if self._is_changing(host):
                    self._activities[host] = _Activity(_VERIFYING, self._clock())
            case HostFinished(report):
                self._activities.pop(report.host, None)
                self._ended += 1
                self._failed += report.failed
            case RunFinished():
                self._activities.clear()
                self._hosts = 0
                if self._brief or not self._title:
                    self.close()

    def _start(self) -> None:
        if self._live is None:
            self._live = Live(
                _StatusLines(self),
                console=self._console,
                transient=True,
                refresh_per_second=10,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def status_lines(self, width: int, height: int) -> list[Text]:
        """The lines at the bottom: what each host does, since when, and how many hosts are done."""
        activities = sorted(self._activities.items(), key=lambda item: item[1].since)
        rows = max(1, min(_ROWS_MAX, height // 3))
        lines = self._activity_lines(activities[:rows], width)
        if not activities and self._hosts == 0 and self._title:
            lines.append(self._line(self._title, "", self._started_at, width))
        if self._hosts > 1:
            hidden = len(activities) - rows
            parts = (
                f"{self._ended} of {self._hosts} hosts done",
                f"{self._failed} failed" if self._failed else "",
                f"{hidden} more at work" if hidden > 0 else "",
            )
            totals = "  " + ", ".join(filter(None, parts))
            lines.append(Text(totals, style="dim", no_wrap=True, overflow="ellipsis"))
        return lines

    def _activity_lines(
        self, activities: Sequence[tuple[str, _Activity]], width: int
    ) -> list[Text]:
        hosts = max((len(host) for host, _ in activities), default=0)
        names = max((len(activity.name) for _, activity in activities), default=0)
        return [
            self._line(host.ljust(hosts), activity.name.ljust(names), activity.since, width)
            for host, activity in activities
        ]

    def _line(self, head: str, activity: str, since: float, width: int) -> Text:
        elapsed = durations.elapsed(self._clock() - since)
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{self._spinner.render(time.monotonic())} ", style="cyan")
        line.append(head, style="bold")
        line.append(f"  {activity}" if activity else "")
        line.truncate(max(1, width - len(elapsed) - 2), overflow="ellipsis")
        line.append(f"  {elapsed}", style="dim")
        return line


class _StatusLines:
    """What rich draws at the bottom of the terminal."""

    def __init__(self, reporter: LiveReporter) -> None:
        self._reporter = reporter

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._reporter.status_lines(options.max_width, console.size.height)


def styled(line: Line) -> Text:
    """The line as a text of rich."""
    text = Text()
    for part, style in line:
        text.append(part, style=_STYLES[style])
    text.rstrip()
    return text
