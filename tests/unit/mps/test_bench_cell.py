"""One cell of a benchmark in a real shell, with stand-ins of control tool and nvidia-smi."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from provision.commands.shared.user_program.run import end_text
from provision.mps.bench.cell import Cell, CellFailed, Sample, read_cell
from provision.mps.bench.cell_script import cell_on_host_script, cell_words

# A daemon is a file; its clients are the processes whose numbers are in another file.
CONTROL = """#!/bin/sh
alive=$CUDA_MPS_PIPE_DIRECTORY/alive
pid_file=$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid
if test "${1-}" = -d; then
    test -z "${FAKE_NO_DAEMON-}" || { echo "no start: $FAKE_NO_DAEMON" ; exit 1; }
    echo 100 >"$alive"
    echo "daemon ${CUDA_VISIBLE_DEVICES-unset}" >>"$FAKE_LOG"
    test -z "${FAKE_STAYS-}" || { sleep 614.5 & echo "$!" >"$pid_file"; }
    exit 0
fi
read -r command argument rest
test -e "$alive" || { echo 'Cannot find MPS control daemon process' >&2; exit 1; }
case $command in
    get_default_active_thread_percentage) cat "$alive" ;;
    set_default_active_thread_percentage) echo "$argument" | tee "$alive" >>"$FAKE_LOG" ;;
    get_server_list) echo 4242 ;;
    get_server_status) echo "${FAKE_STATE-ACTIVE}" ;;
    get_client_list) cat "$CUDA_MPS_PIPE_DIRECTORY/clients" ;;
    quit) test -n "${FAKE_STAYS-}" || rm -f "$alive" "$pid_file" ;;
esac
"""
SMI = """#!/bin/sh
echo "smi $*" >>"$FAKE_LOG"
case $* in
    *lms*) while :; do echo 900; sleep 0.05; done ;;
    *) echo 100 ;;
esac
"""
# Attaches, reports that it is ready, waits, works.
PROGRAM = """#!/bin/sh
echo "$$" >>"${FAKE_STRAY-$CUDA_MPS_PIPE_DIRECTORY}/clients"
client=$PROVISION_BENCH_CLIENT
test "$client" != "${FAKE_HANGS-}" || { printf 'importing\nloading the model\n'; sleep 612.5; }
test "$client" != "${FAKE_FAILS-}" || { echo 'CUDA error 2: out of memory'; exit 3; }
echo "$$" >"$PROVISION_BENCH_READY"
: <"$PROVISION_BENCH_GO"
began=$(date +%s.%N)
sleep 0.2
echo "$began $(date +%s.%N)" >"$PROVISION_BENCH_TIMES"
devices=${CUDA_VISIBLE_DEVICES-unset}
echo "client $client of $PROVISION_BENCH_STEPS steps, $OMP_NUM_THREADS threads, devices $devices"
"""
# `docker exec` with its variables. FAKE_GONE: a container that is absent; FAKE_KILLED: one whose
# shell is killed.
DOCKER = """#!/bin/sh
test "$1" = exec || { echo true; exit 0; }
shift
while test "${1#--}" != "$1"; do
    test "$1" != --env || export "$2"
    shift 2
done
box=$1
shift
test "$box" != "${FAKE_GONE-}" || { echo "Error: No such container: $box" >&2; exit 1; }
echo "box $box ${PROVISION_BENCH-}" >>"$FAKE_LOG"
test "$box" != "${FAKE_KILLED-}" || exit 137
exec "$@"
"""
PLAIN = """#!/bin/sh
echo "$$" >>"$CUDA_MPS_PIPE_DIRECTORY/clients"
sleep 0.5
"""


class Container:
    """A folder of programs, and the folder where cells run."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.folder = folder / "cell"
        for name, text in {
            "nvidia-cuda-mps-control": CONTROL,
            "nvidia-smi": SMI,
            "program": PROGRAM,
            "plain": PLAIN,
            "docker": DOCKER,
        }.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def run(
        self, cell: Cell, shell: str = "sh", workers: Sequence[str] = (), **environment: str
    ) -> str:
        """What the cell prints; with `workers`, as the host runs it."""
        words = (
            [shell, "-c", on_host(cell, self.folder, workers)]
            if workers
            else cell_words(cell, str(self.folder))
        )
        words[0] = shell
        env = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "FAKE_LOG": str(self.bin / "log"),
            "CUDA_VISIBLE_DEVICES": "0",
            **environment,
        }
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert not self.folder.exists(), "a cell removes its folder"
        return done.stdout

    def sample(
        self, cell: Cell, shell: str = "sh", workers: Sequence[str] = (), **environment: str
    ) -> Sample:
        return read_cell(self.run(cell, shell, workers, **environment), cell, "test")

    def logged(self, beginning: str) -> list[str]:
        return [
            line
            for line in (self.bin / "log").read_text().splitlines()
            if line.startswith(beginning)
        ]


WORKERS = ("worker", "worker-2")


def on_host(cell: Cell, folder: Path, workers: Sequence[str] = WORKERS) -> str:
    """The script of a cell whose clients have containers of their own."""
    return cell_on_host_script(
        cell,
        str(folder),
        container="daemon",
        workers=workers,
        directory="/",
        token=folder.parent.name,
        end=end_text(),
    ).render()


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def cell(
    clients: int = 3,
    percentage: int | None = 100,
    *,
    program: str = "program",
    cores: tuple[str, ...] = (),
    ready_s: int = 60,
    gpu: str = "",
) -> Cell:
    return Cell(
        clients=clients,
        percentage=percentage,
        steps=7,
        threads=2,
        cores=cores or ("-",) * clients,
        words=(program,),
        program_waits=program == "program",
        ready_s=ready_s,
        gpu=gpu,
    )


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_clients_start_together_and_are_all_attached(container: Container, shell: str) -> None:
    found = container.sample(cell(), shell)
    assert found.attached == {0, 1, 2}
    assert [end.status for end in found.ends] == [0, 0, 0]
    assert max(end.began_s for end in found.ends) - min(end.began_s for end in found.ends) < 0.15
    assert 0.15 < found.makespan_s < 5.0
    assert found.peak_memory_mib == 800
    assert found.ends[1].last_line == "client 1 of 7 steps, 2 threads, devices unset"


def test_thread_percentage_is_set_once(container: Container) -> None:
    container.sample(cell(percentage=12))
    assert container.logged("12") == ["12"]


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_cells_with_and_without_mps_use_the_chosen_gpu(container: Container, shell: str) -> None:
    """Clients of MPS number the devices of the daemon, so they get no index of their own."""
    with_mps = container.sample(cell(gpu="GPU-1b"), shell)
    assert [end.last_line.split()[-1] for end in with_mps.ends] == ["unset"] * 3
    assert container.logged("daemon") == ["daemon GPU-1b"]
    without = container.sample(cell(percentage=None, gpu="GPU-1b"), shell)
    assert [end.last_line.split()[-1] for end in without.ends] == ["GPU-1b"] * 3
    assert all(
        line.startswith("smi -i GPU-1b --query-gpu=memory.used ")
        for line in container.logged("smi")
    )
    assert len(container.logged("smi")) == 4


def test_single_gpu_sets_no_visible_devices(container: Container) -> None:
    container.sample(cell())
    assert container.logged("daemon") == ["daemon unset"]
    assert not any("-i" in line.split() for line in container.logged("smi"))


def test_cell_without_mps_has_no_attached_clients(container: Container) -> None:
    found = container.sample(cell(percentage=None))
    assert found.attached == frozenset()


def test_client_of_other_daemon_fails_cell_without_mps(
    container: Container, tmp_path: Path
) -> None:
    """A program may find the daemon of `mps.enable` with any pipe directory in its variables."""
    daemon = tmp_path / "daemon"
    daemon.mkdir()
    (daemon / "alive").write_text("100\n")
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon)}
    assert container.sample(cell(percentage=None), **own).attached == frozenset(), (
        "a daemon without clients"
    )
    with pytest.raises(CellFailed, match="clients used MPS in a cell without it") as caught:
        container.sample(cell(percentage=None), **own, FAKE_STRAY=str(daemon))
    assert caught.value.why.startswith("a daemon listed client 0, 1, 2: ")
    assert caught.value.fix == "invoke mps.disable, then invoke mps.bench"


@pytest.mark.slow
def test_attachment_of_plain_program_is_detected_while_it_runs(
    container: Container, tmp_path: Path
) -> None:
    (tmp_path / "alive").write_text("100\n")
    (container.bin / "stray").write_text(
        '#!/bin/sh\necho "$$" >>"$FAKE_STRAY/clients"\nsleep 1.2\n'
    )
    (container.bin / "stray").chmod(0o755)
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path), "FAKE_STRAY": str(tmp_path)}
    with pytest.raises(CellFailed, match="clients used MPS in a cell without it"):
        container.sample(cell(clients=1, percentage=None, program="stray"), **environment)


@pytest.mark.slow
def test_daemon_that_does_not_quit_is_killed(
    container: Container,
) -> None:
    """Without its folder it could not be reached, and would hold the GPU in later cells."""
    container.sample(cell(clients=1), FAKE_STAYS="1")
    assert (
        subprocess.run(
            ["pgrep", "-f", "sleep 614.5"], check=False, stdout=subprocess.DEVNULL
        ).returncode
        == 1
    )


def test_client_outside_mps_fails_the_cell(container: Container) -> None:
    """The silent fall-back: the program runs, and only the daemon's list shows it."""
    (container.bin / "nvidia-cuda-mps-control").write_text(
        CONTROL.replace(
            'cat "$CUDA_MPS_PIPE_DIRECTORY/clients"', 'head -n 2 "$CUDA_MPS_PIPE_DIRECTORY/clients"'
        )
    )
    with pytest.raises(CellFailed, match="not every client was attached") as caught:
        container.sample(cell())
    assert "never listed client" in caught.value.why


def test_client_failing_before_barrier_does_not_block_others(container: Container) -> None:
    with pytest.raises(CellFailed, match="1 of 3 clients failed") as caught:
        container.sample(cell(), FAKE_FAILS="1")
    assert caught.value.why == "client 1: status 3  CUDA error 2: out of memory"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_client_hanging_before_barrier_is_quoted_and_ended(
    container: Container, shell: str
) -> None:
    with pytest.raises(CellFailed, match="the cell could not run") as caught:
        container.sample(cell(ready_s=1), shell, FAKE_HANGS="1")
    assert caught.value.why.splitlines() == [
        "not every client was ready within 1 s",
        "client 1: importing",
        "client 1: loading the model",
    ]
    assert processes(container) == [], "the next cell has the GPU alone"


def processes(container: Container) -> list[str]:
    """Command lines of what still runs of a cell."""
    mark = f"PROVISION_BENCH={container.folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
    return found


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("program", ["program", "plain"])
def test_clients_are_distributed_over_worker_containers(
    container: Container, shell: str, program: str
) -> None:
    found = container.sample(cell(program=program), shell, WORKERS)
    assert found.attached == {0, 1, 2}
    assert [end.status for end in found.ends] == [0, 0, 0]
    assert max(end.began_s for end in found.ends) - min(end.began_s for end in found.ends) < 0.3
    assert found.peak_memory_mib == 800
    boxes = sorted(line.split()[1] for line in container.logged("box") if len(line.split()) == 3)
    assert boxes == ["worker", "worker", "worker-2"]
    assert container.logged("daemon") == ["daemon unset"]


def test_separate_containers_get_number_cores_and_gpu(container: Container) -> None:
    (container.bin / "taskset").write_text(
        '#!/bin/sh\necho "cores $PROVISION_BENCH_CLIENT $2" >>"$FAKE_LOG"\nshift 2\nexec "$@"\n'
    )
    (container.bin / "taskset").chmod(0o755)
    found = container.sample(
        cell(clients=2, percentage=None, cores=("0,1", "2,3"), gpu="GPU-1b"), "sh", WORKERS
    )
    assert sorted(container.logged("cores")) == ["cores 0 0,1", "cores 1 2,3"]
    assert [end.last_line for end in found.ends] == [
        f"client {number} of 7 steps, 2 threads, devices GPU-1b" for number in range(2)
    ]
    assert found.attached == frozenset()


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("FAKE_GONE", "client 1: status 1  Error: No such container: worker-2"),
        ("FAKE_KILLED", "client 1: status 137  "),
    ],
)
def test_separate_container_that_cannot_start_is_reported(
    container: Container, shell: str, fault: str, why: str
) -> None:
    environment = {fault: "worker-2"}
    with pytest.raises(CellFailed, match="1 of 3 clients failed") as caught:
        container.sample(cell(), shell, WORKERS, **environment)
    assert caught.value.why == why
    assert processes(container) == []


@pytest.mark.slow
def test_client_hanging_in_separate_container_is_ended(container: Container) -> None:
    with pytest.raises(CellFailed, match="the cell could not run") as caught:
        container.sample(cell(ready_s=2), "sh", WORKERS, FAKE_HANGS="1")
    assert caught.value.why.splitlines()[1:] == [
        "client 1: importing",
        "client 1: loading the model",
    ]
    assert processes(container) == []


def test_failed_daemon_starts_no_client_in_separate_containers(container: Container) -> None:
    with pytest.raises(CellFailed, match="could not run"):
        container.sample(cell(), "sh", WORKERS, FAKE_NO_DAEMON="out of luck")
    assert [line.split()[1:] for line in container.logged("box")] == [["daemon"]]


# Starts the script, signals it once three programs run, and prints its exit status.
CUT = """
"$1" -c "$2" >/dev/null &
host=$!
until test "$(grep -c endless "$FAKE_LOG")" -eq 3; do sleep 0.05; done
kill -TERM "$host"
wait "$host"
echo "ended $?"
"""


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_sigterm_ends_clients_in_separate_containers(container: Container, shell: str) -> None:
    """Ctrl-C and a lost connection end the script; `docker exec` hands no signal on."""
    (container.bin / "endless").write_text(
        '#!/bin/sh\necho "endless $$" >>"$FAKE_LOG"\nexec sleep 613.5\n'
    )
    (container.bin / "endless").chmod(0o755)
    words = ["sh", "-c", CUT, "cut", shell, on_host(cell(program="endless"), container.folder)]
    env = {"PATH": f"{container.bin}:{os.environ['PATH']}", "FAKE_LOG": str(container.bin / "log")}
    done = subprocess.run(
        words, env=env, stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert (done.stdout, processes(container), container.folder.exists()) == (
        "ended 143\n",
        [],
        False,
    )


def test_error_quotes_four_late_clients_at_most() -> None:
    text = (
        "".join(f"late {client} it printed nothing\n" for client in range(9))
        + "failed not every client was ready within 9 s\n"
    )
    with pytest.raises(CellFailed) as caught:
        read_cell(text, cell(clients=9), "test")
    assert caught.value.why.splitlines()[-2:] == ["client 3: it printed nothing", "and 5 more"]


def test_cell_ends_when_all_clients_fail(container: Container) -> None:
    with pytest.raises(CellFailed, match="1 of 1 clients failed"):
        container.sample(cell(clients=1), FAKE_FAILS="0")


def test_program_without_barrier_is_held_at_start(container: Container) -> None:
    found = container.sample(cell(program="plain"))
    assert found.attached == {0, 1, 2}
    assert 0.45 < found.makespan_s < 5.0


@pytest.mark.slow
def test_clients_attached_one_after_another_all_count(container: Container) -> None:
    """A short program ends before the next one has its context: being listed once is enough."""
    (container.bin / "brief").write_text(
        """#!/bin/sh
sleep "$PROVISION_BENCH_CLIENT"
echo "$$" >"$CUDA_MPS_PIPE_DIRECTORY/clients"
sleep 0.9
"""
    )
    (container.bin / "brief").chmod(0o755)
    assert container.sample(cell(clients=2, program="brief")).attached == {0, 1}


@pytest.mark.parametrize("last", ["loss 0.3", "1 of 2\\rloss 0.3", "1 of 2\\rloss 0.3\\r"])
def test_last_line_without_newline_is_read(container: Container, last: str) -> None:
    (container.bin / "open").write_text(f"#!/bin/sh\nprintf '{last}'\n")
    (container.bin / "open").chmod(0o755)
    found = container.sample(cell(clients=2, percentage=None, program="open"))
    assert [end.last_line for end in found.ends] == ["loss 0.3", "loss 0.3"]


@pytest.mark.parametrize("mark", ["\x0c", "\x1c", "\x85", "\u2028", "\x0b"])
def test_program_output_cannot_forge_cell_output(mark: str) -> None:
    """Python ends a line at more characters than a shell does."""
    values = "idle 0\ngo 5\nattached \npeak 9\nclient 0 6 7 0\n"
    text = f"{values}printed 0 loss{mark}failed forged\ndone\n"
    assert read_cell(text, cell(clients=1, percentage=None), "test").ends[0].status == 0


def test_failed_daemon_start_is_quoted(container: Container) -> None:
    with pytest.raises(CellFailed, match="could not run") as caught:
        container.sample(cell(), FAKE_NO_DAEMON="out of luck")
    assert caught.value.why == "the daemon did not start: no start: out of luck"


def test_client_is_pinned_to_its_cores(container: Container) -> None:
    (container.bin / "taskset").write_text(
        '#!/bin/sh\necho "$2" >>"$FAKE_LOG"\nshift 2\nexec "$@"\n'
    )
    (container.bin / "taskset").chmod(0o755)
    container.sample(cell(clients=2, cores=("0,1", "2,3")))
    assert sorted([*container.logged("0,"), *container.logged("2,")]) == ["0,1", "2,3"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "go nonsense\ndone",
        "idle 5\nclient 0 1 2 0\ndone",
        "client x y z\ngo 1\ndone\nprinted\nprinted 1",
    ],
)
def test_invalid_cell_output_is_refused(text: str) -> None:
    with pytest.raises(CellFailed):
        read_cell(text, cell(clients=1, percentage=None), "test")


HUGE = "9" * 5000


@pytest.mark.parametrize(
    "text",
    [
        f"go 5\nclient 0 6 7 0\nprinted {HUGE} x\ndone",
        f"go 5\nclient {HUGE} 6 7 0\ndone",
        f"go 5\nclient 0 6 7 {HUGE}\ndone",
        f"go 5\nattached {HUGE}\nclient 0 6 7 0\nidle 1\npeak {HUGE}\ndone",
    ],
)
def test_oversized_numbers_do_not_crash(text: str) -> None:
    with contextlib.suppress(CellFailed):
        assert read_cell(text, cell(clients=1, percentage=None), "test").peak_memory_mib is None


def test_duplicate_end_of_client_is_refused() -> None:
    with pytest.raises(CellFailed, match="did not reach its end"):
        read_cell(
            "go 5\nclient 0 6 7 0\nclient 0 6 8 0\ndone", cell(clients=2, percentage=None), "test"
        )


@pytest.mark.parametrize(
    ("began", "ended"), [(12.5, 19.5), (1700000001.0, 1700000000.5), (1700000000.0, 1700000000.0)]
)
def test_times_of_another_clock_are_refused(began: float, ended: float) -> None:
    """A program that writes monotonic seconds would give a negative makespan."""
    text = f"go 1700000000.0\nclient 0 {began} {ended} 0\ndone"
    with pytest.raises(CellFailed, match="not seconds since the epoch") as caught:
        read_cell(text, cell(clients=1, percentage=None), "test")
    assert "PROVISION_BENCH_TIMES" in caught.value.fix
