"""A mock host whose GPU is shared through the use cases, and CUDA programs that tests command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko

from provision.commands.dev.up import dev_up
from provision.commands.mps.enable import mps_enable
from provision.commands.mps.status import mps_status
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.project.project import Project
from provision.settings import Settings
from provision.testing import MockHost
from tests.mock.plain_client import connect

HERE = Targets()
IMAGE = "us-docker.pkg.dev/project/repo/image:1"

PROGRAM = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
def call(name, *values):
    return getattr(cuda, name)(*values)
first = call("cuInit", 0) or call("cuDeviceGet", ctypes.byref(device), 0)
first = first or call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
print(first, os.getpid(), flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "alloc":
        size = ctypes.c_size_t(int(words[1]))
        print(call("cuMemAlloc_v2", ctypes.byref(memory), size), flush=True)
    elif words[0] == "destroy":
        print(call("cuCtxDestroy_v2", context), flush=True)
    else:
        print(call(words[0]), flush=True)
"""


class Program:
    """A CUDA program of a container that makes one driver call for each line of input."""

    def __init__(self, client: paramiko.SSHClient, words: str) -> None:
        self._feed, self._out, _ = client.exec_command(
            f"docker exec -i {words} python -u -c {shlex.quote(PROGRAM)}"
        )

    def started(self) -> int:
        """Status of the first calls, once they return; 0 is success. Sets `pid`."""
        status, pid = self._out.readline().split()
        self.pid = str(pid)
        return int(status)

    def call(self, line: str) -> int:
        """The status of one more call."""
        self._feed.write(line + "\n")
        self._feed.flush()
        return int(self._out.readline())

    def end(self) -> None:
        """Let it end, and wait for that."""
        self._feed.channel.shutdown_write()
        self._out.channel.recv_exit_status()


@contextmanager
def program(host: MockHost, words: str, *, starts: int | None = 0) -> Iterator[Program]:
    """A program that started with this status, ended on exit; None does not wait for it."""
    with connect(host) as client:
        made = Program(client, words)
        if starts is not None:
            assert made.started() == starts
        yield made
        made.end()


class Shared:
    """A project whose host is the mock."""

    def __init__(self, folder: Path, host: MockHost, **settings: Any) -> None:
        self.host = host
        self.folder = folder
        where = host.host
        box = {
            "address": where.address,
            "port": where.port,
            "user": where.user,
            "identity": str(where.identity),
        }
        self.base: dict[str, Any] = {
            "name": "box",
            "hosts": {"box": {**box, "host_key": where.host_key}},
            "worker": {"image": IMAGE},
        }
        self.out = bytearray()
        self.err = bytearray()
        self.set(**settings)

    def set(self, *, worker: dict[str, Any] | None = None, **mps: Any) -> None:
        """Change settings of MPS and of the worker."""
        made = {**self.base, "mps": mps, "worker": {**self.base["worker"], **(worker or {})}}
        self.settings = Settings.model_validate(made)

    @property
    def project(self) -> Project:
        """A new project, as each command builds its own."""
        self.out.clear()
        self.err.clear()
        return self.new_project()

    def new_project(self) -> Project:
        """A project that shares its outputs with another one."""
        folder = self.folder / "project"
        folder.mkdir(exist_ok=True)
        return Project(
            self.settings,
            self.folder / "state",
            folder,
            stdout=self.out.extend,
            stderr=self.err.extend,
            environ=dict(os.environ),
        )

    def up(self) -> TaskResult:
        return dev_up(self.project, HERE)

    def enable(self) -> dict[str, Any]:
        """Run `mps.enable`, which must succeed; the host's part of the document."""
        done = mps_enable(self.project, HERE)
        assert done.exit_code == 0, done.document
        return dict(done.document["hosts"]["box"])

    def first_error(self, done: TaskResult) -> dict[str, str]:
        """The first error of a run that failed."""
        assert done.exit_code == 1, done.document
        errors = [
            result["error"]
            for result in done.document["hosts"]["box"]["results"]
            if result.get("error")
        ]
        return dict(errors[0])

    def status(self, *, strict: bool = False) -> TaskResult:
        return mps_status(self.project, HERE, strict=strict)

    def inside(self, source: str, *, box: str = "worker") -> str:
        """Run shell source in a container; what it prints."""
        return self.host.run(f"docker exec -i {box} sh -s", stdin=source.encode()).output

    def program(self, words: str = "worker", *, starts: int | None = 0) -> Any:
        return program(self.host, words, starts=starts)


def changed_resources(report: dict[str, Any]) -> list[str]:
    """The resources that a run changed."""
    return [result["resource"] for result in report["results"] if result["status"] == "changed"]
