"""Programs of the user on a host where MPS is enabled: variables, warnings, and their end."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provision.commands.dev import shell
from provision.commands.dev.exec import dev_exec
from provision.commands.dev.shell import dev_shell
from provision.commands.mps.disable import mps_disable
from provision.commands.shared.result import TaskResult
from provision.core.job import reading_command
from provision.core.model import Host
from provision.core.shell import Script
from provision.project.project import Project
from provision.testing import MockHost
from tests.mock.plain_client import ask, connect
from tests.mock.sharing import HERE, IMAGE, Shared

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

ATTACH = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
status = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
raise SystemExit(status or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
"""
WORDS = ["python", "-c", ATTACH]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A host with two GPUs, and a container whose image sets CUDA_VISIBLE_DEVICES."""
    with MockHost(gpu_count=2) as host:
        (host.state / "registry.json").write_text(
            json.dumps({IMAGE: {"Env": ["CUDA_VISIBLE_DEVICES=1", "PATH=/usr/bin:/bin"]}})
        )
        made = Shared(tmp_path_factory.mktemp("programs"), host)
        assert made.up().exit_code == 0
        yield made


def run_once(box: Shared, words: list[str]) -> TaskResult:
    return dev_exec(box.project, HERE, words)


def run_with_input(box: Shared, words: list[str]) -> TaskResult:
    with Path(os.devnull).open("rb") as nothing:
        return dev_exec(replace(box.project, stdin=nothing.fileno()), HERE, words)


def run_twice(box: Shared, words: list[str]) -> TaskResult:
    return dev_exec(box.project, HERE, words, count=2)


def run_in_shell(box: Shared, words: list[str]) -> TaskResult:
    """Type the words into dev.shell, without a terminal."""
    project = box.project

    def enter(_project: Project, _target: Host, body: Script, *, become: bool) -> int:
        assert become
        with connect(box.host) as client:
            answer = ask(
                client,
                reading_command(body, become="sudo"),
                stdin=f"exec {shlex.join(words)}\n".encode(),
            )
        box.out.extend(answer.out.encode())
        box.err.extend(answer.err.encode())
        return answer.status

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shell, "open_terminal", enter)
        return dev_shell(project, HERE)


Run = Callable[[Shared, list[str]], TaskResult]
EVERY: tuple[Run, ...] = (run_once, run_with_input, run_twice, run_in_shell)


@pytest.mark.parametrize("run", EVERY)
def test_visible_devices_of_the_image_are_hidden_with_chosen_gpu(box: Shared, run: Run) -> None:
    """Clients count the daemon's devices from 0, so an index of the host fails under MPS."""
    box.set(gpu="1")
    box.enable()
    assert run(box, WORDS).exit_code == 0
    assert run(box, ["printenv", "CUDA_VISIBLE_DEVICES"]).exit_code == 1
    box.set()
    assert run(box, ["sh", "-c", "exit $CUDA_VISIBLE_DEVICES"]).exit_code == 1, (
        "without mps.gpu the image's variable applies"
    )


WITHOUT = (
    b"MPS is enabled here, but no daemon runs: CUDA programs run without it; invoke mps.enable\n"
)


def count_warnings(box: Shared, run: Run) -> int:
    """How many warnings one more run prints; it succeeds all the same."""
    before = box.host.stats.exchanges
    assert run(box, ["sh", "-c", "echo out; exit 3"]).exit_code == 3
    assert set(box.out.decode().splitlines()) <= {"out", "[1] out", "[2] out"}
    assert box.host.stats.exchanges - before == (2 if run is run_with_input else 1)
    return box.err.count(WITHOUT)


def kill_daemon(box: Shared) -> None:
    name = "worker" + ("-mps" if box.settings.mps.topology == "containers" else "")
    box.inside(
        (
            'kill -9 "$(cat '
            '"$PROVISION_MOCK_ROOT$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid")"'
        ),
        box=name,
    )


def test_dev_exec_warns_when_enabled_mps_has_no_daemon(box: Shared) -> None:
    box.set()
    assert mps_disable(box.project, HERE, force=True).exit_code == 0
    assert count_warnings(box, run_once) == 0, "MPS is not enabled"
    box.enable()
    assert [count_warnings(box, run) for run in EVERY] == [0, 0, 0, 0]
    kill_daemon(box)
    assert [count_warnings(box, run) for run in EVERY] == [1, 1, 1, 1]
    box.enable()
    assert count_warnings(box, run_once) == 0
    assert box.host.run("docker restart worker").status == 0
    assert count_warnings(box, run_once) == 1
    assert box.up().exit_code == 0
    assert count_warnings(box, run_once) == 0


def test_dev_exec_checks_the_daemon_container_in_containers_topology(box: Shared) -> None:
    box.set(topology="containers")
    assert box.up().exit_code == 0
    box.enable()
    assert count_warnings(box, run_once) == 0
    kill_daemon(box)
    assert count_warnings(box, run_once) == 1
