"""control.log, server.log and the kernel's log, as data. Pure.

Source: the NVIDIA MPS guide (appendix on logging) and logs recorded on driver 580; the meaning of
each line is told in docs/facts.md. `User did not send valid credentials` stands before perfectly
good clients and means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) +(\w+) +(\d{1,9})\] ?(.*)", re.ASCII)
_RESPAWNS = 3
"""Servers that end one after the other before any of them was ready: a loop, not an accident."""


@dataclass(frozen=True)
class Line:
    """One line: when (local time of the machine), who (`Control`, `Server`, `Other`, `Client`), its PID, what."""

    when: str
    who: str
    pid: int
    text: str


def lines(text: str) -> tuple[Line, ...]:
    """The lines of a log; what has no such shape belongs to no line and is left out."""
    return tuple(
        Line(found[1], found[2], int(found[3]), found[4])
        for raw in text.splitlines()
        if (found := _LINE.match(raw))
    )


def _texts(text: str) -> Iterator[str]:
    """What each line says; a line without a stamp is taken whole."""
    for raw in text.splitlines():
        found = _LINE.match(raw)
        yield found[4] if found else raw


@dataclass(frozen=True)
class ControlLog:
    """What control.log tells."""

    socket: str = ""
    ready: tuple[int, ...] = ()
    """Servers that became ready, in order."""
    ended: tuple[tuple[int, int], ...] = ()
    """(PID, exit status) of servers that ended."""
    failed: tuple[int, ...] = ()
    """Servers that ended with a failure and were never ready, since another one became ready."""
    fatal: int = 0
    """How often a server met a fatal exception since one became ready."""
    refused_uids: tuple[int, ...] = ()
    """Users whose commands were refused."""
    pending_uids: tuple[int, ...] = ()
    """Users whose last client was put on the pending list and whose server was not ready
    afterwards."""
    blocked_by: int = 0
    """Worker threads that held up the last end of a server, 0 when none does."""

    @property
    def respawns(self) -> bool:
        """True where servers end with a failure as often as they are started, none of them ever ready."""
        return len(self.failed) >= _RESPAWNS


_READY = re.compile(r"NEW SERVER (\d{1,9}): Ready", re.ASCII)
_ENDED = re.compile(r"Server (\d{1,9}) exited with status (-?\d{1,6})", re.ASCII)
_REFUSED = re.compile(r"Insufficient privileges for UID (\d{1,9})", re.ASCII)
_PENDING = re.compile(r"NEW CLIENT \d{1,9} from user (\d{1,10}): Server is not ready", re.ASCII)
_SERVED = re.compile(r"NEW CLIENT \d{1,9} from user (\d{1,10}): Server already exists", re.ASCII)
_STARTING = re.compile(r"Starting new server \d{1,9} for user (\d{1,10})", re.ASCII)
_BLOCKED = re.compile(r"Server \d{1,9} has (\d{1,6}) active worker threads", re.ASCII)
_SOCKET = re.compile(r"Starting control daemon using socket (.*)")


def control_log(text: str) -> ControlLog:
    """Everything since the daemon started last."""
    said = list(_texts(text))
    starts = [number for number, line in enumerate(said) if _SOCKET.match(line)]
    said = said[starts[-1] :] if starts else said
    socket = _SOCKET.match(said[0]) if said else None
    ready = {
        number: int(found[1]) for number, line in enumerate(said) if (found := _READY.search(line))
    }
    since = said[max(ready, default=-1) + 1 :]
    return ControlLog(
        socket=socket[1].strip() if socket else "",
        ready=tuple(ready.values()),
        ended=_ended(said),
        failed=tuple(
            pid for pid, status in _ended(since) if status != 0 and pid not in ready.values()
        ),
        fatal=sum("encountered a fatal exception" in line for line in since),
        refused_uids=tuple(
            dict.fromkeys(int(found[1]) for line in said if (found := _REFUSED.search(line)))
        ),
        pending_uids=_pending(said),
        blocked_by=_blocked(said),
    )


def _ended(said: list[str]) -> tuple[tuple[int, int], ...]:
    return tuple((int(found[1]), int(found[2])) for line in said if (found := _ENDED.search(line)))


def _pending(said: list[str]) -> tuple[int, ...]:
    """Users whose client was put on the pending list and whose server did not become ready since."""
    pending: dict[int, None] = {}
    starting = -1
    for line in said:
        if found := _PENDING.search(line):
            pending[int(found[1])] = None
        elif found := _STARTING.search(line):
            starting = int(found[1])
        elif found := _SERVED.search(line):
            pending.pop(int(found[1]), None)
        elif _READY.search(line):
            pending.pop(starting, None)
    return tuple(pending)


def _blocked(said: list[str]) -> int:
    """Worker threads that the last attempt to end a server waits for; 0 once a server ended."""
    blocked = 0
    for line in said:
        if found := _BLOCKED.search(line):
            blocked = int(found[1])
        elif _ENDED.search(line):
            blocked = 0
    return blocked


@dataclass(frozen=True)
class ServerLog:
    """What server.log tells of the last server in it."""

    pid: int | None = None
    thread_percentage: float | None = None
    memory_limits_mib: tuple[tuple[int, int], ...] = ()
    """(device, MiB) of every limit."""
    started: bool = False
    suspect: int | None = None
    """The first client that turned INACTIVE: the one whose fault the others share."""
    fault: bool = False
    no_shared_memory: bool = False


_PERCENT = re.compile(r"Active Threads Percentage set to (\d{1,3}(?:\.\d{1,6})?)", re.ASCII)
_LIMIT = re.compile(
    r"pinned memory limit for device (\d{1,4}) set to 0x([0-9a-fA-F]{1,16})", re.ASCII
)
_INACTIVE = re.compile(
    r"(?i)status of client \{(?:PID: )?(\d{1,9}), (?:Context ID: )?\d{1,9}\} is INACTIVE", re.ASCII
)


def server_log(text: str) -> ServerLog:
    """The last server's limits, and its fault where there was one."""
    every = lines(text)
    pid = every[-1].pid if every else None
    said = list(_texts(text)) if pid is None else [line.text for line in every if line.pid == pid]
    percentages = [float(found[1]) for line in said if (found := _PERCENT.search(line))]
    limits = {
        int(found[1]): int(found[2], 16) >> 20 for line in said if (found := _LIMIT.search(line))
    }
    suspects = [int(found[1]) for line in said if (found := _INACTIVE.search(line))]
    return ServerLog(
        pid=pid,
        thread_percentage=percentages[-1] if percentages else None,
        memory_limits_mib=tuple(limits.items()),
        started=any(line.startswith("Server has started") for line in said),
        suspect=suspects[0] if suspects else None,
        fault=any("handling a fatal GPU error" in line for line in said),
        no_shared_memory=any("failed to create/open SHM segment" in line for line in said),
    )


_XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d{1,5})\b,? ?(.*)", re.ASCII)


@dataclass(frozen=True)
class Xid:
    """An error that the driver reported to the kernel's log."""

    device: str
    number: int
    text: str


def xids(text: str) -> tuple[Xid, ...]:
    """Every Xid of a kernel log, in order."""
    return tuple(
        Xid(found[1], int(found[2]), found[3])
        for raw in text.splitlines()
        if (found := _XID.search(raw))
    )
