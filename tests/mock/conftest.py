"""Mock hosts for the tests of the mock itself, and plain clients to drive them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import paramiko
import pytest

from provision.testing import MockCloud, MockHost, background
from tests.emulator.discovery_check import validated
from tests.mock.plain_client import SHELL, connect
from tests.mock.workspace import Workspace


@pytest.fixture(autouse=True)
def judged_traffic() -> Iterator[None]:
    """Validate every request to the Compute Engine of a test, and every response."""
    with pytest.MonkeyPatch.context() as patch, validated(patch):
        yield


@pytest.fixture
def cos() -> Iterator[MockHost]:
    """A running host with one L4."""
    with MockHost(shell=SHELL) as host:
        yield host


@pytest.fixture(scope="module")
def shared() -> Iterator[MockHost]:
    """One host for the tests of a module that change nothing on it."""
    with MockHost(shell=SHELL) as host:
        yield host


@pytest.fixture
def client(cos: MockHost) -> Iterator[paramiko.SSHClient]:
    """A client connected to the host."""
    connected = connect(cos)
    yield connected
    connected.close()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def system_ssh(tmp_path: Path) -> Run:
    """OpenSSH's client without the user's configuration: `run(host, "ssh", words, …)`."""
    if shutil.which("ssh") is None:
        pytest.skip("this machine has no ssh")

    def run(
        host: MockHost, program: str, words: Sequence[str], **options: object
    ) -> subprocess.CompletedProcess[str]:
        where = host.host
        known = tmp_path / "known_hosts"
        known.write_text(f"[{where.address}]:{where.port} {where.host_key}\n")
        port = "-P" if program == "scp" else "-p"
        flags = [
            "-F",
            "none",
            "-o",
            f"UserKnownHostsFile={known}",
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "IdentitiesOnly=yes",
        ]
        flags += ["-o", "LogLevel=ERROR", "-i", str(where.identity), port, str(where.port)]
        keywords: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 30, **options}
        return subprocess.run([program, *flags, *words], check=False, **keywords)

    return run


@pytest.fixture
def workspace(tmp_path: Path, mock_cloud: MockCloud, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    def up(_folder: Path, **_options: object) -> background.MockState:
        return background.MockState(
            os.getpid(), mock_cloud.endpoint, mock_cloud.ssh_ports, background.version()
        )

    monkeypatch.setattr(background, "up", up)
    folder = tmp_path / "my project"
    folder.mkdir()
    return Workspace(folder, tmp_path / "state", mock_cloud)
