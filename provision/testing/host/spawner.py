"""The process that runs a mock host's commands, unprivileged and single-threaded.

It is started by its path with an isolated interpreter, so it imports nothing of the package.
Started as root it becomes an unprivileged user. It then keeps CAP_DAC_READ_SEARCH only, where the
kernel grants it, so that it can read an interpreter or a state folder below a closed home; it can
write to the host's own folder only. It sets no-new-privileges and becomes a child subreaper: every
process that a command leaves behind is its descendant. It reaps them, as PID 1 of a real host does,
and ends them when the host reboots or stops.

Protocol, on the stream socket that is standard input: a request is a length, JSON and up to three
descriptors; replies are lengths and JSON: {"id", "pid"} at the start, {"id", "exit"} or {"id",
"signal"} at the end.
"""

# its start delays every start of a host:
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterable
from typing import Any

_PR_SET_KEEPCAPS = 8
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION_3 = 0x20080522
_KILL_S = 30.0
_MAX_PROCESSES = 4096


def drop_privileges(uid: int, gid: int, *, keep_reading: bool) -> bool:
    """Become `uid` for good; True when the capability to read closed folders was kept.

    Call it once, as root. Raises `PermissionError` when root's privileges cannot be dropped.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    # without this bit access(2) ignores the capability that is kept
    libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    # a recipe that forks without end meets this limit
    resource.setrlimit(resource.RLIMIT_NPROC, (_MAX_PROCESSES, _MAX_PROCESSES))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    mask = 1 << _CAP_DAC_READ_SEARCH
    kept = keep_reading and libc.capset(header, struct.pack("=6I", mask, mask, mask, 0, 0, 0)) == 0
    kept = (
        kept and libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0) == 0
    )
    if not kept:
        libc.capset(header, struct.pack("=6I", 0, 0, 0, 0, 0, 0))
    if 0 in os.getresuid() or 0 in os.getresgid():
        raise PermissionError("the privileges of root could not be dropped")
    return bool(kept)


def confine() -> None:
    """Forbid new privileges, and become the parent of orphaned descendants."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Spawner:
    """Reads requests, starts children, and reports how they end."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._jobs: dict[int, int] = {}
        self._buffer = b""
        self._fds: list[int] = []

    def serve(self) -> None:
        """Serve until the channel is closed, then end every descendant."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._finish())
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ, "request")
            selector.register(wake_read, selectors.EVENT_READ, "child")
            while True:
                ready = {key.data for key, _ in selector.select()}
                if "child" in ready:
                    _drain(wake_read)
                    self._reap()
                if "request" in ready and not self._receive():
                    self._finish()

    def _finish(self) -> None:
        kill_descendants(os.getpid())
        _reap_all()
        os._exit(0)

    def _receive(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._channel, 1 << 16, 8)
        except OSError:
            return False
        self._fds.extend(fds)
        if not data:
            return False
        self._buffer += data
        while len(self._buffer) >= 4:
            size = struct.unpack("!I", self._buffer[:4])[0]
            if len(self._buffer) < 4 + size:
                break
            request = json.loads(self._buffer[4 : 4 + size].decode("utf-8", "surrogatepass"))
            self._buffer = self._buffer[4 + size :]
            self._handle(request)
        return True

    def _handle(self, request: dict[str, Any]) -> None:
        match request["op"]:
            case "spawn":
                fds = [self._fds.pop(0) for _ in range(request["fds"])]
                pid = self._spawn(request, fds)
                for fd in fds:
                    os.close(fd)
                self._jobs[pid] = request["id"]
                self._reply({"id": request["id"], "pid": pid})
            case "signal":
                _signal_all([request["pid"]], request["signal"])
            case "killall":
                kill_descendants(os.getpid())
                self._reap()
                self._reply({"id": request["id"], "exit": 0})

    def _spawn(self, request: dict[str, Any], fds: list[int]) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            _become_command(request, fds)
        except OSError as error:
            text = (
                "Argument list too long"
                if error.errno == errno.E2BIG
                else os.strerror(error.errno or 0)
            )
            os.write(2, f"{request['argv'][0]}: {text}\n".encode("utf-8", "replace"))
        finally:
            os._exit(1)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            job = self._jobs.pop(pid, None)
            if job is not None and os.WIFSIGNALED(status):
                self._reply({"id": job, "signal": os.WTERMSIG(status)})
            elif job is not None:
                self._reply({"id": job, "exit": os.waitstatus_to_exitcode(status)})

    def _reply(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        try:
            self._channel.sendall(struct.pack("!I", len(data)) + data)
        except OSError:
            self._finish()


def _become_command(request: dict[str, Any], fds: list[int]) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    three = (fds * 3)[:3]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in three]
    for target, fd in enumerate(high):
        os.dup2(fd, target)
    os.closerange(3, 4096)
    if request.get("tty"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if request.get("full_disk"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    os.umask(0o022)
    os.chdir(request["cwd"])
    path, argv = request["path"], request["argv"]
    os.execve(  # noqa: S606 - its whole purpose
        path,
        [_bytes(word) for word in argv],
        {_bytes(key): _bytes(value) for key, value in request["env"].items()},
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        return


def descendants(root: int) -> list[int]:
    """The living descendants of `root`, without zombies, from /proc."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue
            if state != b"Z":
                parents[int(name)] = int(parent)
    found: list[int] = []
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found.extend(frontier)
    return found


def kill_descendants(root: int) -> None:
    """End all descendants of `root`, each stopped first so that none can fork in the meantime."""
    stopped: set[int] = set()
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        new = set(descendants(root)) - stopped
        if not new:
            break
        _signal_all(new, signal.SIGSTOP)
        stopped |= new
    while (alive := descendants(root)) and time.monotonic() < deadline:
        _signal_all(alive, signal.SIGKILL)
        time.sleep(0.002)


def _reap_all() -> None:
    """Reap the ended children, which would stay as zombies otherwise."""
    deadline = time.monotonic() + _KILL_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)
        except ChildProcessError:
            return


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def main() -> None:
    """`spawner.py UID GID KEEP_READING`: serve on standard input."""
    uid, gid, keep_reading = (int(word) for word in sys.argv[1:4])
    kept = drop_privileges(uid, gid, keep_reading=bool(keep_reading)) if os.getuid() == 0 else False
    confine()
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    data = json.dumps({"id": 0, "pid": os.getpid(), "reads_all": kept}).encode()
    channel.sendall(struct.pack("!I", len(data)) + data)
    Spawner(channel).serve()


if __name__ == "__main__":
    main()
