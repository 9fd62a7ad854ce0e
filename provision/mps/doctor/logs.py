"""Readers of control.log, server.log and the kernel's log. Pure.

Source: the NVIDIA MPS guide (appendix on logging) and logs recorded on driver 580; docs/facts.md
explains each line. `User did not send valid credentials` also precedes healthy clients, so it is
not evidence of a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) +(\w+) +(\d{1,9})\] ?(.*)", re.ASCII)
_MIN_RESPAWNS = 3
"""So many servers that end one after the other, none of them ready, are a loop."""


@dataclass(frozen=True)
class Line:
    """One line: local time, who wrote it (`Control`, `Server`, …), its PID, the text."""

    when: str
    who: str
    pid: int
    text: str


def lines(text: str) -> tuple[Line, ...]:
    """The lines of a log; text of another shape is left out."""
    return tuple(
        Line(match[1], match[2], int(match[3]), match[4])
        for raw in text.splitlines()
        if (match := _LINE.match(raw))
    )


def _texts(text: str) -> Iterator[str]:
    """The text of each line; a line without a stamp is taken whole."""
    for raw in text.splitlines():
        match = _LINE.match(raw)
        yield match[4] if match else raw


# --- control.log ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ControlLog:
    """What control.log reports since the last start of the daemon."""

    socket: str = ""
    ready: tuple[int, ...] = ()
    """Servers that became ready, in order."""
    ended: tuple[tuple[int, int], ...] = ()
    """(PID, exit status) of servers that ended."""
    failed: tuple[int, ...] = ()
    """Servers that failed before they were ready, since the last one that became ready."""
    fatal: int = 0
    """How many fatal exceptions servers met since the last one that became ready."""
    refused_uids: tuple[int, ...] = ()
    """Users whose commands were refused."""
    pending_uids: tuple[int, ...] = ()
    """Users whose last client is pending: no server of theirs became ready afterwards."""
    blocked_by: int = 0
    """Worker threads that the last attempt to end a server waits for."""

    @property
    def respawns(self) -> bool:
        """True where servers fail as often as they are started, none of them ever ready."""
        return len(self.failed) >= _MIN_RESPAWNS


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
    texts = list(_texts(text))
    starts = [number for number, line in enumerate(texts) if _SOCKET.match(line)]
    texts = texts[starts[-1] :] if starts else texts
    socket = _SOCKET.match(texts[0]) if texts else None
    ready = {
        number: int(match[1]) for number, line in enumerate(texts) if (match := _READY.search(line))
    }
    since_ready = texts[max(ready, default=-1) + 1 :]
    return ControlLog(
        socket=socket[1].strip() if socket else "",
        ready=tuple(ready.values()),
        ended=_ended(texts),
        failed=tuple(
            pid for pid, status in _ended(since_ready) if status != 0 and pid not in ready.values()
        ),
        fatal=sum("encountered a fatal exception" in line for line in since_ready),
        refused_uids=tuple(
            dict.fromkeys(int(match[1]) for line in texts if (match := _REFUSED.search(line)))
        ),
        pending_uids=_pending_uids(texts),
        blocked_by=_blocking_threads(texts),
    )


def _ended(texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(PID, exit status) of every server that ended."""
    matches = (_ENDED.search(line) for line in texts)
    return tuple((int(match[1]), int(match[2])) for match in matches if match)


def _pending_uids(texts: Sequence[str]) -> tuple[int, ...]:
    """Users whose client is pending and whose server did not become ready since."""
    pending: dict[int, None] = {}
    starting = -1
    for line in texts:
        if match := _PENDING.search(line):
            pending[int(match[1])] = None
        elif match := _STARTING.search(line):
            starting = int(match[1])
        elif match := _SERVED.search(line):
            pending.pop(int(match[1]), None)
        elif _READY.search(line):
            pending.pop(starting, None)
    return tuple(pending)


def _blocking_threads(texts: Sequence[str]) -> int:
    """Worker threads that the last attempt to end a server waits for; 0 once a server ended."""
    threads = 0
    for line in texts:
        if match := _BLOCKED.search(line):
            threads = int(match[1])
        elif _ENDED.search(line):
            threads = 0
    return threads


# --- server.log -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerLog:
    """What server.log reports about the last server in it."""

    pid: int | None = None
    thread_percentage: float | None = None
    memory_limits_mib: tuple[tuple[int, int], ...] = ()
    """(device, MiB) of every limit."""
    started: bool = False
    suspect: int | None = None
    """The first client that turned INACTIVE: the others share its fault."""
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
    stamped = lines(text)
    pid = stamped[-1].pid if stamped else None
    texts = list(_texts(text))
    if pid is not None:
        texts = [line.text for line in stamped if line.pid == pid]
    percentages = [float(match[1]) for line in texts if (match := _PERCENT.search(line))]
    limits = {
        int(match[1]): int(match[2], 16) >> 20 for line in texts if (match := _LIMIT.search(line))
    }
    suspects = [int(match[1]) for line in texts if (match := _INACTIVE.search(line))]
    return ServerLog(
        pid=pid,
        thread_percentage=percentages[-1] if percentages else None,
        memory_limits_mib=tuple(limits.items()),
        started=any(line.startswith("Server has started") for line in texts),
        suspect=suspects[0] if suspects else None,
        fault=any("handling a fatal GPU error" in line for line in texts),
        no_shared_memory=any("failed to create/open SHM segment" in line for line in texts),
    )


# --- the kernel's log -----------------------------------------------------------------------------

_XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d{1,5})\b,? ?(.*)", re.ASCII)


@dataclass(frozen=True)
class Xid:
    """An error that the driver reported to the kernel's log."""

    device: str
    number: int
    text: str


def xids(text: str) -> tuple[Xid, ...]:
    """Every Xid of a kernel log, in order."""
    matches = (_XID.search(raw) for raw in text.splitlines())
    return tuple(Xid(match[1], int(match[2]), match[3]) for match in matches if match)
