"""Processes of this machine that belong to a lab, and the cgroups they leave."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from lab.programs import LabError

POLL_S = 0.05


def child(pid: int | None) -> int | None:
    """The only child of a process, if it has one."""
    if pid is None:
        return None
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                if int(fields[1]) == pid:
                    return int(entry.name)
    return None


def alive(pid: int) -> bool:
    """True for a process that is there and not only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0] != "Z"
    except OSError:
        return False


def start_time(pid: int) -> str:
    """When the process started, which tells it from a later one of the same number; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]
    except OSError:
        return ""


def wait_until(true: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait for something that another process does. Raises `LabError` saying `what` is wrong when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise LabError(what, where="lab")
        time.sleep(POLL_S)


def remove_cgroups(name: str) -> None:
    """What Docker made below its cgroup, in each hierarchy of version 1 or in the one of version 2."""
    top = Path("/sys/fs/cgroup")
    for hierarchy in (top, *(entry for entry in top.glob("*") if entry.is_dir())):
        _remove_tree(hierarchy / name.lstrip("/"))


def _remove_tree(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
