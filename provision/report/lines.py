"""The reporter for logs, pipes and dumb terminals: one line for each event."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TextIO

from provision.core.durations import measured
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
from provision.report.recap import recap
from provision.report.text import Line


class PipeStream:
    """A text stream that drops its text once the reader has closed the pipe.

    A run must not end half-way because its output goes to `head`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_closed = False

    def write(self, data: str) -> int:
        """Write the text, or drop it when the reader has closed the pipe."""
        try:
            return len(data) if self._is_closed else self._stream.write(data)
        except (BrokenPipeError, ValueError):
            self._is_closed = True
            return len(data)

    def flush(self) -> None:
        """Flush, unless the reader has closed the pipe."""
        try:
            if not self._is_closed:
                self._stream.flush()
        except (BrokenPipeError, ValueError):
            self._is_closed = True

    def isatty(self) -> bool:
        """True when the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The stream's file descriptor."""
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        """The stream's encoding."""
        return self._stream.encoding or "utf-8"


class LineReporter:
    """Prints events as lines `host | resource | text` and ends a run with its recap.

    `diff` prints what differs. `brief` prints only changes and failures, for tasks that run the
    user's program. `program` is the name of the program in the commands that remedies name. May be
    called from several threads.
    """

    def __init__(
        self, stream: TextIO, *, diff: bool = False, brief: bool = False, program: str = "invoke"
    ) -> None:
        self._stream = PipeStream(stream)
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
        """Print one event."""
        with self._lock:
            for line in self._lines(event):
                self._write(line)
            self._stream.flush()

    def close(self) -> None:
        """End the output."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to other output inside of the `with` block, as for a question."""
        self.close()
        yield

    def _write(self, line: Line) -> None:
        self._stream.write(text.plain(line) + "\n")

    def _lines(self, event: Event) -> list[Line]:
        match event:
            case RunStarted():
                return self._run_started(event)
            case HostConnected(host, seconds) if not self._brief:
                connected: Line = (("connected", "faint"), (f"  {measured(seconds)}", "faint"))
                return [(*self._columns.prefix(host), *connected)]
            case OutputLine(host, resource, output):
                row = text.clean(output)
                return [(*self._columns.prefix(host, resource), (row, ""))] if row else []
            case ResourceFinished():
                return self._resource_finished(event)
            case HostFinished(report) if report.error is not None:
                failure: Line = (("failed", "bad"), (f": {text.clean(report.error.what)}", ""))
                return [(*self._columns.prefix(report.host), *failure)]
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
        hosts = f" on {len(event.hosts)} hosts" if len(event.hosts) > 1 else ""
        mode = ": check, nothing is changed" if event.check else ""
        return [((f"{event.title}{hosts}", "strong"), (mode, "faint"))]

    def _resource_finished(self, event: ResourceFinished) -> list[Line]:
        outcome = event.outcome
        if self._is_hidden(outcome.status) and not outcome.note:
            return []
        prefix = self._columns.prefix(event.host, outcome.resource)
        lines = [text.outcome_line(outcome, check=self._check, program=self._program)]
        if self._diff:
            lines += text.diff_lines(outcome)
        return [(*prefix, *line) for line in lines]

    def _is_hidden(self, status: Status) -> bool:
        return self._brief and status is Status.OK

    def _run_finished(self, event: RunFinished) -> list[Line]:
        failed = any(report.failed for report in event.reports)
        is_complete = not event.interrupted and not event.not_started and not failed
        if self._brief and is_complete and not self._check:
            return []
        return [((" ", ""),), *recap(event, check=self._check, program=self._program)]
