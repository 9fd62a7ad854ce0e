"""The processes of a lab on this machine, and the cgroups that they leave."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from lab.programs import LabError

POLL_S = 0.05


def only_child(pid: int | None) -> int | None:
    """The PID of the only child of a process, or None."""
    if pid is None:
        return None
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                if int(fields[1]) == pid:
                    return int(entry.name)
    return None


def is_alive(pid: int) -> bool:
    """True for a running process; False for a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float, message: str) -> None:
    """Wait until `condition` is true. Raises `LabError` with `message` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(message, where="lab")
        time.sleep(POLL_S)


def remove_cgroups(name: str) -> None:
    """Remove the cgroups that Docker created below `name`, in all hierarchies of version 1 or 2."""
    top = Path("/sys/fs/cgroup")
    for hierarchy in (top, *(entry for entry in top.glob("*") if entry.is_dir())):
        _remove_tree(hierarchy / name.lstrip("/"))


def _remove_tree(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
