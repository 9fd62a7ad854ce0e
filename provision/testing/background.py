"""Start, find and stop the background mock of a state folder. Light to import: the server itself is another process."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from provision.core.errors import ProvisionError

RECORD = "mock.json"
_LOCK = "mock.lock"
_LOG = "mock.log"
_START_S = 60.0
_STOP_S = 20.0
_PAUSE_S = 0.02


@dataclass(frozen=True)
class MockState:
    """A running mock: its process, the Compute Engine endpoint, and the SSH port of each running host by name."""

    pid: int
    compute_endpoint: str
    ssh_ports: Mapping[str, int]
    version: str


def version() -> str:
    """The version of this package; a mock of another one is replaced."""
    try:
        return metadata.version("provision-gpu")
    except metadata.PackageNotFoundError:
        return "0"


def start_ticks(pid: int) -> str:
    """When the process started, as /proc counts; empty for one that is gone, or a zombie. Guards against reused pids."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == b"Z" else fields[19].decode()


def up(
    folder: Path, *, idle_s: float | None = None, meanwhile: Callable[[], object] | None = None
) -> MockState:
    """The mock of `folder`, started in the background when it does not run. Two callers at once start one.

    `meanwhile` is called while it starts, and not at all when it runs.
    Raises `ProvisionError` with the server's last lines when it does not come up.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(folder):
        found = _read(folder)
        if found is not None and found["version"] == version():
            return _state(found)
        if found is not None:
            _end(folder, found)
        pid = _launch(folder, idle_s)
        if meanwhile is not None:
            meanwhile()
        return _state(_wait_until_up(folder, pid))


def status(folder: Path) -> MockState | None:
    """The running mock of `folder`, or None."""
    found = _read(folder)
    return None if found is None else _state(found)


def down(folder: Path) -> bool:
    """Stop the mock of `folder` with everything it runs; its state stays. False when none ran."""
    if not folder.is_dir():
        return False
    with _locked(folder):
        found = _read(folder)
        if found is None:
            (folder / RECORD).unlink(missing_ok=True)
            return False
        _end(folder, found)
        return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / _LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(folder: Path) -> dict[str, Any] | None:
    """The record of a server that is alive; None for a missing, broken or stale one."""
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
    """Start the server as a child of nobody (a shell starts it in the background and ends) and return its process."""
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
        if (found := _read(folder)) is not None:
            return found
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
    """SIGTERM, then SIGKILL; returns when the server and every process of its hosts are gone."""
    processes = [(int(record["pid"]), str(record["started"]))]
    processes += [
        (pid, ticks) for pid in record.get("spawners", []) if (ticks := start_ticks(int(pid)))
    ]
    _signal(processes[0], signal.SIGTERM)
    if not _gone(processes, _STOP_S):
        _signal(processes[0], signal.SIGKILL)  # its spawners see it go, and end what they started
        if not _gone(processes, _STOP_S):
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


def _gone(processes: list[tuple[int, str]], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if all(start_ticks(pid) != ticks for pid, ticks in processes):
            return True
        time.sleep(_PAUSE_S)
    return False
