"""When a process started, which distinguishes it from a later one with the same PID.

The docker stand-in has its own reader: it runs as a program of its own, without this package.
"""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> str:
    """Return the start time of a process in clock ticks since the boot of this machine.

    Empty for a process that has ended or is a zombie.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == b"Z" else fields[19].decode()
