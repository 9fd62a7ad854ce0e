"""The reporter of logs, pipes and dumb terminals: each line as it happens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TextIO

from provision.core import durations
from provision.core.model import (
    Event,
    HostConnected,
    HostFinished,
    Note,
    OutputLine,
    ResourceFinished,
    RunFinished,
    RunStarted,
    Status,
)
from provision.report import text
from provision.report.text import Line


class Quiet:
    """A text stream that goes silent once nobody reads it: a run must not end half-way because `head` has seen enough."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gone = False

    def write(self, data: str) -> int:
        """Write, or drop the text when the reader is gone."""
        try:
            return len(data) if self._gone else self._stream.write(data)
        except (BrokenPipeError, ValueError):
            self._gone = True
            return len(data)

    def flush(self) -> None:
        """Flush, where there still is a reader."""
        try:
            if not self._gone:
                self._stream.flush()
        except (BrokenPipeError, ValueError):
            self._gone = True

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The stream's file descriptor."""
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        """The stream's encoding."""
        return self._stream.encoding or "utf-8"


class LineReporter:
    """Turns events into lines `host | resource | text` and ends a run with its recap.

    `diff` shows what differs; `brief` is for tasks whose output is the user's program's: it says
    only what changed or failed. `program` is how the user calls us, for the commands that remedies
    name. Safe to call from several threads.
    """

    def __init__(
        self, stream: TextIO, *, diff: bool = False, brief: bool = False, program: str = "invoke"
    ) -> None:
        self._stream = Quiet(stream)
        self._diff = diff
        self._brief = brief
        self._program = program
        self._check = False
        self._columns = text.Columns()
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        with self._lock:
            for line in self._lines(event):
                self._write(line)
            self._stream.flush()

    def close(self) -> None:
        """Nothing more will be shown."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The terminal is somebody else's meanwhile: for a question to the user."""
        self.close()
        yield

    def _write(self, line: Line) -> None:
        self._stream.write(text.plain(line) + "\n")

    def _lines(self, event: Event) -> list[Line]:
        match event:
            case RunStarted():
                return self._run_started(event)
            case HostConnected(host, spent) if not self._brief:
                return [
                    (
                        *self._columns.prefix(host),
                        ("connected", "faint"),
                        (f"  {durations.measured(spent)}", "faint"),
                    )
                ]
            case OutputLine(host, resource, output):
                shown = text.clean(output)
                return [(*self._columns.prefix(host, resource), (shown, ""))] if shown else []
            case ResourceFinished():
                return self._resource_finished(event)
            case HostFinished(report) if report.error is not None:
                return [
                    (
                        *self._columns.prefix(report.host),
                        ("failed", "bad"),
                        (f": {text.clean(report.error.what)}", ""),
                    )
                ]
            case RunFinished():
                return self._run_finished(event)
            case Note(words, host):
                prefix = self._columns.prefix(host) if host else ()
                return [(*prefix, (text.clean(row), "")) for row in words.splitlines()]
        return []

    def _run_started(self, event: RunStarted) -> list[Line]:
        self._check = event.check
        self._columns = text.Columns(host=max(map(len, event.hosts), default=0))
        if self._brief or (len(event.hosts) == 1 and not event.check):
            return []
        many = f" on {len(event.hosts)} hosts" if len(event.hosts) > 1 else ""
        return [
            (
                (f"{event.title}{many}", "strong"),
                (": check, nothing is changed" if event.check else "", "faint"),
            )
        ]

    def _resource_finished(self, event: ResourceFinished) -> list[Line]:
        outcome = event.outcome
        if self._silent(outcome.status) and not outcome.note:
            return []
        prefix = self._columns.prefix(event.host, outcome.resource)
        said = [
            text.outcome_line(outcome, check=self._check, program=self._program),
            *(text.diff_lines(outcome) if self._diff else []),
        ]
        return [(*prefix, *line) for line in said]

    def _silent(self, status: Status) -> bool:
        return self._brief and status is Status.OK

    def _run_finished(self, event: RunFinished) -> list[Line]:
        quiet = (
            not event.interrupted
            and not event.not_started
            and not any(report.failed for report in event.reports)
        )
        if self._brief and quiet and not self._check:
            return []
        return [((" ", ""),), *text.recap(event, check=self._check, program=self._program)]
