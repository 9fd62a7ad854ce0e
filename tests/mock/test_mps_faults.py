"""Each of the 22 checks of mps.doctor: an injected fault fails that check alone until repaired."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provision.commands.mps.disable import mps_disable
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.mps.doctor.checks import CHECKS
from provision.mps.doctor.pipeline_checks import ACCELERATOR
from provision.testing import MockHost
from tests.mock.plain_client import connect, eventually
from tests.mock.sharing import program
from tests.mock.workers import Box, running_worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HERE = Targets()
R = "$PROVISION_MOCK_ROOT"
NVIDIA, OWN = f"{R}/var/lib/nvidia", f"{R}/usr/local/nvidia"
JOB = f"--dataflow_service_options={ACCELERATOR}"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A host that every check of the doctor finds healthy, before the first test and after each."""
    with MockHost() as mock, running_worker(mock, tmp_path_factory.mktemp("faults")) as project:
        made = Box(mock, project)
        made.enable()
        assert_healthy(made.run_doctor())
        yield made


@pytest.fixture
def healthy(box: Box) -> Iterator[Box]:
    """The host, which must be healthy again once the test has repaired it."""
    yield box
    if box.run_doctor().exit_code != 0:  # what a client leaves takes a moment to end
        box.enable()
        eventually(lambda: box.run_doctor().exit_code == 0)
        assert_healthy(box.run_doctor())


def assert_healthy(done: TaskResult) -> None:
    assert (done.exit_code, checks_of(done, "fail", "warn", "unknown")) == (0, {}), done.text


def checks_of(done: TaskResult, *statuses: str) -> dict[str, dict[str, Any]]:
    return {check["id"]: check for check in done.document["checks"] if check["status"] in statuses}


# --- how faults are made ---

Inject = Callable[[Box], AbstractContextManager[object]]


def host(do: str, undo: str) -> Inject:
    """A fault by shell source on the host, and the source that repairs it."""

    @contextmanager
    def inject(box: Box) -> Iterator[None]:
        assert box.mock.run(do).status == 0
        try:
            yield
        finally:
            assert box.mock.run(undo).status == 0

    return inject


def inside(do: str, undo: str) -> Inject:
    """A fault by shell source in the container."""
    return host(*(f"sudo docker exec worker sh -c {shlex.quote(source)}" for source in (do, undo)))


def state_file(name: str, change: Callable[[str], str]) -> Inject:
    """A fault by a file of the mock's state: GPU, loaded module, kernel log."""

    @contextmanager
    def inject(box: Box) -> Iterator[None]:
        path = box.mock.faults.folder.parent / name
        before = path.read_text() if path.exists() else None
        path.write_text(change(before or ""))
        try:
            yield
        finally:
            path.unlink() if before is None else path.write_text(before)

    return inject


@contextmanager
def server_fault(box: Box) -> Iterator[None]:
    box.mock.faults.set("mps_server_fault")
    try:
        yield
    finally:
        box.mock.faults.clear("mps_server_fault")


@contextmanager
def daemon_killed(box: Box) -> Iterator[None]:
    box.inside(f'kill -KILL "$(cat "{R}/run/mps/pipe/nvidia-cuda-mps-control.pid")"')
    yield
    box.enable()


@contextmanager
def two_daemons(box: Box) -> Iterator[None]:
    """A daemon whose directory was removed is unreachable, and the next one starts beside it."""
    box.inside(
        f'rm -rf "{R}/run/mps/pipe"; nvidia-cuda-mps-control -d; echo start_server '
        "-uid 0 | nvidia-cuda-mps-control"
    )
    yield
    box.inside(checks_of(box.run_doctor(), "fail")["one-daemon"]["fix"].partition("   (")[0])
    box.enable()


@contextmanager
def start_worker_before_daemon(box: Box) -> Iterator[None]:
    assert mps_disable(box.project, HERE).exit_code == 0
    with program(box.mock, "worker"):
        box.enable()
        yield


@contextmanager
def start_worker_with_gpu_index(box: Box) -> Iterator[None]:
    with program(box.mock, "--env CUDA_VISIBLE_DEVICES=0 worker"):
        yield


@contextmanager
def start_client_of_second_user(box: Box) -> Iterator[None]:
    with (
        program(box.mock, "worker") as first,
        program(box.mock, "--user 1000 worker", starts=None) as second,
    ):
        waits = "from user 1000: Server is not ready"
        assert eventually(lambda: waits in box.inside(f"cat {LOG}"))
        yield
        first.end()
        assert second.started() == 0
    box.inside("echo start_server -uid 0 | nvidia-cuda-mps-control")


CLIENTS = """
import json, os, socket, sys
os.chdir(os.environ["PROVISION_MOCK_ROOT"] + os.environ["CUDA_MPS_PIPE_DIRECTORY"])
space = os.readlink("/proc/self/ns/pid") + os.environ.get("PROVISION_MOCK_PIDNS", "")
held = []
for number in range(int(sys.argv[1])):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect("control")
    request = {"attach": 5000000 + number, "uid": 0, "namespace": space}
    held[-1].sendall(json.dumps(request).encode() + b"\\n")
    held[-1].recv(4096)
print("attached", flush=True)
sys.stdin.read()
"""


def clients(count: int) -> Inject:
    """A fault by so many client connections to the daemon."""

    @contextmanager
    def inject(box: Box) -> Iterator[None]:
        with connect(box.mock) as connection:
            feed, out, _ = connection.exec_command(
                f"sudo docker exec -i worker python -c {shlex.quote(CLIENTS)} {count}"
            )
            assert out.readline() == "attached\n"
            yield
            feed.channel.shutdown_write()
            out.channel.recv_exit_status()

    return inject


def server_command(command: str) -> str:
    return (
        "for server in $(echo get_server_list | nvidia-cuda-mps-control); do echo "
        f'"{command}" | nvidia-cuda-mps-control; done'
    )


LOG = f'"{R}/run/mps/log/control.log"'
XID = "[  101.5] NVRM: Xid (PCI:0000:00:04): 31, pid=4281, name=python3, MMU Fault\n"


@dataclass(frozen=True)
class Fault:
    """A fault, the `status` of its check, and its remedy. `also`: checks that find it too."""

    check: str
    status: str
    fix: str
    inject: Inject
    also: frozenset[str] = frozenset()


FAULTS = {
    "the container is stopped": Fault(
        "container", "fail", "dev.up", host("sudo docker stop worker", "sudo docker start worker")
    ),
    "a device node is gone": Fault(
        "devices",
        "fail",
        "dev.up",
        inside(f"mv {R}/dev/nvidia-uvm {R}/dev/x", f"mv {R}/dev/x {R}/dev/nvidia-uvm"),
    ),
    "the driver's programs may not be executed": Fault(
        "executable",
        "fail",
        "remount,exec",
        inside(f"chmod 0644 {OWN}/bin/nvidia-*", f"chmod 0755 {OWN}/bin/nvidia-*"),
    ),
    "the driver is of another version": Fault(
        "driver", "fail", "vm.provision", state_file("module", lambda _: "570.211.01\n")
    ),
    "the server is not on PATH": Fault(
        "binaries",
        "fail",
        "dev.up",
        inside(
            f"mv {OWN}/bin/nvidia-cuda-mps-server {R}/tmp/x",
            f"mv {R}/tmp/x {OWN}/bin/nvidia-cuda-mps-server",
        ),
    ),
    "libcuda is not found": Fault(
        "binaries",
        "fail",
        "LD_LIBRARY_PATH",
        inside(f"mv {OWN}/lib64/libcuda.so.1 {R}/tmp/x", f"mv {R}/tmp/x {OWN}/lib64/libcuda.so.1"),
    ),
    "the GPU is older than Volta": Fault(
        "gpu", "fail", "7.0 or newer", state_file("gpu", lambda text: text + "GPU_CC=6.1\n")
    ),
    "the mode is prohibited": Fault(
        "compute-mode", "fail", "nvidia-smi -c 0", inside("nvidia-smi -c 2", "nvidia-smi -c 0")
    ),
    "the pipe directory is closed to others": Fault(
        "pipe-directory",
        "fail",
        "chmod 0755 /run/mps",
        inside(f"chmod 0700 {R}/run/mps", f"chmod 0755 {R}/run/mps"),
    ),
    "the log is gone": Fault(
        "log-directory", "warn", "mps.enable", inside(f"mv {LOG} {R}/tmp/x", f"mv {R}/tmp/x {LOG}")
    ),
    "the daemon was killed": Fault("daemon", "fail", "mps.enable", daemon_killed),
    "there are two daemons": Fault("one-daemon", "fail", "kill ", two_daemons),
    "another user's command was refused": Fault(
        "control-log",
        "warn",
        "as root",
        host(
            "echo quit | docker exec -i -u 1000 worker nvidia-cuda-mps-control && "
            "echo set_default_active_thread_percentage 9 | docker exec -i -u 1000 "
            "worker nvidia-cuda-mps-control",
            # written in place: the daemon goes on writing to the file that it opened
            (
                f"sudo docker exec worker sh -c 'sed /privilege/d {LOG} >{R}/tmp/x; cat "
                f"{R}/tmp/x >{LOG}'"
            ),
        ),
    ),
    "the server is in FAULT": Fault("server", "fail", "stop all workers", server_fault),
    "a client of another user waits": Fault(
        "server", "fail", "as one user", start_client_of_second_user
    ),
    "a worker names a device by its index": Fault(
        "environment", "warn", "UUID", start_worker_with_gpu_index
    ),
    "a program began before the daemon": Fault(
        "attachment", "fail", "start it again", start_worker_before_daemon
    ),
    "there are more clients than the server takes": Fault(
        "clients", "warn", "mps.plan", clients(47), also=frozenset({"cpus"})
    ),
    "the share rounds to nothing": Fault(
        "share",
        "fail",
        "thread_percentage",
        inside(
            server_command("set_active_thread_percentage $server 1"),
            server_command("set_active_thread_percentage $server 100"),
        ),
        also=frozenset({"attachment", "daemon"}),
    ),
    "there are more workers than cores": Fault("cpus", "warn", "8 workers or fewer", clients(9)),
    "the kernel tells of a fault": Fault(
        "kernel-log", "warn", "vm.reset", state_file("dmesg", lambda _: XID)
    ),
}
ELSEWHERE = frozenset({"limits", "memory", "pipeline"})
"""Checks whose faults have tests of their own below."""


@pytest.mark.parametrize("name", FAULTS)
def test_fault_fails_only_its_own_check(healthy: Box, name: str) -> None:
    fault = FAULTS[name]
    with fault.inject(healthy):
        done = healthy.run_doctor()
        assert set(checks_of(done, "fail", "warn")) == {fault.check, *fault.also}, done.text
        check = checks_of(done, fault.status)[fault.check]
        assert fault.fix in check["fix"]
        assert check["why"]
        assert done.exit_code == (2 if fault.status == "fail" else 1), done.text
        resting = {spec.id for spec in CHECKS if fault.check in spec.needs}
        assert fault.status == "warn" or resting <= set(checks_of(done, "unknown")), (
            "dependent checks are not run"
        )


def test_every_check_has_a_fault_or_a_reason() -> None:
    assert {fault.check for fault in FAULTS.values()} | ELSEWHERE == {spec.id for spec in CHECKS}


def test_pipeline_check_fails_for_single_process_option(box: Box) -> None:
    assert box.run_doctor(JOB).exit_code == 0
    done = box.run_doctor(JOB, "--experiments=no_use_multiple_sdk_containers")
    assert list(checks_of(done, "fail", "warn", "unknown")) == ["pipeline"]
    assert "remove it" in checks_of(done, "fail")["pipeline"]["fix"]
    assert done.exit_code == 2


def test_doctor_is_not_healthy_with_missing_evidence(box: Box) -> None:
    """Without Python in the image no probe client runs."""
    tools = box.mock.folder / "mock/container-bin"
    for name in ("python", "python3"):
        (tools / name).rename(tools / f"no-{name}")
    try:
        done = box.run_doctor()
    finally:
        for name in ("python", "python3"):
            (tools / f"no-{name}").rename(tools / name)
    assert list(checks_of(done, "fail", "warn", "unknown")) == ["attachment"]
    assert (done.exit_code, done.document["ok"]) == (3, False)


GROWTH = "--env TF_FORCE_GPU_ALLOW_GROWTH=true"


@pytest.mark.parametrize(
    ("options", "check", "fix"),
    [
        (f"{GROWTH} --ulimit nofile=1024:1024", "limits", "nofile=16384"),
        ("--ulimit nofile=16384:16384", "memory", "dev.up"),
    ],
)
def test_doctor_checks_a_container_created_by_hand(
    tmp_path: Path, options: str, check: str, fix: str
) -> None:
    with MockHost() as mock, running_worker(mock, tmp_path, container=False) as project:
        nodes = " ".join(
            f'--device "{R}/dev/{name}"' for name in ("nvidia0", "nvidiactl", "nvidia-uvm")
        )
        volumes = " ".join(
            f'--volume "{NVIDIA}/{name}":/usr/local/nvidia/{name}:ro' for name in ("bin", "lib64")
        )
        mps = (
            "--env CUDA_MPS_PIPE_DIRECTORY=/run/mps/pipe --env "
            "CUDA_MPS_LOG_DIRECTORY=/run/mps/log --env OMP_NUM_THREADS=1"
        )
        paths = (
            "--env PATH=/usr/local/nvidia/bin:/usr/bin:/bin --env "
            "LD_LIBRARY_PATH=/usr/local/nvidia/lib64"
        )
        words = (
            f"--init --shm-size 1g --name worker --entrypoint sleep {nodes} {volumes} "
            f"{mps} {paths} {options} python:3.11 infinity"
        )
        started = mock.run(f"sudo docker run -d {words}")
        assert started.status == 0, started.output
        made = Box(mock, project)
        made.inside(
            f'mkdir -p "{R}/run/mps"; nvidia-cuda-mps-control -d; echo start_server '
            "-uid 0 | nvidia-cuda-mps-control"
        )
        done = made.run_doctor()
        assert list(checks_of(done, "fail", "warn", "unknown")) == [check], done.text
        assert fix in checks_of(done, "warn")[check]["fix"]
        assert done.exit_code == 1
