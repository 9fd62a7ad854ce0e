"""The history of runs: one file of JSON lines per run, written as it happens, so that a run that was cut can be read too."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
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


class Journal:
    """A subscriber that writes each event of a run as one JSON line with its time (UTC, ISO 8601).

    The file is made when a run over hosts begins, readable by its owner alone; the oldest beyond
    `keep` are removed. What the user's own program prints (lines outside of any resource) is not
    recorded. A disk that is full ends the journal, never the run.
    """

    def __init__(
        self, folder: Path, *, task: str, now: Callable[[], datetime] = _now, keep: int = KEEP_RUNS
    ) -> None:
        self._folder = folder
        self._head = {"task": task}
        self._now = now
        self._keep = keep
        self._file: TextIO | None = None
        self._broken = False
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
                self._broken = True

    def _record(self, entry: dict[str, Any], *, begins: bool) -> None:
        if self._broken or (self._file is None and not begins):
            return
        moment = self._now()
        if self._file is None:
            self._file = self._open(moment)
        if begins:
            entry = {**entry, **self._head}
        self._file.write(
            json.dumps({"time": moment.isoformat(timespec="milliseconds"), **entry}, default=str)
            + "\n"
        )
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
            whole = host_document(report)
            del whole["results"]
            return {"event": "host", "host": report.host, **whole}
        case RunFinished(_, not_started, interrupted):
            return {
                "event": "run-finished",
                "not_started": list(not_started),
                "interrupted": interrupted,
            }
        case Note(text, host):
            return {"event": "note", "host": host, "text": text}
    return None


def read_run(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of one run's file; a last line that was cut is left out."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            with suppress(json.JSONDecodeError):
                yield json.loads(line)


def runs(folder: Path) -> list[Path]:
    """The files of all runs, the newest first."""
    return sorted(folder.glob("*.jsonl"), reverse=True)
