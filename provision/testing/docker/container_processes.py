"""The processes of a container: processes of this machine, marked by an environment variable."""

from __future__ import annotations

import contextlib
import os
import signal
import time

MARK = "PROVISION_MOCK_CONTAINER"


def start_ticks(pid: int) -> str:
    """The start time of a process in clock ticks; empty for one that has ended or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == b"Z" else fields[19].decode()


def is_alive(pid: int, ticks: str) -> bool:
    """True while the process with this start time lives."""
    return bool(ticks) and start_ticks(pid) == ticks


def container_pids(container_id: str) -> list[int]:
    """The PIDs of all processes of the container."""
    mark = f"{MARK}={container_id}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = mark in file.read().split(b"\0")
        except OSError:
            continue
        if marked and start_ticks(int(name)):
            found.append(int(name))
    return found


def end_processes(container_id: str, main: int, ticks: str, *, number: int, grace_s: float) -> None:
    """Signal the main process, wait `grace_s` seconds for its end, and kill all others."""
    if is_alive(main, ticks):
        _signal(main, number)
        stop = time.monotonic() + grace_s
        while is_alive(main, ticks) and time.monotonic() < stop:
            time.sleep(0.01)
    stop = time.monotonic() + 5
    while (rest := container_pids(container_id)) and time.monotonic() < stop:
        for pid in rest:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.005)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
