"""Start, find and stop the background mock of a state folder.

It is light to import: `background_server` runs in another process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from provision.core.errors import ProvisionError
from provision.core.files import file_lock
from provision.testing.process_start import start_ticks

RECORD = "mock.json"
_LOCK = "mock.lock"
_LOG = "mock.log"
_START_S = 60.0
_STOP_S = 20.0
_PAUSE_S = 0.02


@dataclass(frozen=True)
class MockState:
    """A running mock: process, Compute Engine endpoint, and SSH port of each host by name."""

    pid: int
    compute_endpoint: str
    ssh_ports: Mapping[str, int]
    version: str


def version() -> str:
    """The version of this package; `up` replaces a mock of another version."""
    try:
        return metadata.version("provision-gpu")
    except metadata.PackageNotFoundError:
        return "0"


def up(
    folder: Path, *, idle_s: float | None = None, meanwhile: Callable[[], object] | None = None
) -> MockState:
    """The mock of `folder`, started in the background if necessary; concurrent callers start one.

    `meanwhile` is called while the mock starts, and not at all when it runs already.
    Raises `ProvisionError` with the server's last lines when it does not come up.
    """
    with file_lock(folder / _LOCK):
        record = _read(folder)
        if record is not None and record["version"] == version():
            return _state(record)
        if record is not None:
            _end(folder, record)
        pid = _launch(folder, idle_s)
        if meanwhile is not None:
            meanwhile()
        return _state(_wait_until_up(folder, pid))


def status(folder: Path) -> MockState | None:
    """The running mock of `folder`, or None."""
    record = _read(folder)
    return None if record is None else _state(record)


def down(folder: Path) -> bool:
    """Stop the mock of `folder` with all its processes, and keep its state; False when none ran.

    Raises `ProvisionError` when it does not end.
    """
    if not folder.is_dir():
        return False
    with file_lock(folder / _LOCK):
        record = _read(folder)
        if record is None:
            (folder / RECORD).unlink(missing_ok=True)
            return False
        _end(folder, record)
        return True


def _read(folder: Path) -> dict[str, Any] | None:
    """The record of a living server; None when it is missing, invalid or stale."""
    try:
        record = dict(json.loads((folder / RECORD).read_text()))
        alive = start_ticks(int(record["pid"])) == record["started"] != ""
        _state(record)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if alive else None


def _state(record: Mapping[str, Any]) -> MockState:
    ports = {str(name): int(port) for name, port in record["ssh_ports"].items()}
    return MockState(
        int(record["pid"]), str(record["compute_endpoint"]), ports, str(record["version"])
    )


def _launch(folder: Path, idle_s: float | None) -> int:
    """Start the server as an orphan, through a shell that ends at once; return its PID."""
    (folder / RECORD).unlink(missing_ok=True)
    package_parent = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH", "")]))
    words = [
        sys.executable,
        "-m",
        "provision.testing.background_server",
        "--state",
        str(folder.resolve()),
    ]
    if idle_s is not None:
        words += ["--idle-s", str(idle_s)]
    started = subprocess.run(
        [
            "/bin/sh",
            "-c",
            'log=$1; shift; "$@" >"$log" 2>&1 & echo "$!"',
            "sh",
            str((folder / _LOG).resolve()),
            *words,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd="/",
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        check=True,
    )
    return int(started.stdout)


def _wait_until_up(folder: Path, pid: int) -> dict[str, Any]:
    ticks = start_ticks(pid)
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if (record := _read(folder)) is not None:
            return record
        if not start_ticks(pid):
            why = (folder / _LOG).read_text(errors="replace").rstrip().rpartition("\n")[2]
            raise ProvisionError(
                "the mock did not start", where=str(folder), why=why, fix=f"cat {folder / _LOG}"
            )
        time.sleep(_PAUSE_S)
    _signal((pid, ticks), signal.SIGKILL)
    why = f"no answer within {_START_S:g} s"
    raise ProvisionError(
        "the mock did not start", where=str(folder), why=why, fix=f"cat {folder / _LOG}"
    )


def _end(folder: Path, record: Mapping[str, Any]) -> None:
    """Send SIGTERM, then SIGKILL; return when the server and all processes of its hosts have ended.

    Raises `ProvisionError` when it does not end.
    """
    processes = [(int(record["pid"]), str(record["started"]))]
    processes += [
        (pid, ticks) for pid in record.get("spawners", []) if (ticks := start_ticks(int(pid)))
    ]
    _signal(processes[0], signal.SIGTERM)
    if not _wait_until_ended(processes, _STOP_S):
        _signal(processes[0], signal.SIGKILL)  # its spawners then end what they started
        if not _wait_until_ended(processes, _STOP_S):
            raise ProvisionError(
                "the mock does not end",
                where=str(folder),
                why=f"pid {processes[0][0]}",
                fix=f"kill -9 {processes[0][0]}",
            )
    (folder / RECORD).unlink(missing_ok=True)


def _signal(process: tuple[int, str], number: int) -> None:
    if start_ticks(process[0]) == process[1]:
        os.kill(process[0], number)


def _wait_until_ended(processes: list[tuple[int, str]], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if all(start_ticks(pid) != ticks for pid, ticks in processes):
            return True
        time.sleep(_PAUSE_S)
    return False
