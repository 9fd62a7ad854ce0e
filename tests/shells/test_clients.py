"""Output of several programs at once, under every shell: no line is lost, split or mixed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from provision.commands.dev.shared.clients.run import run_clients
from provision.hosts.local import LocalTransport
from provision.project.project import Project
from provision.settings import Settings
from tests.shells.shells import Scratch

pytestmark = pytest.mark.slow

DOCKER = """#!/bin/sh
case $1 in
    container) echo true ;;
    exec)
        shift
        while :; do
            case $1 in
                --env) export "$2" && shift 2 ;;
                --workdir) shift 2 ;;
                *) break ;;
            esac
        done
        shift
        exec "$@"
        ;;
esac
"""
LINES = """
import sys
mine = bytes(byte for byte in range(256) if byte not in b"\\r\\n")
for number in range(30):
    for stream in (sys.stdout.buffer, sys.stderr.buffer):
        stream.write(b"%d " % number + mine * 400 + b"\\n")
        stream.flush()
sys.stdout.buffer.write(mine)
sys.stderr.buffer.write(b"\\r 99%")
"""
MUCH = """
import sys
for number in range(200_000):
    sys.stdout.write(f"{number:>79}\\n")
"""


@pytest.fixture
def out() -> bytearray:
    return bytearray()


@pytest.fixture
def err() -> bytearray:
    return bytearray()


@pytest.fixture
def project(
    scratch: Scratch,
    out: bytearray,
    err: bytearray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Project:
    """A project whose host is a folder and whose containers are processes."""
    scratch.enter(monkeypatch)
    docker = scratch.tools / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    return Project(
        Settings.from_levels([]), tmp_path, tmp_path, stdout=out.extend, stderr=err.extend
    )


def output(data: bytearray, number: int) -> list[bytes]:
    front = f"[{number}] ".encode()
    return [line.removeprefix(front) for line in bytes(data).split(b"\n") if line.startswith(front)]


def test_long_and_binary_lines_are_not_split(
    scratch: Scratch, project: Project, out: bytearray, err: bytearray
) -> None:
    done = run_clients(
        project, LocalTransport(scratch.shell.host()), [sys.executable, "-c", LINES], 4
    )
    assert [each["status"] for each in done.document["clients"]] == [0, 0, 0, 0], bytes(err[-300:])
    mine = bytes(byte for byte in range(256) if byte not in b"\r\n")
    whole = [b"%d " % number + mine * 400 for number in range(30)]
    for number in range(1, 5):
        assert output(out, number) == [*whole, mine]
        first, *lines, progress, last = output(err, number)
        assert (first[:7], lines, progress, last[:11]) == (
            b"starts ",
            whole,
            b" 99%",
            b"ends after ",
        )
    assert len(bytes(out).split(b"\n")) == 4 * 31 + 1
    assert not list((scratch.root / "tmp").iterdir())


def test_client_passes_sixteen_megabytes_of_output(
    scratch: Scratch, project: Project, out: bytearray
) -> None:
    done = run_clients(
        project, LocalTransport(scratch.shell.host()), [sys.executable, "-c", MUCH], 1
    )
    assert done.exit_code == 0
    assert out == b"".join(b"[1] %79d\n" % number for number in range(200_000))
