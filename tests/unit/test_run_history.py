"""The run history: lines of JSON, written while a run works."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from provision.core.errors import NotConverged
from provision.core.model import (
    Event,
    HostConnected,
    HostFinished,
    HostReport,
    Note,
    Outcome,
    OutputLine,
    ResourceFinished,
    RunFinished,
    RunStarted,
    Status,
)
from provision.report.history import RunRecorder

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FAILED = Outcome(
    "driver",
    Status.FAILED,
    seconds=1.5,
    error=NotConverged("did not converge", where="dev: driver"),
)
EVENTS: tuple[Event, ...] = (
    Note("before any run"),
    RunStarted(("dev",), "vm.provision", check=False),
    HostConnected("dev", 0.25),
    OutputLine("dev", "driver", "fetching"),
    OutputLine("dev", "", "what the user's program prints"),
    ResourceFinished("dev", FAILED),
    HostFinished(HostReport("dev", (FAILED,), 2, 3.0)),
    RunFinished((HostReport("dev", (FAILED,), 2, 3.0),)),
)


def read_run(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a run's file without a last line that is incomplete."""
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


def runs(folder: Path) -> list[Path]:
    """The files of all runs, the newest first."""
    return sorted(folder.glob("*.jsonl"), reverse=True)


def write(folder: Path, *events: Event, at: datetime = START, **kwargs: Any) -> None:
    with RunRecorder(folder, task="vm.provision", now=lambda: at, **kwargs) as record:
        for event in events:
            record(event)


def test_run_is_recorded_in_one_file(tmp_path: Path) -> None:
    write(tmp_path / "runs", *EVENTS)
    (file,) = runs(tmp_path / "runs")
    entries = list(read_run(file))
    assert [entry["event"] for entry in entries] == [
        "run-started",
        "connected",
        "output",
        "resource",
        "host",
        "run-finished",
    ]
    assert entries[0] == {
        "time": "2026-01-02T03:04:05.000+00:00",
        "event": "run-started",
        "title": "vm.provision",
        "hosts": ["dev"],
        "check": False,
        "task": "vm.provision",
    }
    assert entries[3]["error"]["what"] == "did not converge"
    assert entries[4]["failed"] == 1
    assert "results" not in entries[4]


def test_recorded_run_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    write(tmp_path / "runs", *EVENTS)
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o700
    assert runs(tmp_path / "runs")[0].stat().st_mode & 0o777 == 0o600


def test_task_without_a_run_records_nothing(tmp_path: Path) -> None:
    write(tmp_path / "runs", Note("nothing happens"))
    assert not (tmp_path / "runs").exists()


def test_event_is_on_disk_at_once(tmp_path: Path) -> None:
    record = RunRecorder(tmp_path, task="t", now=lambda: START)
    record(EVENTS[1])
    assert len(list(read_run(runs(tmp_path)[0]))) == 1
    record(EVENTS[2])
    assert len(list(read_run(runs(tmp_path)[0]))) == 2
    record.__exit__(None, None, None)


def test_incomplete_last_line_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, *EVENTS)
    (file,) = runs(tmp_path)
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        assert len(list(read_run(file))) in {
            whole[:size].count(b"\n"),
            whole[: size + 1].count(b"\n"),
        }


def test_oldest_files_are_removed(tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path, EVENTS[1], at=START + timedelta(hours=number), keep=3)
    hours = [json.loads(file.read_text().splitlines()[0])["time"][11:13] for file in runs(tmp_path)]
    assert hours == ["08", "07", "06"], "the newest first"


def test_full_disk_ends_the_recording_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    write(tmp_path, *EVENTS)
    assert runs(tmp_path) == []


def test_folder_that_cannot_be_created_ends_the_recording_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    write(tmp_path / "file" / "runs", *EVENTS)
