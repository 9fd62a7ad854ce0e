"""Start, signal and end the commands of a mock host, through its spawner process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SPAWNER = Path(__file__).with_name("spawner.py")
NOBODY = 65534
"""User and group id of the shells when the server was started as root: `nobody` on most systems."""


class MockHostError(RuntimeError):
    """The mock host itself failed; never a simulated failure."""


@dataclass
class Process:
    """A command on a mock host. `status` is its exit status, or minus the signal that ended it."""

    pid: int = 0
    status: int | None = None
    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The status, or None when it does not end within `timeout_s`."""
        self.ended.wait(timeout_s)
        return self.status


class Processes:
    """All processes of one host: descendants of one spawner, which can end them all."""

    def __init__(self, *, keep_reading: bool = True) -> None:
        """Start the spawner. Raises `MockHostError` when it does not start.

        Without `keep_reading` a spawner started as root drops CAP_DAC_READ_SEARCH too, as it must
        where the kernel forbids to keep it.
        """
        channel, spawner_end = socket.socketpair()
        as_root = os.geteuid() == 0
        uid, gid = (NOBODY, NOBODY) if as_root else (os.geteuid(), os.getegid())
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SPAWNER), str(uid), str(gid), str(int(keep_reading))],
            stdin=spawner_end.fileno(),
            stdout=subprocess.DEVNULL,
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )
        spawner_end.close()
        self._channel = channel
        self._lock = threading.Lock()
        self._next_id = 1
        self._known: dict[int, Process] = {}
        hello = self._read()
        if hello is None:
            self._process.wait()
            channel.close()
            raise MockHostError("the process that runs the commands of a mock host did not start")
        self.uid, self.gid = uid, gid
        self.as_root = as_root
        self.reads_all: bool = hello["reads_all"]
        self._reader = threading.Thread(
            target=self._read_replies, name="mock-processes", daemon=True
        )
        self._reader.start()

    @property
    def spawner_pid(self) -> int:
        """The PID of the ancestor of all processes of this host."""
        return int(self._process.pid)

    def spawn(
        self,
        path: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        fds: Sequence[int],
        tty: bool = False,
        full_disk: bool = False,
    ) -> Process:
        """Start `path` with three descriptors, or one terminal for all three.

        Raises `MockHostError` when the spawner does not answer.
        """
        request = {
            "op": "spawn",
            "path": path,
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "fds": len(fds),
            "tty": tty,
            "full_disk": full_disk,
        }
        process = self._send(request, fds)
        if not process.started.wait(30):
            raise MockHostError("the process that runs the commands of a mock host does not answer")
        return process

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: bytes = b"",
        timeout_s: float = 60,
    ) -> tuple[int, str]:
        """Run one command to its end; return its status and the output of both streams.

        Raises `MockHostError` when the spawner does not answer.
        """
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        process = self.spawn(argv[0], argv, env=env, cwd=cwd, fds=[in_read, out_write, out_write])
        os.close(in_read)
        os.close(out_write)
        feeder = threading.Thread(target=_feed, args=(in_write, stdin), daemon=True)
        feeder.start()
        timer = threading.Timer(timeout_s, lambda: self.signal(process, 9))
        timer.start()
        try:
            with os.fdopen(out_read, "rb") as file:
                text = file.read().decode("utf-8", "replace")
            status = process.wait(timeout_s)
        finally:
            timer.cancel()
        return (-9 if status is None else status), text

    def signal(self, process: Process, number: int) -> None:
        """Send a signal to the process itself."""
        if process.pid and not process.ended.is_set():
            self._write({"op": "signal", "pid": process.pid, "signal": number}, [])

    def kill_all(self) -> None:
        """End every process of this host, daemons included. Raises `MockHostError` after 30 s."""
        if not self._send({"op": "killall"}, []).ended.wait(30):
            raise MockHostError("the processes of a mock host could not be ended")

    def close(self) -> None:
        """End the spawner and everything that it started."""
        with contextlib.suppress(OSError):  # it has ended already
            self._channel.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._channel.close()
        self._reader.join(5)

    def _send(self, request: dict[str, Any], fds: Sequence[int]) -> Process:
        process = Process()
        with self._lock:
            request["id"] = self._next_id
            self._next_id += 1
            self._known[request["id"]] = process
        self._write(request, fds)
        return process

    def _write(self, request: dict[str, Any], fds: Sequence[int]) -> None:
        data = json.dumps(request).encode()
        data = struct.pack("!I", len(data)) + data
        try:
            with self._lock:
                sent = socket.send_fds(self._channel, [data], list(fds)) if fds else 0
                self._channel.sendall(data[sent:])
        except OSError as error:
            raise MockHostError(
                f"the process that runs the commands of a mock host is gone: {error}"
            ) from error

    def _read(self) -> dict[str, Any] | None:
        head = self._receive(4)
        if head is None:
            return None
        body = self._receive(struct.unpack("!I", head)[0])
        return None if body is None else dict(json.loads(body))

    def _receive(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                piece = self._channel.recv(size - len(data))
            except OSError:
                return None
            if not piece:
                return None
            data += piece
        return data

    def _read_replies(self) -> None:
        while (reply := self._read()) is not None:
            with self._lock:
                process = self._known[reply["id"]]
                if "pid" not in reply:
                    del self._known[reply["id"]]
            if "pid" in reply:
                process.pid = reply["pid"]
                process.started.set()
            else:
                process.status = reply["exit"] if "exit" in reply else -int(reply["signal"])
                process.ended.set()
        with self._lock:
            for process in self._known.values():
                process.status = -9
                process.started.set()
                process.ended.set()


def _feed(fd: int, data: bytes) -> None:
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    except OSError:
        return
