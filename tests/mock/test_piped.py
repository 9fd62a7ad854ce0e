"""Standard input of `dev.exec` and `dev.run`, and the end of programs that read it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provision.commands.dev.exec import dev_exec
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import HostError, Unreachable, UsageError
from provision.project.project import Project
from provision.testing import MockHost
from tests.mock.workers import running_worker

HERE = Targets(host="dev")
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def mock() -> Iterator[MockHost]:
    with MockHost() as host:
        yield host


@pytest.fixture(scope="module")
def worker(mock: MockHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("project")
    with running_worker(mock, folder) as project:
        yield project


@pytest.fixture
def pipe() -> Iterator[tuple[int, Callable[[bytes], None], Callable[[], None]]]:
    """The reading end of a pipe, a function that writes into it, and one that closes it."""
    reading, writing = os.pipe()
    is_open = [True]

    def end() -> None:
        if is_open.pop() if is_open else False:
            os.close(writing)

    yield reading, lambda data: _write_all(writing, data), end
    end()
    os.close(reading)


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def ran(worker: Project, stdin: int | None, *words: str) -> tuple[TaskResult, bytes]:
    out = bytearray()
    project = replace(worker, stdin=stdin, stdout=out.extend, stderr=out.extend)
    return dev_exec(project, HERE, words), bytes(out)


Pipe = tuple[int, Callable[[bytes], None], Callable[[], None]]


def running(mock: MockHost, mark: str) -> bool:
    """True where `sleep MARK` runs on the host."""
    _, text = mock.run_as_root(["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"])
    return f"sleep {mark}" in text


def gone(mock: MockHost, mark: str) -> bool:
    deadline = time.monotonic() + 15
    while running(mock, mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.slow
def test_piped_input_arrives_unchanged(worker: Project, pipe: Pipe) -> None:
    reads, write, end = pipe
    data = bytes(range(256)) * 4096 * 3
    writer = threading.Thread(target=lambda: (write(data), end()))
    writer.start()
    done, out = ran(worker, reads, "cat")
    writer.join()
    assert (done.exit_code, len(out)) == (0, len(data))
    assert out == data


def test_program_reads_file_to_its_end(worker: Project, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\ntwo\n")
    with (tmp_path / "in").open() as file:
        done, out = ran(worker, file.fileno(), "sh", "-c", "wc -l; exit 7")
    assert (done.exit_code, out.split()) == (7, [b"2"])


def test_output_is_streamed_while_input_is_open(worker: Project, pipe: Pipe) -> None:
    reads, write, end = pipe
    answered = threading.Event()

    def listen(data: bytes) -> None:
        if b"got a" in data:
            answered.set()

    project = replace(worker, stdin=reads, stdout=listen)
    thread = threading.Thread(
        target=dev_exec, args=(project, HERE, ["sh", "-c", "read x; echo got $x; read y"])
    )
    thread.start()
    write(b"a\n")
    assert answered.wait(20)
    end()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "words", [("sh", "-c", "exit 3"), ("sh", "-c", "head -c 1 >/dev/null; exit 3")]
)
def test_program_ends_while_pipe_stays_open(
    worker: Project, pipe: Pipe, words: tuple[str, ...]
) -> None:
    pipe[1](b"some")
    assert ran(worker, pipe[0], *words)[0].exit_code == 3


def test_program_without_input_reads_end_of_file(worker: Project) -> None:
    assert ran(worker, None, "cat") == (TaskResult({"status": 0, "failed_in": None}), b"")


def test_lost_connection_ends_reading_program(worker: Project, mock: MockHost, pipe: Pipe) -> None:
    def cut() -> None:
        while not running(mock, "1077"):
            time.sleep(0.05)
        mock.server.drop_connections()

    cutter = threading.Thread(target=cut)
    cutter.start()
    with pytest.raises(Unreachable):
        ran(worker, pipe[0], "sleep", "1077")
    cutter.join()
    assert gone(mock, "1077")


def test_ctrl_c_ends_reading_program(worker: Project, mock: MockHost, pipe: Pipe) -> None:
    def interrupt(data: bytes) -> None:
        del data
        raise KeyboardInterrupt

    project = replace(worker, stdin=pipe[0], stdout=interrupt)
    with pytest.raises(KeyboardInterrupt):
        dev_exec(project, HERE, ["sh", "-c", "echo on; sleep 1078"])
    assert gone(mock, "1078")


@pytest.mark.slow
def test_background_process_outlives_its_program(
    worker: Project, mock: MockHost, pipe: Pipe
) -> None:
    """Only the processes of an interrupted program are ended."""
    ran(worker, pipe[0], "sh", "-c", "sleep 1079 >/dev/null 2>&1 </dev/null &")
    time.sleep(3)
    assert running(mock, "1079")


def test_oversized_command_with_input_is_refused(worker: Project, pipe: Pipe) -> None:
    with pytest.raises(UsageError, match="too long"):
        ran(worker, pipe[0], "echo", "x" * 120_000)


def test_stopped_container_is_reported(worker: Project, mock: MockHost, pipe: Pipe) -> None:
    mock.run("sudo docker stop worker")
    with pytest.raises(HostError, match="the worker container is not running"):
        ran(worker, pipe[0], "cat")
