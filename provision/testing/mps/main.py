"""`nvidia-cuda-mps-control`: the daemon with -d or -f, else the tool, which exits 0 always."""

# a process for every command: it starts twice as fast without pathlib:
# ruff: noqa: PTH101, PTH102, PTH116

from __future__ import annotations

import json
import os
import socket
import sys

from .environment import PIPE_LIMIT, MpsEnvironment

_DAEMON_FLAGS = frozenset(("-multiuser-server", "-M", "-m", "-S", "--static-partitioning"))


def main(words: list[str]) -> int:
    """Run the program and return its exit status."""
    environment = MpsEnvironment()
    rest = [word for word in words if word not in ("-d", "-f")]
    if rest == ["-v"]:
        sys.stdout.write(
            "CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000\n"
            "Copyright (C) 2003 - 2025 NVIDIA Corporation.\n\n"
        )
        return 0
    if [word for word in rest if word not in _DAEMON_FLAGS]:
        sys.stderr.write(f"nvidia-cuda-mps-control: unrecognized option '{rest[0]}'\n")
        return 1
    if "-d" not in words and "-f" not in words:
        return _run_tool(environment)
    return _run_daemon(
        environment,
        background="-d" in words,
        every_user=any(word in ("-multiuser-server", "-M", "-m") for word in rest),
    )


def _make_directory(path: str, mode: int) -> bool:
    """Create a directory, without its parents; True when it can be written."""
    try:
        os.mkdir(path)
        os.chmod(path, mode)
    except FileExistsError:
        # by mode bits: access(2) ignores the capability to read below closed folders
        return bool(os.stat(path).st_mode & 0o222)
    except OSError:
        return False
    return True


def _run_daemon(environment: MpsEnvironment, *, background: bool, every_user: bool) -> int:
    from .control_daemon import Daemon  # only here: the tool needs none of it

    if len(environment.pipe_name) > PIPE_LIMIT:
        return 1  # without a message
    if not _make_directory(environment.pipe, 0o777):
        sys.stderr.write(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={environment.pipe_name}\n")
        return 1
    if not _make_directory(environment.logs, 0o700):
        sys.stdout.write(
            f"Warning: Failed writing log files to directory [{environment.log_name}]. "
            "No logs will be available.\n"
        )
    lock = _take_lock(environment)
    if lock is None:
        sys.stderr.write("An instance of this daemon is already running\n")
        return 1
    sys.stdout.flush()
    if background and not _detach():
        return 0
    if environment.fault("mps_daemon_dies"):
        os._exit(1)
    daemon = Daemon(environment, foreground=not background, every_user=every_user)
    daemon.prepare(lock)
    if background:
        os.write(_READY[1], b"x")
        os.close(_READY[1])
    daemon.serve()
    return 0


def _take_lock(environment: MpsEnvironment) -> int | None:
    """The descriptor of the pipe directory's lock file, locked; None when another daemon has it."""
    import fcntl

    lock = os.open(environment.pipe_file("control_lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


_READY = [-1, -1]


def _detach() -> bool:
    """True in the daemon; False in the caller, once the daemon answers or has ended."""
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


def _run_tool(environment: MpsEnvironment) -> int:
    try:
        connection = environment.open_socket(
            "control_privileged" if environment.is_root else "control", "connect"
        )
    except OSError:
        sys.stderr.write("Cannot find MPS control daemon process\n")
        return 1
    with connection, connection.makefile("rb") as answers:
        for line in sys.stdin:
            answer = _request(connection, answers, {"line": line.strip(), "uid": environment.uid})
            if answer is None:
                break
            sys.stdout.write(str(answer["text"]))
            sys.stdout.flush()
    return 0


def _request(
    connection: socket.socket, answers: object, message: dict[str, object]
) -> dict[str, object] | None:
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
        line: bytes = answers.readline()  # type: ignore[attr-defined]
    except OSError:
        return None
    return dict(json.loads(line)) if line else None
