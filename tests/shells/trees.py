"""Every process that a test started, found by a variable in its environment."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import uuid4

from tests.shells.shells import Shell

_VARIABLE = "PROVISION_TEST_TREE"


@dataclass(frozen=True)
class Tree:
    """The processes that carry one mark."""

    mark: str

    @property
    def env(self) -> dict[str, str]:
        """The variable that marks a process and all that it starts."""
        return {_VARIABLE: self.mark}

    def pids(self) -> dict[int, str]:
        """The command lines of the living processes, by their ids. A zombie does not count."""
        wanted = f"{_VARIABLE}={self.mark}".encode()
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                try:
                    if wanted in (folder / "environ").read_bytes().split(b"\0"):
                        found[int(folder.name)] = (
                            (folder / "cmdline")
                            .read_bytes()
                            .replace(b"\0", b" ")
                            .decode("utf-8", "replace")[-80:]
                        )
                except OSError:  # it has just ended, or is another user's
                    continue
        return found

    def wait_until_gone(self, seconds: float) -> float:
        """Wait until no process is alive and return the seconds. Fails when one still is."""
        started = time.monotonic()
        while alive := self.pids():
            assert time.monotonic() - started < seconds, alive
            time.sleep(0.05)
        return time.monotonic() - started

    def wait_until(
        self, condition: Callable[[dict[int, str]], bool], seconds: float = 30.0
    ) -> None:
        """Wait until the living processes fulfil a condition. Fails when they never do."""
        started = time.monotonic()
        while not condition(alive := self.pids()):
            assert time.monotonic() - started < seconds, alive
            time.sleep(0.02)

    def end(self) -> None:
        """Kill what is left."""
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)


@contextmanager
def tree() -> Iterator[Tree]:
    """A new mark. The processes that carry it at the end are killed."""
    mine = Tree(uuid4().hex)
    try:
        yield mine
    finally:
        mine.end()


@contextmanager
def channel(
    shell: Shell, mine: Tree, command: str, stdin: bytes = b""
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command as an SSH server does: in a session of its own, with pipes and no terminal."""
    pipe = subprocess.PIPE
    argv = ["/bin/sh", "-c", command]
    environment = shell.environment(**mine.env, PROVISION_MOCK_ROOT="")
    with subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
    ) as process:
        try:
            required(process.stdin).write(stdin)
            required(process.stdin).flush()
            yield process
        finally:
            process.kill()


def required(stream: IO[bytes] | None) -> IO[bytes]:
    """The stream, which must exist."""
    assert stream is not None
    return stream


def read_until(stream: IO[bytes] | None, text: bytes) -> bytes:
    """Read until `text` has arrived and return everything read."""
    found = b""
    while text not in found:
        data = os.read(required(stream).fileno(), 65536)
        assert data, found
        found += data
    return found
