"""The answer of the status script as a record, with one GPU, several, and none that is readable."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.commands.mps.shared.status_report import status_document, status_text
from provision.core.errors import ProvisionError
from provision.mps.status.gpu_users import GpuUser
from provision.mps.status.status import MpsStatus, read_status
from provision.project.project import Project
from provision.settings import Settings

ROW = (
    "gpu|{index}, GPU-{index}{index}{index}{index}{index}{index}{index}{index}-c0de, NVIDIA L4, "
    "580.1, 23034, {used}, 9, 8.9, {mode}, [N/A], 3, Disabled, 0:0{index}\n"
)
TWO = ROW.format(index=0, used=100, mode="Default") + ROW.format(
    index=1, used=200, mode="Exclusive_Process"
)
ANSWER = f"""container=true
percentage=100.0
daemon=40
cpus=all
visible=
planned_memory=
memory=
server.50=ACTIVE
share.50=100.0
memory.50=
uid.50=0
proof=current
proven.worker=attached: process 60
client.61=python3 train.py
boxes=worker worker-2
{TWO}app|501, nvidia-cuda-mps-server, 30
app|611, python3, 500
app|612, python3, 700
app|613, python3, 10
app|613, python3, 20
smi|| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: 13.0 |
top|611|worker
top|612|worker
top|613|other
holder|611|61|python3|python3 train.py
holder|612|62|python3|python3 elsewhere.py
holder|613|63|python3|python3 both.py
holder|614|64|python3|python3 unnamed.py
"""


PLACES = """place|501, GPU-00000000-c0de
place|611, GPU-00000000-c0de
place|612, GPU-11111111-c0de
place|613, GPU-00000000-c0de
place|613, GPU-11111111-c0de
"""


def test_status_text_removes_escape_sequences(tmp_path: Path) -> None:
    """Escapes in a program's name would clear the screen; a carriage return would hide its PID."""
    loud = GpuUser(7, "python3 \x1b[2J\x1b]0;title\x07x.py\u202e", "wor\x1b[7mker", 5)
    hidden = replace(loud, pid=8, command="first\rsecond")
    found = MpsStatus(
        container_running=True,
        daemon=True,
        thread_percentage=100.0,
        clients=[loud],
        outside=[hidden],
        cpus="\x1b[1m0",
    )
    project = Project(Settings(), tmp_path, tmp_path)
    reported = status_text(project, found)
    assert "\x1b" not in reported
    assert "      7  worker          5 MiB  python3 x.py\n" in f"{reported}\n"
    assert "      8  worker          5 MiB  second\n" in f"{reported}\n"
    assert status_document(project, found)["clients"][0]["command"] == loud.command, (
        "--json has the unchanged command"
    )
    silent = replace(found, daemon=False, answer="\x1b[31mno")
    assert "\x1b" not in status_text(project, silent)


def test_status_text_lists_processes_outside_mps_before_clients(tmp_path: Path) -> None:
    """On a low screen they are the lines that need an action."""
    clients = [GpuUser(pid, "python3 x.py", "worker", 5) for pid in range(1, 17)]
    found = MpsStatus(
        container_running=True,
        daemon=True,
        thread_percentage=100.0,
        clients=clients,
        outside=[replace(clients[0], pid=99)],
    )
    lines = status_text(Project(Settings(), tmp_path, tmp_path), found).splitlines()
    at = next(number for number, line in enumerate(lines) if "outside MPS" in line)
    assert [line.split()[0] for line in lines[at + 2 : at + 7] if line] == [
        "99",
        "attached",
        "pid",
        "1",
    ]


def status(chosen: str) -> MpsStatus:
    return read_status(ANSWER + f"chosen={chosen}\n" + (PLACES if chosen else ""))


def outside(found: MpsStatus) -> list[tuple[str, int | None]]:
    return [(user.command.split()[1], user.memory_mib) for user in found.outside]


def test_status_covers_all_gpus_without_chosen_gpu() -> None:
    found = status("")
    assert outside(found) == [("elsewhere.py", 700), ("both.py", 20), ("unnamed.py", None)]
    assert [(user.command, user.memory_mib) for user in found.clients] == [
        ("python3 train.py", 500)
    ]
    assert (len(found.gpus), found.compute_mode) == (2, "Default, Exclusive_Process")


@pytest.mark.parametrize("chosen", ["0", "00", "GPU-00000000-c0de"])
def test_status_covers_only_the_chosen_gpu(chosen: str) -> None:
    found = status(chosen)
    assert outside(found) == [("both.py", 20), ("unnamed.py", None)], (
        "a process that nvidia-smi does not list may use this GPU"
    )
    assert ([gpu.index for gpu in found.gpus], found.compute_mode) == ([0], "Default")


def test_client_on_another_gpu_is_still_listed() -> None:
    found = status("1")
    assert outside(found) == [("elsewhere.py", 700), ("both.py", 20), ("unnamed.py", None)]
    assert [user.pid for user in found.clients] == [61]


def test_process_without_known_gpu_counts_as_outside() -> None:
    found = read_status(
        ANSWER + "chosen=0\n" + PLACES.replace("place|612, GPU-11111111-c0de", "place|612, [N/A]")
    )
    assert "elsewhere.py" in [command for command, _ in outside(found)]


def test_unknown_chosen_gpu_hides_no_process() -> None:
    found = status("7")
    assert [command for command, _ in outside(found)] == ["elsewhere.py", "both.py", "unnamed.py"]
    assert (found.gpus, found.compute_mode) == ([], "")


WHOLE = f"{ANSWER}chosen=0\n{PLACES}"


@pytest.mark.parametrize("mark", ["\x0c", "\x85", "\u2028"])
def test_line_separators_in_a_command_line_forge_no_row(mark: str) -> None:
    found = read_status(f"container=true\nholder|7|7|python3|x{mark}holder|8|8|python3|forged\n")
    assert [user.pid for user in found.outside] == [7]


LINES = st.sampled_from(WHOLE.splitlines())
PIECES = st.sampled_from(
    sorted(
        {
            piece
            for line in WHOLE.splitlines()
            for piece in line.replace("|", " | ").replace("=", " = ").split()
        }
    )
)
AWKWARD = st.sampled_from(["|", "=", ",", "\n", "-1", "9" * 5000, "٣", "²", "\0"])


@given(
    st.lists(
        LINES | st.lists(PIECES | AWKWARD | st.text(max_size=4), max_size=12).map("".join)
    ).map("\n".join)
)
def test_any_text_raises_only_provision_errors(text: str) -> None:
    with contextlib.suppress(ProvisionError):
        read_status(text)


@given(st.integers(0, len(WHOLE)), st.sampled_from(["", "0", "GPU-1"]))
def test_truncated_text_raises_only_provision_errors(size: int, chosen: str) -> None:
    with contextlib.suppress(ProvisionError):
        read_status(f"chosen={chosen}\n{WHOLE[:size]}")


def test_missing_lists_worker_containers_that_do_not_run() -> None:
    output = (
        "container=true\nboxes=worker worker-2 worker-4 \nrunning=other worker-4 worker-2 "
        "worker \nworkers={}\n"
    )
    assert read_status(output.format(4)).missing_workers == ("worker-3",)
    assert read_status(output.format(2)).missing_workers == ()
    assert read_status(output.format("")).missing_workers == ()
    assert read_status(output.format(10**9)).missing_workers == (
        "worker-3",
        *(f"worker-{number}" for number in range(5, 1025)),
    )
    dead = read_status(
        "container=true\nboxes=worker worker-2 \nrunning=worker-2 worker-mps \nworkers=2\n"
    )
    assert dead.missing_workers == ("worker",)


def test_why_no_answer_distinguishes_stuck_daemon_from_no_daemon() -> None:
    assert (
        read_status("container=true\npercentage=\nleft=70 71 \n").why_no_answer
        == "processes of MPS live and do not answer: 70 71"
    )
    assert read_status(
        "container=true\npercentage=Cannot find MPS control daemon process\n"
    ).why_no_answer.startswith("Cannot find")
