"""`nvidia-cuda-mps-control`: the daemon with -d or -f, else the tool that reads commands and exits 0 whatever they were."""

# a process for every question: it starts twice as fast without pathlib:
# ruff: noqa: PTH101, PTH102, PTH116

from __future__ import annotations

import json
import os
import socket
import sys

from .environment import PIPE_LIMIT, Place

_DAEMON_FLAGS = frozenset(("-multiuser-server", "-M", "-m", "-S", "--static-partitioning"))


def main(words: list[str]) -> int:
    """Run the program and return its exit status."""
    place = Place()
    rest = [word for word in words if word not in ("-d", "-f")]
    if rest == ["-v"]:
        sys.stdout.write(
            "CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000\nCopyright (C) 2003 - 2025 NVIDIA Corporation.\n\n"
        )
        return 0
    if [word for word in rest if word not in _DAEMON_FLAGS]:
        sys.stderr.write(f"nvidia-cuda-mps-control: unrecognized option '{rest[0]}'\n")
        return 1
    if "-d" not in words and "-f" not in words:
        return _ask(place)
    return _start(
        place,
        background="-d" in words,
        every_user=any(word in ("-multiuser-server", "-M", "-m") for word in rest),
    )


def _make(path: str, mode: int) -> bool:
    """The directory, one level of it made."""
    try:
        os.mkdir(path)
        os.chmod(path, mode)
    except FileExistsError:
        return bool(
            os.stat(path).st_mode & 0o222
        )  # access(2) fails below a closed folder, where the capability to read is ignored
    except OSError:
        return False
    return True


def _start(place: Place, *, background: bool, every_user: bool) -> int:
    from .control_daemon import Daemon  # only here: the tool needs none of it

    if len(place.pipe_name) > PIPE_LIMIT:
        return 1  # and no word about it
    if not _make(place.pipe, 0o777):
        sys.stderr.write(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={place.pipe_name}\n")
        return 1
    if not _make(place.logs, 0o700):
        sys.stdout.write(
            f"Warning: Failed writing log files to directory [{place.log_name}]. No logs will be available.\n"
        )
    lock = _take_lock(place)
    if lock is None:
        sys.stderr.write("An instance of this daemon is already running\n")
        return 1
    sys.stdout.flush()
    if background and not _detach():
        return 0
    if place.fault("mps_daemon_dies"):
        os._exit(1)
    daemon = Daemon(place, foreground=not background, every_user=every_user)
    daemon.prepare(lock)
    if background:
        os.write(_READY[1], b"x")
        os.close(_READY[1])
    daemon.serve()
    return 0


def _take_lock(place: Place) -> int | None:
    """The lock that one daemon of a pipe directory holds; None when another one has it."""
    import fcntl

    lock = os.open(place.file("control_lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


_READY = [-1, -1]


def _detach() -> bool:
    """True in the daemon, False in its caller, once the daemon answers or has died."""
    _READY[:] = os.pipe()
    if os.fork():
        os.close(_READY[1])
        os.read(_READY[0], 1)
        return False
    os.close(_READY[0])
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    return True


def _ask(place: Place) -> int:
    try:
        connection = place.socket_at(
            "control_privileged" if place.is_root else "control", "connect"
        )
    except OSError:
        sys.stderr.write("Cannot find MPS control daemon process\n")
        return 1
    with connection, connection.makefile("rb") as answers:
        for line in sys.stdin:
            answer = _one(connection, answers, {"line": line.strip(), "uid": place.uid})
            if answer is None:
                break
            sys.stdout.write(str(answer["text"]))
            sys.stdout.flush()
    return 0


def _one(
    connection: socket.socket, answers: object, message: dict[str, object]
) -> dict[str, object] | None:
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
        line: bytes = answers.readline()  # type: ignore[attr-defined]
    except OSError:
        return None
    return dict(json.loads(line)) if line else None
