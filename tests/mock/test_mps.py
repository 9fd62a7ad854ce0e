"""The mock's MPS control daemon, beyond what tests/mps_rows compares with a real one."""

from __future__ import annotations

import shlex
from contextlib import AbstractContextManager

import pytest

from provision.testing import MockHost, Result
from tests.mock import sharing
from tests.mock.plain_client import eventually
from tests.mock.sharing import Program

pytestmark = pytest.mark.busybox

R = "$PROVISION_MOCK_ROOT"


@pytest.fixture
def box(cos: MockHost) -> MockHost:
    """A host with driver and a container that has it."""
    return with_driver(cos)


def with_driver(cos: MockHost, *, gpus: int = 1) -> MockHost:
    """The host with its driver and a container that has it."""
    cos.run(
        "sudo cos-extensions install gpu; sudo mount --bind /var/lib/nvidia "
        "/var/lib/nvidia; sudo mount -o remount,exec /var/lib/nvidia"
    )
    nodes = " ".join(f'--device "{R}/dev/nvidia{number}"' for number in range(gpus))
    options = (
        f"{nodes} --device /dev/nvidiactl --device /dev/nvidia-uvm "
        f'--volume "{R}"/var/lib/nvidia/bin:/usr/local/nvidia/bin:ro --volume '
        f'"{R}"/var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro '
        "--env LD_LIBRARY_PATH=/usr/local/nvidia/lib64 --env PATH=/usr/local/nvidia/bin:/usr/bin "
        "--env CUDA_MPS_PIPE_DIRECTORY=/run/mps --env CUDA_MPS_LOG_DIRECTORY=/run/log"
    )
    done = cos.run(
        f"docker run -d --init --name dev --entrypoint sleep {options} python:3.11 infinity"
    )
    assert done.status == 0, done.output
    return cos


def inside(host: MockHost, source: str) -> Result:
    """Run shell source in the container; it travels on standard input, unquoted."""
    return host.run("docker exec -i dev sh -s", stdin=source.encode())


def asked(host: MockHost, *lines: str) -> list[str]:
    """What the control tool prints for these commands."""
    done = inside(host, "nvidia-cuda-mps-control <<'END'\n" + "\n".join(lines) + "\nEND\n")
    assert done.status == 0, done.output
    return done.output.splitlines()


def test_server_becomes_active_and_keeps_percentage_of_its_start(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -d")
    assert asked(
        box,
        "set_default_active_thread_percentage 25",
        "start_server -uid 0",
        "set_default_active_thread_percentage 50",
    ) == [
        "25.0",
        "50.0",
    ]
    (server,) = asked(box, "get_server_list")
    assert asked(box, f"get_active_thread_percentage {server}") == ["25.0"]
    assert eventually(lambda: asked(box, f"get_server_status {server}") == ["ACTIVE"])
    assert asked(box, "get_server_status 1", f"get_client_list {server}") == ["Server 1 not found"]
    box.faults.set("mps_server_fault")
    assert asked(box, f"get_server_status {server}") == ["FAULT"]
    assert "NEW SERVER" in inside(box, 'cat "$PROVISION_MOCK_ROOT/run/log/control.log"').output


def test_server_without_library_or_gpu_fails_with_trace_in_log_only(box: MockHost) -> None:
    inside(box, "unset LD_LIBRARY_PATH; nvidia-cuda-mps-control -d")
    assert asked(box, "start_server -uid 0", "get_server_list") == []
    assert (
        "exited with status 1"
        in inside(box, 'cat "$PROVISION_MOCK_ROOT/run/log/control.log"').output
    )
    assert inside(box, 'test -s "$PROVISION_MOCK_ROOT/run/log/server.log"').status == 1


def test_daemon_that_dies_at_once_returns_zero(box: MockHost) -> None:
    box.faults.set("mps_daemon_dies")
    assert inside(box, "nvidia-cuda-mps-control -d").status == 0
    assert inside(box, "echo get_server_list | nvidia-cuda-mps-control").status == 1


def program(
    box: MockHost, words: str = "dev", *, starts: int | None = 0
) -> AbstractContextManager[Program]:
    return sharing.program(box, words, starts=starts)


def test_quit_waits_for_listed_clients(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -d")
    with program(box) as client:
        (server,) = asked(box, "get_server_list")
        assert asked(box, f"get_client_list {server}") == [client.pid]
        assert asked(box, "ps")[1].split()[0] == client.pid
        assert asked(box, f"shutdown_server {server}") == []
        assert (
            "will not shutdown"
            in inside(box, 'cat "$PROVISION_MOCK_ROOT/run/log/control.log"').output
        )
        assert asked(box, "quit -t 0") == []
        assert client.call("cuCtxSynchronize") == 806, "the server of the client was ended"


def test_client_without_daemon_runs_silently(box: MockHost) -> None:
    with program(box) as client:
        assert client.call("cuCtxSynchronize") == 0
        inside(
            box, "nvidia-cuda-mps-control -d; echo start_server -uid 0 | nvidia-cuda-mps-control"
        )
        (server,) = asked(box, "get_server_list")
        assert asked(box, f"get_client_list {server}") == []
        assert client.pid in box.run("docker top dev -eo pid").output.split()
        smi = (
            "env LD_LIBRARY_PATH=/var/lib/nvidia/lib64 "
            "$PROVISION_MOCK_ROOT/var/lib/nvidia/bin/nvidia-smi"
        )
        assert (
            box.run(f"{smi} --query-compute-apps=pid,used_memory --format=csv,noheader").output
            == f"{client.pid}, [N/A]\n"
        )


def test_multiuser_server_serves_all_users_at_once(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -M -d")
    with program(box), program(box, "--user 1000 dev") as second:
        assert second.call("cuCtxSynchronize") == 0


MANY = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
cuda.cuInit(0)
print([cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) for _ in range(50)].count(808))
"""


def test_49th_context_gets_error_808(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -d")
    assert box.run(f"docker exec dev python -c {shlex.quote(MANY)}").output == "2\n"


def test_memory_limit_counts_for_each_client(box: MockHost) -> None:
    """The context of an L4 takes 242 MiB of it, by the estimate of docs/facts.md."""
    inside(
        box,
        (
            "nvidia-cuda-mps-control -d; echo set_default_device_pinned_mem_limit 0 1G | "
            "nvidia-cuda-mps-control"
        ),
    )
    with program(box) as one, program(box) as two:
        assert [
            one.call(f"alloc {400 << 20}"),
            two.call(f"alloc {400 << 20}"),
            one.call(f"alloc {400 << 20}"),
        ] == [0, 0, 2]
        assert one.call("destroy") == 0
        assert one.call("alloc 1") == 201, "the process has no context"


@pytest.mark.parametrize(
    ("limits", "statuses"),
    [
        ({"0": "16M"}, (2, 0)),
        ({"1": "16M"}, (0, 2)),
        ({"1": "16M", "GPU-00000001-c0de-4b1d-8000-000000000001": "4G"}, (0, 0)),
    ],
)
def test_memory_limit_counts_for_each_gpu(
    limits: dict[str, str], statuses: tuple[int, int]
) -> None:
    """The limit that was set last is in force, by the GPU's index or UUID alike."""
    with MockHost(gpu_count=2) as host:
        box = with_driver(host, gpus=2)
        inside(box, "nvidia-cuda-mps-control -d")
        asked(
            box,
            *(
                f"set_default_device_pinned_mem_limit {gpu} {limit}"
                for gpu, limit in limits.items()
            ),
        )
        for number, status in enumerate(statuses):
            with program(box, f"--env CUDA_VISIBLE_DEVICES={number} dev", starts=status):
                pass


@pytest.mark.parametrize(
    ("daemon", "client", "status"),
    [("", "0", 0), ("0", "0", 0), ("0", "1", 100), ("GPU-00000000", "GPU-00000000", 0)],
)
def test_gpu_index_is_remapped_once(box: MockHost, daemon: str, client: str, status: int) -> None:
    inside(box, f"{f'CUDA_VISIBLE_DEVICES={daemon}' if daemon else ''} nvidia-cuda-mps-control -d")
    with program(box, f"--env CUDA_VISIBLE_DEVICES={client} dev", starts=status):
        pass


def test_client_of_another_pid_namespace_is_listed_as_pid_0(box: MockHost) -> None:
    """Measured: it works without the daemon's PID namespace, listed as PID 0, command `?`."""
    options = (
        f'--device "{R}/dev/nvidia0" --device /dev/nvidiactl --device /dev/nvidia-uvm '
        "--env PATH=/usr/local/nvidia/bin:/usr/bin "
        f'--volume "{R}"/var/lib/nvidia/bin:/usr/local/nvidia/bin:ro --volume '
        f'"{R}"/var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro '
        "--env LD_LIBRARY_PATH=/usr/local/nvidia/lib64 --env "
        "CUDA_MPS_PIPE_DIRECTORY=/pipe --volume shared:/pipe --entrypoint sleep"
    )
    box.run(f"docker run -d --init --ipc shareable --name daemon {options} python:3.11 infinity")
    box.run(f"docker run -d --name apart {options} python:3.11 infinity")
    joined = box.run(
        "docker run -d --pid container:daemon --ipc container:daemon --name joined "
        f"{options} python:3.11 infinity"
    )
    assert joined.status == 0, joined.output
    assert box.run("docker exec daemon nvidia-cuda-mps-control -d").status == 0
    with program(box, "apart"), program(box, "joined") as seen:
        listed = box.run(
            "docker exec -i daemon nvidia-cuda-mps-control", stdin=b"ps\n"
        ).output.splitlines()[1:]
        assert [(line.split()[0], line.split()[-1]) for line in listed] == [
            ("0", "?"),
            (seen.pid, listed[1].split()[-1]),
        ]
    box.run("docker stop daemon")
    assert box.run(
        "docker container inspect -f '{{.State.Running}}' joined apart"
    ).output.split() == ["false", "true"]
    assert "non running container" in box.run("docker start joined").output


def test_joining_a_missing_namespace_fails(box: MockHost) -> None:
    started = box.run(
        "docker run -d --name other --ipc container:dev --entrypoint sleep python:3.11 infinity"
    )
    assert "non-shareable IPC" in started.output
    started = box.run(
        "docker run -d --name third --pid container:nobody --entrypoint sleep python:3.11 infinity"
    )
    assert "No such container: nobody" in started.output


def test_exclusive_process_without_daemon_fails_second_program(box: MockHost) -> None:
    box.run(
        "sudo env LD_LIBRARY_PATH=/var/lib/nvidia/lib64 "
        "$PROVISION_MOCK_ROOT/var/lib/nvidia/bin/nvidia-smi -c 3"
    )
    with program(box), program(box, starts=46):
        pass
    inside(box, "nvidia-cuda-mps-control -d")
    with program(box), program(box):
        pass


def test_exclusive_process_refuses_processes_outside_mps(box: MockHost) -> None:
    """The mode binds the server: another process fails, also while the server has no client."""
    box.run(
        "sudo env LD_LIBRARY_PATH=/var/lib/nvidia/lib64 "
        "$PROVISION_MOCK_ROOT/var/lib/nvidia/bin/nvidia-smi -c 3"
    )
    inside(box, "nvidia-cuda-mps-control -d; echo start_server -uid 0 | nvidia-cuda-mps-control")
    stray = "--env CUDA_MPS_PIPE_DIRECTORY=/nonexistent dev"
    with program(box, stray, starts=46), program(box):
        pass
    asked(box, "quit")
    with program(box, stray):
        pass


def test_daemon_ends_with_its_container(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -d; echo start_server -uid 0 | nvidia-cuda-mps-control")
    assert box.run("pgrep -f mps_standi[n]").status == 0
    box.run("docker rm -f dev")
    assert box.run("pgrep -f mps_standi[n]; pgrep -f nvidia-cuda-mps-serve[r]").output == ""
