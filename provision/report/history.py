"""The history of runs: a file of JSON lines for each run, written while it works."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from provision.core.model import (
    Event,
    HostConnected,
    HostFinished,
    Note,
    OutputLine,
    ResourceFinished,
    RunFinished,
    RunStarted,
)
from provision.report.document import host_document, outcome_document

KEEP_RUNS = 50


def _now() -> datetime:
    return datetime.now(UTC)


class RunRecorder:
    """A subscriber that writes each event of a run as one JSON line with its time (UTC, ISO 8601).

    The file is created when a run over hosts begins, and only its owner can read it. The oldest
    files beyond `keep` are removed. The output of the user's own program (lines outside of a
    resource) is not recorded. An error of the disk ends the recording, not the run.
    """

    def __init__(
        self, folder: Path, *, task: str, now: Callable[[], datetime] = _now, keep: int = KEEP_RUNS
    ) -> None:
        self._folder = folder
        self._head = {"task": task}
        self._now = now
        self._keep = keep
        self._file: TextIO | None = None
        self._has_failed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            if self._file is not None:
                with suppress(OSError):
                    self._file.close()
                self._file = None

    def __call__(self, event: Event) -> None:
        """Record one event."""
        entry = _entry(event)
        if entry is None:
            return
        with self._lock:
            try:
                self._record(entry, begins=isinstance(event, RunStarted))
            except OSError:
                self._has_failed = True

    def _record(self, entry: dict[str, Any], *, begins: bool) -> None:
        if self._has_failed or (self._file is None and not begins):
            return
        moment = self._now()
        if self._file is None:
            self._file = self._open(moment)
        if begins:
            entry = {**entry, **self._head}
        entry = {"time": moment.isoformat(timespec="milliseconds"), **entry}
        self._file.write(json.dumps(entry, default=str) + "\n")
        self._file.flush()

    def _open(self, moment: datetime) -> TextIO:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in sorted(self._folder.glob("*.jsonl"))[: -self._keep + 1 or None]:
            old.unlink(missing_ok=True)
        path = self._folder / f"{moment:%Y%m%dT%H%M%S%f}Z-{os.getpid()}.jsonl"
        return os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8"
        )


def _entry(event: Event) -> dict[str, Any] | None:
    match event:
        case RunStarted(hosts, title, check):
            return {"event": "run-started", "title": title, "hosts": list(hosts), "check": check}
        case HostConnected(host, seconds):
            return {"event": "connected", "host": host, "seconds": round(seconds, 3)}
        case OutputLine(host, resource, text) if resource:
            return {"event": "output", "host": host, "resource": resource, "text": text}
        case ResourceFinished(host, outcome):
            return {"event": "resource", "host": host, **outcome_document(outcome)}
        case HostFinished(report):
            totals = host_document(report)
            del totals["results"]
            return {"event": "host", "host": report.host, **totals}
        case RunFinished(_, not_started, interrupted):
            return {
                "event": "run-finished",
                "not_started": list(not_started),
                "interrupted": interrupted,
            }
        case Note(text, host):
            return {"event": "note", "host": host, "text": text}
    return None
