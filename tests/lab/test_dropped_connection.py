"""Dropped connections: programs on the host and in the container end with them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.host import Lab
from provision.commands.shared.user_program.run import program_script, run_program
from provision.core.errors import Unreachable
from provision.core.job import script_command
from provision.core.model import Facts, State, Status, Transport
from provision.core.resource import Resource
from provision.core.shell import Script, script
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh.connection import connect
from provision.project.project import Project
from provision.settings import Settings
from tests.lab.conftest import Ssh, summary


class Endless(Resource):
    """A resource whose `ensure` never ends."""

    def probe(self) -> Script:
        return script("cat /run/endless 2>/dev/null || true")

    def read(self, text: str) -> State | None:
        return {"text": text} if text else None

    def desired(self, facts: Facts) -> State | None:
        return {"text": "done"}

    def ensure(self, facts: Facts) -> Script | None:
        return script("echo begun\nsleep 54321")


@pytest.fixture
def doomed(lab: Lab, tmp_path: Path) -> Iterator[Transport]:
    """A connection that the test drops."""
    transport = connect(lab.host, known_hosts=KnownHosts(tmp_path / "doomed"), timeout_s=20)
    yield transport
    transport.close()


def sleepers(lab: Lab) -> str:
    return lab.exec_inside("pgrep", "-fx", "sleep 54321", check=False).stdout


def appears(lab: Lab) -> bool:
    return within(10, lambda: sleepers(lab) != "")


def within(seconds: float, true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_engine_commands_end_with_connection(lab: Lab, doomed: Transport) -> None:
    reports = []
    worker = threading.Thread(
        target=lambda: reports.append(Ssh(doomed).converge([Endless(name="endless")]))
    )
    worker.start()
    assert appears(lab)
    doomed.close()
    worker.join(20)
    assert summary(reports[0]) == {"endless": Status.UNKNOWN}
    assert isinstance(reports[0].error, Unreachable)
    assert within(10, lambda: sleepers(lab) == "")


def test_container_commands_end_with_connection(
    lab: Lab, worker_container: str, doomed: Transport
) -> None:
    body = program_script(worker_container, ["sh", "-c", "sleep 54321 & sleep 54321"], "token")
    command, stdin = script_command(body, become="sudo")

    def run() -> None:
        with pytest.raises(Unreachable):
            doomed.exchange(
                command,
                stdin,
                on_stdout=bytearray().extend,
                on_stderr=bytearray().extend,
                timeout_s=60,
            )

    worker = threading.Thread(target=run)
    worker.start()
    assert appears(lab)
    doomed.close()
    worker.join(20)
    assert within(15, lambda: sleepers(lab) == "")
    assert (
        lab.exec_inside(
            "docker", "container", "inspect", "-f", "{{.State.Running}}", worker_container
        ).stdout
        == "true\n"
    )


def piped(
    transport: Transport, worker_container: str, folder: Path, stdin: int, *words: str
) -> tuple[int, bytes]:
    """Run `dev.exec` with a pipe; return status and output."""
    out = bytearray()
    project = Project(Settings(), folder, folder, stdout=out.extend, stderr=out.extend)
    done = run_program(project, transport, worker_container, words, stdin=stdin)
    return done.exit_code, bytes(out)


def test_piped_input_and_its_end_reach_program(
    worker_container: str, doomed: Transport, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 4096 * 8
    (tmp_path / "data").write_bytes(data)
    with (tmp_path / "data").open() as file:
        status, out = piped(doomed, worker_container, tmp_path, file.fileno(), "cat")
    assert (status, out == data) == (0, True)
    reads, writes = os.pipe()
    try:
        os.write(writes, b"some")
        assert piped(
            doomed, worker_container, tmp_path, reads, "sh", "-c", "head -c 1; exit 3"
        ) == (3, b"s")
    finally:
        os.close(reads)
        os.close(writes)


def test_program_reading_pipe_ends_with_connection(
    lab: Lab, worker_container: str, doomed: Transport, tmp_path: Path
) -> None:
    reads, writes = os.pipe()

    def run() -> None:
        with pytest.raises(Unreachable):
            piped(
                doomed, worker_container, tmp_path, reads, "sh", "-c", "sleep 54321 & sleep 54321"
            )

    worker = threading.Thread(target=run)
    worker.start()
    try:
        assert appears(lab)
        doomed.close()
        worker.join(20)
        assert within(15, lambda: sleepers(lab) == "")
    finally:
        os.close(writes)
        os.close(reads)


def test_section_ends_at_timeout(lab: Lab, ssh: Ssh) -> None:
    report = ssh.converge([Endless(name="endless", timeout_s=1.0)])
    assert summary(report) == {"endless": Status.FAILED}
    assert "did not end in time" in str(report.outcomes[0].error)
    assert within(5, lambda: sleepers(lab) == "")


def test_lab_converges_after_power_loss(
    lab: Lab, login: Callable[[], Ssh], recipe: list[Resource]
) -> None:
    assert not login().converge(recipe).failed
    ssh = login()
    reports = []
    worker = threading.Thread(
        target=lambda: reports.append(ssh.converge([Endless(name="endless")]))
    )
    worker.start()
    assert appears(lab)
    lab.stop()
    worker.join(20)
    assert isinstance(reports[0].error, Unreachable)
    lab.start()
    after = login().converge(recipe)
    assert not after.failed
    assert after.count(Status.UNKNOWN) == 0
