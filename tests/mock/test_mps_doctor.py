"""mps.doctor on the mock: the right check finds each injected fault, and passes once repaired."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.commands.dev.exec import dev_exec
from provision.commands.mps.disable import mps_disable
from provision.commands.mps.doctor import mps_doctor
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.resources import nvidia_smi
from provision.testing import MockHost
from tests.mock.plain_client import connect
from tests.mock.sharing import Shared, program
from tests.mock.workers import Box, running_worker

pytestmark = pytest.mark.slow

HERE = Targets()
R = "$PROVISION_MOCK_ROOT"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    folder = tmp_path_factory.mktemp("doctor")
    with MockHost() as mock, running_worker(mock, folder) as project:
        yield Box(mock, project)


def checks_of(done: TaskResult, status: str) -> dict[str, dict[str, Any]]:
    return {check["id"]: check for check in done.document["checks"] if check["status"] == status}


@pytest.fixture
def enabled(box: Box) -> Box:
    """The same host with MPS enabled."""
    box.enable()
    return box


def test_doctor_fails_one_check_before_mps_is_enabled(box: Box) -> None:
    assert mps_disable(box.project, HERE).exit_code == 0
    box.mock.stats.reset()
    done = box.run_doctor()
    assert box.mock.stats.exchanges == 1
    assert list(checks_of(done, "fail")) == ["daemon"]
    assert "mps.enable" in checks_of(done, "fail")["daemon"]["fix"]
    assert list(checks_of(done, "unknown")) == ["server", "attachment", "clients", "share"]
    assert (done.exit_code, done.document["ok"]) == (2, False)


def test_remedies_name_the_program_that_was_called(box: Box) -> None:
    assert mps_disable(box.project, HERE).exit_code == 0
    done = mps_doctor(replace(box.project, program_argv0="provision"), HERE)
    assert checks_of(done, "fail")["daemon"]["fix"].startswith("provision mps.enable ")
    assert "provision mps.enable" in done.text
    assert "invoke" not in done.text


def test_doctor_output_fits_the_terminal(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = box.run_doctor().text
    monkeypatch.setenv("COLUMNS", "80")
    narrow = box.run_doctor().text
    assert 80 < max(map(len, wide.splitlines())) <= 100
    assert max(map(len, narrow.splitlines())) <= 80


def test_doctor_is_healthy_with_mps_enabled(enabled: Box) -> None:
    done = enabled.run_doctor()
    assert {
        **checks_of(done, "fail"),
        **checks_of(done, "unknown"),
        **checks_of(done, "warn"),
    } == {}, done.text
    assert (done.exit_code, done.document["ok"]) == (0, True)
    assert checks_of(done, "ok")["attachment"]["what"].startswith("attached: process")


def test_listed_process_of_type_c_is_reported(enabled: Box) -> None:
    smi = f"LD_LIBRARY_PATH={R}/var/lib/nvidia/lib64 {R}/var/lib/nvidia/bin/nvidia-smi"
    with (
        program(enabled.mock, "worker"),
        program(enabled.mock, "--env CUDA_MPS_PIPE_DIRECTORY=/nonexistent worker"),
    ):
        types = nvidia_smi.read_process_types(enabled.mock.run(f"sudo sh -c '{smi}'").output)
        assert sorted(types.values()) == ["C", "M+C"]
    with program(enabled.mock, "worker"):
        client = next(
            iter(nvidia_smi.read_process_types(enabled.mock.run(f"sudo sh -c '{smi}'").output))
        )
        assert "attachment" in checks_of(enabled.run_doctor(), "ok")
        reported = enabled.mock.faults.folder.parent / "cuda" / str(client)
        reported.write_text(reported.read_text().replace("M+C", "C"))
        assert (
            checks_of(enabled.run_doctor(), "warn")["attachment"]["what"]
            == f"nvidia-smi gives process {client} the type C"
        )


MANY_QUESTIONS = f"""
log="{R}$CUDA_MPS_LOG_DIRECTORY/control.log"
stamp='2026-11-21 11:50:49.992 Control   462'
pending='NEW CLIENT 695 from user 1000: Server is not ready, push client to pending list'
echo "[$stamp] $pending" >>"$log"
printf '%s\\n' get_server_list get_server_status get_default_active_thread_percentage |
    nvidia-cuda-mps-control >/dev/null
sleep 0.1
said=$(tail -n 8 "$log")
for _ in $(seq 100); do printf '%s\\n' "$said"; done >>"$log"
"""


def test_log_lines_before_many_questions_are_still_read(enabled: Box) -> None:
    """The daemon logs every question and answer of a status."""
    enabled.inside(MANY_QUESTIONS)
    assert "1000" in checks_of(enabled.run_doctor(), "fail")["server"]["what"]
    assert mps_disable(enabled.project, HERE).exit_code == 0


def test_doctor_lists_settings_that_are_not_in_force(enabled: Box) -> None:
    def reported(box: Box) -> dict[str, Any]:
        done = box.run_doctor()
        assert (done.exit_code, list(checks_of(done, "warn"))) == (1, ["daemon"]), done.text
        return checks_of(done, "warn")["daemon"]

    settings = enabled.project.settings
    mps = {
        "thread_percentage": 25,
        "memory_limit": "2G",
        "cpus": "0",
        "gpu": "0",
        "exclusive": True,
    }
    planned = settings.model_copy(update={"mps": settings.mps.model_copy(update=mps)})
    other = replace(enabled, project=replace(enabled.project, settings=planned))
    others = (
        "mps.thread_percentage 100, not 25; mps.memory_limit none, not 2G; mps.cpus "
        "[-,0-9]+, not 0; mps.gpu all, not 0"
    )
    assert re.fullmatch(f"mps.exclusive no, not yes; {others}", reported(other)["why"])
    other.enable()
    assert other.run_doctor().exit_code == 0
    others = (
        "mps.thread_percentage 25, not 100; mps.memory_limit 2G, not none; mps.cpus 0, not "
        "all; mps.gpu GPU-"
    )
    assert reported(enabled)["why"].startswith(f"mps.exclusive yes, not no; {others}")
    assert reported(enabled)["fix"].startswith("invoke mps.enable")


LOADS_JAX = """
import ctypes, mmap, os, pathlib, sys
ctypes.CDLL("libcuda.so.1").cuInit(0)
root = os.environ.get("PROVISION_MOCK_ROOT", "")
library = pathlib.Path(root + "/workspace/site-packages/jaxlib/xla.so")
library.parent.mkdir(parents=True, exist_ok=True)
library.write_bytes(b"x" * 4096)
with library.open("rb") as opened:
    held = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
print("holds", flush=True)
sys.stdin.read()
"""


def test_jax_process_without_preallocate_setting_is_reported(enabled: Box) -> None:
    with connect(enabled.mock) as client:
        feed, out, _ = client.exec_command(
            f"sudo docker exec -i worker python3 -u -c {shlex.quote(LOADS_JAX)}"
        )
        assert out.readline() == "holds\n"
        done = enabled.run_doctor()
        feed.channel.shutdown_write()
        out.channel.recv_exit_status()
    assert "runs JAX without" in checks_of(done, "warn")["memory"]["what"], done.text


def test_pipeline_option_that_leaves_one_process_fails(enabled: Box) -> None:
    done = mps_doctor(
        enabled.project, HERE, options=["--experiments=no_use_multiple_sdk_containers"]
    )
    assert list(checks_of(done, "fail")) == ["pipeline"]


@pytest.mark.slow
def test_two_daemons_of_one_directory_fail(enabled: Box) -> None:
    """A daemon whose directory was removed is unreachable, and the next one starts beside it."""
    enabled.inside(
        f'rm -rf "{R}/run/mps/pipe"; nvidia-cuda-mps-control -d; echo start_server '
        "-uid 0 | nvidia-cuda-mps-control"
    )
    one = checks_of(enabled.run_doctor(), "fail")["one-daemon"]
    assert one["what"].startswith("2 daemons")
    enabled.inside(one["fix"].partition("   (")[0])
    enabled.enable()
    assert enabled.run_doctor().exit_code == 0


def test_stopped_container_fails_and_blocks_dependent_checks(box: Box) -> None:
    assert box.mock.run("sudo docker stop worker").status == 0
    done = box.run_doctor()
    assert box.mock.run("sudo docker start worker").status == 0
    assert list(checks_of(done, "fail")) == ["container"]
    assert len(checks_of(done, "unknown")) == 19


def test_doctor_checks_the_daemon_container_in_containers_topology(tmp_path: Path) -> None:
    with MockHost(cpus=2) as mock:
        shared = Shared(tmp_path, mock, topology="containers")
        assert shared.up().exit_code == 0
        shared.enable()
        done = mps_doctor(shared.project, HERE)
        assert (done.exit_code, checks_of(done, "warn")) == (0, {}), done.text
        assert checks_of(done, "ok")["control-log"]["what"] == "nothing unusual"
        reported = shared.inside(f'cat "{R}$CUDA_MPS_LOG_DIRECTORY/control.log"')
        assert "Starting control daemon" in reported, "every container has the logs"

        shared.inside(
            (
                'for pid in 7 8 9; do echo "Server $pid exited with status 1"; done '
                f'>>"{R}/run/mps/log/control.log"'
            ),
            box="worker-mps",
        )
        assert (
            "7, 8, 9" in checks_of(mps_doctor(shared.project, HERE), "fail")["control-log"]["why"]
        )

        mock.run("sudo docker kill worker-2")
        lost = checks_of(mps_doctor(shared.project, HERE), "fail")["container"]
        assert (lost["what"], lost["fix"]) == ("1 of 2 worker containers runs", "invoke dev.up")
        assert lost["why"] == "not running: worker-2"
        state = shared.status(strict=True)
        assert (state.exit_code, state.document["missing"]) == (1, ["worker-2"])
        assert "1 of 2; not running: worker-2" in state.text
        assert "not tried on this server" not in state.text, (
            "it was tried, with another set of containers"
        )
        assert dev_exec(shared.project, HERE, ["true"], count=3).exit_code == 0
        assert "not running: worker-2" in shared.err.decode()
        shared.enable()
        assert shared.status(strict=True).exit_code == 0
        assert dev_exec(shared.project, HERE, ["true"], count=3).exit_code == 0
        assert "not running" not in shared.err.decode()

        shared.set()  # the settings name the other topology
        done = mps_doctor(shared.project, HERE)
        assert [check["fix"] for check in checks_of(done, "fail").values()] == [
            "invoke mps.enable   (recreates them)"
        ]
        shared.set(topology="containers")
        mock.run("sudo docker rm -f worker-mps")
        assert (
            checks_of(mps_doctor(shared.project, HERE), "fail")["container"]["what"]
            == "the container worker-mps is not running"
        )


COMPAT = (
    "FROM python:3.11\n"
    "ENV PATH=/opt/own/bin:/usr/local/nvidia/bin:/usr/bin:/bin "
    "LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:/usr/local/nvidia/lib64\n"
)


def test_driver_libraries_precede_those_of_the_image(tmp_path: Path) -> None:
    """NVIDIA's images put /usr/local/cuda/compat first, which has a libcuda of its own."""
    ref = "us-docker.pkg.dev/project/repo/compat:1"
    with MockHost() as mock:
        mock.run("mkdir -p ~/context && cat >~/context/Dockerfile", stdin=COMPAT.encode())
        built = mock.run(f"docker build -t {ref} ~/context")
        assert built.status == 0, built.output
        with running_worker(mock, tmp_path, image=ref):
            printed = mock.run(
                "sudo docker exec worker sh -c 'echo $LD_LIBRARY_PATH; echo $PATH'"
            ).output
    libraries, path = (line.split(":") for line in printed.splitlines())
    assert libraries[:2] == ["/usr/local/nvidia/lib64", "/usr/local/cuda/compat/lib"]
    assert [path[0].endswith("/usr/local/nvidia/bin"), path[1].endswith("/opt/own/bin")] == [
        True,
        True,
    ]


def test_image_without_glibc_fails(tmp_path: Path) -> None:
    ref = "us-docker.pkg.dev/project/repo/python:3.11-alpine"
    with MockHost() as mock, running_worker(mock, tmp_path, image=ref) as project:
        done = mps_doctor(project, HERE)
        assert "Alpine" in checks_of(done, "fail")["container"]["fix"]
        assert mock.run("sudo docker exec worker nvidia-cuda-mps-control -v").status == 127
