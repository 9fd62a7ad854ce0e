"""The MPS control daemon of the mock: it answers as the real one was seen to, its traps included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import paramiko
import pytest

from provision.testing import MockHost, Result
from provision.testing.daemon import start_ticks
from tests.mock.driving import connect, eventually

pytestmark = pytest.mark.busybox

R = "$PROVISION_MOCK_ROOT"


@pytest.fixture
def box(cos: MockHost) -> MockHost:
    """A host with driver and a container that has it."""
    cos.run(
        "sudo cos-extensions install gpu; sudo mount --bind /var/lib/nvidia /var/lib/nvidia; sudo mount -o remount,exec /var/lib/nvidia"
    )
    options = (
        f'--device "{R}/dev/nvidia0" --device /dev/nvidiactl --volume "{R}"/var/lib/nvidia/bin:/usr/local/nvidia/bin:ro '
        f'--volume "{R}"/var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro --env LD_LIBRARY_PATH=/usr/local/nvidia/lib64 '
        "--env PATH=/usr/local/nvidia/bin:/usr/bin --env CUDA_MPS_PIPE_DIRECTORY=/run/mps --env CUDA_MPS_LOG_DIRECTORY=/run/log"
    )
    done = cos.run(f"docker run -d --init --name dev --entrypoint sleep {options} python:3.11 infinity")
    assert done.status == 0, done.output
    return cos


def inside(host: MockHost, source: str) -> Result:
    """Run shell source in the container; it comes on standard input, so that nothing needs quoting."""
    return host.run("docker exec -i dev sh -s", stdin=source.encode())


def asked(host: MockHost, *lines: str) -> list[str]:
    """What the control tool prints for these commands."""
    done = inside(host, "nvidia-cuda-mps-control <<'END'\n" + "\n".join(lines) + "\nEND\n")
    assert done.status == 0, done.output
    return done.output.splitlines()


def pipe_files(host: MockHost) -> list[str]:
    return sorted(inside(host, 'ls "$PROVISION_MOCK_ROOT/run/mps"').output.split())


ALL_FILES = ["control", "control_lock", "control_privileged", "log", "nvidia-cuda-mps-control.pid"]


def test_without_a_daemon_the_tool_says_so(box: MockHost) -> None:
    done = inside(box, "echo get_server_list | nvidia-cuda-mps-control")
    assert (done.status, done.output) == (1, "Cannot find MPS control daemon process\n")


def test_the_daemon_answers_nonsense_with_status_zero(box: MockHost) -> None:
    assert inside(box, "nvidia-cuda-mps-control -d").status == 0
    assert pipe_files(box) == ALL_FILES
    assert asked(box, "get_default_active_thread_percentage", "lm", "ps", "get_server_list") == [
        "100.0",
        'Unknown command "lm"',
        "Server not found",
    ]
    assert (
        asked(
            box,
            "set_default_active_thread_percentage 40",
            "set_default_active_thread_percentage 0",
            "set_default_active_thread_percentage 101",
        )
        == ["40.0"] * 3
    )
    assert asked(box, "set_default_device_pinned_mem_limit 0 1500M", "get_default_device_pinned_mem_limit 0") == ["1G"]
    pid = inside(box, 'cat "$PROVISION_MOCK_ROOT/run/mps/nvidia-cuda-mps-control.pid"').output
    assert pid.isdigit()
    assert start_ticks(int(pid))


def test_a_second_daemon_of_the_same_directory_is_refused(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -d")
    done = inside(box, "nvidia-cuda-mps-control -d")
    assert (done.status, done.output) == (1, "An instance of this daemon is already running\n")


def test_quit_leaves_sockets_that_prove_nothing(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -d")
    assert asked(box, "quit") == []
    assert pipe_files(box) == ["control", "control_lock", "control_privileged"]
    assert inside(box, "echo get_server_list | nvidia-cuda-mps-control").status == 1
    assert (
        inside(box, "nvidia-cuda-mps-control -d; echo get_default_active_thread_percentage | nvidia-cuda-mps-control").output == "100.0\n"
    )


@pytest.mark.parametrize("number", ["TERM", "KILL"])
def test_a_killed_daemon_leaves_every_file_and_the_next_one_works(box: MockHost, number: str) -> None:
    inside(
        box,
        "nvidia-cuda-mps-control -d; printf 'set_default_active_thread_percentage 10\\nstart_server -uid 0\\n' | nvidia-cuda-mps-control",
    )
    server = asked(box, "get_server_list")[0]
    inside(box, f'kill -{number} "$(cat "$PROVISION_MOCK_ROOT/run/mps/nvidia-cuda-mps-control.pid")"')
    assert eventually(lambda: inside(box, "echo get_server_list | nvidia-cuda-mps-control").status == 1)
    assert pipe_files(box) == ALL_FILES
    assert eventually(lambda: not start_ticks(int(server))), "the server dies with its daemon"
    assert inside(box, "nvidia-cuda-mps-control -d").status == 0
    assert asked(box, "get_default_active_thread_percentage") == ["100.0"]


def test_a_server_becomes_active_and_keeps_the_percentage_of_its_start(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -d")
    assert asked(box, "set_default_active_thread_percentage 25", "start_server -uid 0", "set_default_active_thread_percentage 50") == [
        "25.0",
        "50.0",
    ]
    (server,) = asked(box, "get_server_list")
    assert asked(box, f"get_active_thread_percentage {server}") == ["25.0"]
    assert eventually(lambda: asked(box, f"get_server_status {server}") == ["ACTIVE"])
    assert asked(box, "get_server_status 1", f"get_client_list {server}") == ["Server not found"]
    box.faults.set("mps_server_fault")
    assert asked(box, f"get_server_status {server}") == ["FAULT"]
    assert "NEW SERVER" in inside(box, 'cat "$PROVISION_MOCK_ROOT/run/log/control.log"').output


def test_without_library_or_gpu_every_server_dies_and_only_the_log_says_so(box: MockHost) -> None:
    inside(box, "unset LD_LIBRARY_PATH; nvidia-cuda-mps-control -d")
    assert asked(box, "start_server -uid 0", "get_server_list") == []
    assert "exited with status 1" in inside(box, 'cat "$PROVISION_MOCK_ROOT/run/log/control.log"').output
    assert inside(box, 'test -s "$PROVISION_MOCK_ROOT/run/log/server.log"').status == 1


def test_a_daemon_that_dies_at_once_has_returned_zero(box: MockHost) -> None:
    box.faults.set("mps_daemon_dies")
    assert inside(box, "nvidia-cuda-mps-control -d").status == 0
    assert inside(box, "echo get_server_list | nvidia-cuda-mps-control").status == 1


def test_directories_that_cannot_be(box: MockHost) -> None:
    missing = inside(box, "CUDA_MPS_PIPE_DIRECTORY=/run/a/b nvidia-cuda-mps-control -d")
    assert missing.status == 1
    assert "Cannot access CUDA_MPS_PIPE_DIRECTORY=/run/a/b" in missing.output
    assert inside(box, f"CUDA_MPS_PIPE_DIRECTORY=/run/{'x' * 90} nvidia-cuda-mps-control -d") == (1, "")
    no_log = inside(box, "CUDA_MPS_LOG_DIRECTORY=/run/a/b nvidia-cuda-mps-control -d")
    assert no_log.status == 0
    assert "logging is disabled" in no_log.output


def test_another_user_may_ask_but_not_change(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -d")
    other = "docker exec -i -u 1000 dev nvidia-cuda-mps-control"
    assert box.run(other, stdin=b"get_default_active_thread_percentage\nquit\n") == (0, "100.0\nInsufficient privileges\n")


def test_an_environment_out_of_bounds_is_logged_and_ignored(box: MockHost) -> None:
    inside(box, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=150 nvidia-cuda-mps-control -d")
    assert asked(box, "get_default_active_thread_percentage") == ["100.0"]
    assert "should be between (0.0, 100.0]" in inside(box, 'cat "$PROVISION_MOCK_ROOT/run/log/control.log"').output


CLIENT = """\
import json, os, socket, sys, time
os.chdir(os.environ["PROVISION_MOCK_ROOT"] + "/run/mps")
held = socket.socket(socket.AF_UNIX)
held.connect("control")
held.sendall(json.dumps({"attach": os.getpid()}).encode() + b"\\n")
print(json.loads(held.recv(1000))["text"], os.getpid(), flush=True)
print(held.recv(1000).decode(), flush=True)
"""


@contextmanager
def attached(box: MockHost) -> Iterator[tuple[str, paramiko.ChannelFile]]:
    """A program of the container that holds a connection as an MPS client does: its process, and what it prints."""
    with connect(box) as client:
        feed, out, _ = client.exec_command("docker exec -i dev python -")
        feed.write(CLIENT)
        feed.channel.shutdown_write()
        state, pid = out.readline().split()
        assert state == "ACTIVE"
        yield pid, out


def test_clients_are_listed_and_hold_up_a_quit(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -d")
    with attached(box) as (pid, _):
        (server,) = asked(box, "get_server_list")
        assert asked(box, f"get_client_list {server}") == [pid]
        assert asked(box, "ps")[1].split()[0] == pid
        assert "will not shutdown" in asked(box, f"shutdown_server {server}")[0]
        forced = inside(box, "echo quit -t 0 | nvidia-cuda-mps-control")
        assert forced.status == 1, "a quit that had to force is no success"


def test_a_terminated_client_is_told_so(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -d")
    with attached(box) as (pid, out):
        (server,) = asked(box, "get_server_list")
        assert asked(box, f"terminate_client {server} {pid}") == ["0"]
        assert "810" in out.readline()
        assert asked(box, f"get_client_list {server}", f"terminate_client {server} {pid}") == ["1"]
        assert asked(box, "quit") == []


def test_the_daemon_ends_with_its_container(box: MockHost) -> None:
    inside(box, "nvidia-cuda-mps-control -d; echo start_server -uid 0 | nvidia-cuda-mps-control")
    assert box.run("pgrep -f mps_standi[n]").status == 0
    box.run("docker rm -f dev")
    assert box.run("pgrep -f mps_standi[n]; pgrep -f nvidia-cuda-mps-serve[r]").output == ""
