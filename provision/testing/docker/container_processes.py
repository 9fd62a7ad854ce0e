"""The processes of a container: real ones of this machine, marked by their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time

MARK = "PROVISION_MOCK_CONTAINER"


def start_ticks(pid: int) -> str:
    """When the process started, as /proc counts; empty when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == b"Z" else fields[19].decode()


def alive(pid: int, ticks: str) -> bool:
    """True while the very process that was started is there."""
    return bool(ticks) and start_ticks(pid) == ticks


def members(container_id: str) -> list[int]:
    """Every process of the container."""
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


def end(container_id: str, main: int, ticks: str, *, number: int, grace_s: float) -> None:
    """Signal the main process, wait, then kill whatever is left: a container's processes end with its first."""
    if alive(main, ticks):
        _signal(main, number)
        stop = time.monotonic() + grace_s
        while alive(main, ticks) and time.monotonic() < stop:
            time.sleep(0.01)
    stop = time.monotonic() + 5
    while (rest := members(container_id)) and time.monotonic() < stop:
        for pid in rest:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.005)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
