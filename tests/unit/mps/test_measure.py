"""mps.plan --measure: the script, and its output read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core.errors import ProvisionError
from provision.core.shell import shell_text
from provision.mps.bench import target_facts
from provision.mps.plan import host_facts
from provision.mps.plan.measure import Measurement, measure_words, read_measurement

BENCH_FACTS_SCRIPT = shell_text(target_facts.HERE / "container_facts.sh")
MEASURE_SCRIPT = measure_words("true")[2]
FACTS_SCRIPT = shell_text(host_facts.HERE / "container_facts.sh")
DATA = Path(__file__).parents[2] / "data" / "mps" / "measure"


def recorded(name: str) -> str:
    return (DATA / f"{name}.txt").read_text(encoding="utf-8")


def test_sm_activity_is_preferred_over_time_utilisation() -> None:
    assert read_measurement(recorded("hopper")) == Measurement(0, 9.5, 1210, 0.12, "sm", 1.0, 3)


def test_recorded_h100_runs_give_low_and_high_activity() -> None:
    """A light training keeps 3 % of the multiprocessors busy, large matrix products 88 %."""
    light, heavy = read_measurement(recorded("h100_mlp")), read_measurement(recorded("h100_matmul"))
    assert (light.activity_kind, light.activity, light.peak_memory_mib, light.cores) == (
        "sm",
        0.031,
        839,
        1.0,
    )
    assert (heavy.activity_kind, heavy.activity, heavy.peak_memory_mib) == ("sm", 0.88125, 1011)


def test_time_utilisation_is_used_without_sm_activity() -> None:
    """From the first busy sample to the last: 40, 60, 0, 20."""
    assert read_measurement(recorded("older")) == Measurement(0, 4.0, 900, 0.3, "time", 1.0, 4)


def test_too_few_sm_samples_fall_back_to_time_utilisation() -> None:
    short = "\n".join(
        line for line in recorded("hopper").splitlines() if not line.endswith((" 11 ", " 13 "))
    )
    assert read_measurement(short).activity_kind == "time"


def test_measurement_converts_to_workload() -> None:
    work = read_measurement(recorded("hopper")).workload(5)
    assert (work.clients, work.peak_memory_mib, work.activity_kind, work.cores) == (
        5,
        1210,
        "sm",
        1.0,
    )


def test_program_that_does_not_use_gpu_is_refused() -> None:
    with pytest.raises(ProvisionError, match="did not use the GPU"):
        read_measurement("before=5\nmemory 5, 0\nmemory 5, 0\n")
    with pytest.raises(ProvisionError, match="reports no memory use of this GPU"):
        read_measurement("before=[N/A]\nmemory [N/A], [N/A]\n")


@given(
    st.lists(
        st.sampled_from([*recorded("hopper").splitlines(), *recorded("older").splitlines()])
        | st.text()
    ).map("\n".join)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = read_measurement(text)
    except ProvisionError:
        return
    assert found.activity is None or 0.0 <= found.activity <= 1.0
    assert found.cores is None or found.cores > 0


SMI = """#!/bin/sh
case "$*" in
    *-lms*) while :; do printf '%s, 50\\n' "$(cat "$HOME/used")"; sleep 0.05; done ;;
    *memory.used*) cat "$HOME/used" ;;
    *compute_mode*) echo "${FAKE_MODE-Default}" ;;
    dmon*) exit 1 ;;
esac
"""


def run(
    folder: Path, smi: str, source: str, *words: str, shell: str = "sh", **environment: str
) -> subprocess.CompletedProcess[str]:
    """A script on a machine whose nvidia-smi is this one; 7 MiB of the GPU are in use before."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(smi)
    program.chmod(0o755)
    (folder / "used").write_text("7\n")
    return subprocess.run(
        [shell, "-c", source, "provision", *words],
        env={
            "PATH": f"{program.parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_script_runs_command_once_and_prints_status_and_samples(tmp_path: Path, shell: str) -> None:
    command = (
        "echo once >>$HOME/runs; echo 900 >$HOME/used; echo printed; sleep 0.4; "
        "echo 7 >$HOME/used; exit 3"
    )
    done = run(tmp_path, SMI, MEASURE_SCRIPT, command, shell=shell)
    assert done.returncode == 3
    assert done.stderr.replace("Terminated\n", "") == "printed\n"
    assert (tmp_path / "runs").read_text() == "once\n"
    found = read_measurement(done.stdout)
    assert (found.status, found.peak_memory_mib, found.activity_kind, found.activity) == (
        3,
        893,
        "time",
        0.5,
    )


@pytest.mark.parametrize(
    ("mode", "pipe"), [("Default", "/nonexistent"), ("Exclusive_Process", "/run/mps/pipe")]
)
def test_measured_program_runs_outside_mps_unless_mode_is_exclusive(
    tmp_path: Path, mode: str, pipe: str
) -> None:
    """The program is not an MPS client, unless the GPU admits only those."""
    done = run(
        tmp_path,
        SMI,
        MEASURE_SCRIPT,
        "echo $CUDA_MPS_PIPE_DIRECTORY",
        FAKE_MODE=mode,
        CUDA_MPS_PIPE_DIRECTORY="/run/mps/pipe",
    )
    assert done.stderr.splitlines()[0] == pipe


TWO = """#!/bin/sh
gpu=0
for word in "$@"; do
    case $last in -i) gpu=$word ;; esac
    last=$word
done
case $gpu in
    0 | GPU-0a) gpu=GPU-0a ;;
    1 | GPU-1b) gpu=GPU-1b ;;
    *) echo 'No devices were found'; exit 6 ;;
esac
echo "$gpu $*" >>"$HOME/asked"
case "$*" in
    -L) printf 'GPU 0: NVIDIA L4 (UUID: GPU-0a)\\nGPU 1: NVIDIA L4 (UUID: GPU-1b)\\n' ;;
    *uuid*) echo "$gpu" ;;
    *-lms*) while :; do echo '900, 50'; sleep 0.05; done ;;
    *memory.used*) echo 7 ;;
    *compute_mode*) echo "${FAKE_MODE-Default}" ;;
    dmon*) exit 1 ;;
esac
"""


@pytest.mark.parametrize(("chosen", "gpu"), [("", "GPU-0a"), ("1", "GPU-1b"), ("GPU-1b", "GPU-1b")])
def test_program_runs_on_the_gpu_that_is_sampled(tmp_path: Path, chosen: str, gpu: str) -> None:
    done = run(tmp_path, TWO, MEASURE_SCRIPT, "echo $CUDA_VISIBLE_DEVICES; sleep 0.3", chosen)
    assert done.stderr.splitlines()[0] == gpu
    assert read_measurement(done.stdout).peak_memory_mib == 893
    asked = [
        line
        for line in (tmp_path / "asked").read_text().splitlines()
        if "uuid" not in line and "-L" not in line
    ]
    assert {line.split()[0] for line in asked} == {gpu}
    assert len(asked) == 4, "memory before, memory during the run, activity, compute mode"


def test_mps_client_gets_no_visible_devices(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TWO,
        MEASURE_SCRIPT,
        "echo ${CUDA_VISIBLE_DEVICES-unset}",
        "1",
        FAKE_MODE="Exclusive_Process",
    )
    assert done.stderr.splitlines()[0] == "unset"


def test_measurement_of_missing_gpu_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, TWO, MEASURE_SCRIPT, "echo ran", "7")
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProvisionError, match="there is no such GPU") as caught:
        read_measurement(done.stdout)
    assert (caught.value.where, caught.value.why) == ("provision.mps.gpu", "No devices were found")


@pytest.mark.parametrize(("chosen", "gpus"), [("1", {"GPU-1b"}), ("", {"GPU-0a"})])
def test_plan_facts_are_those_of_the_chosen_gpu(
    tmp_path: Path, chosen: str, gpus: set[str]
) -> None:
    client = "import os; print('device=' + os.environ.get('CUDA_VISIBLE_DEVICES', 'unset'))"
    done = run(tmp_path, TWO, FACTS_SCRIPT, "name", client, chosen)
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if "query-gpu" in line]
    assert {line.split()[0] for line in asked} == gpus
    assert f"device={'GPU-1b' if chosen else 'unset'}\n" in done.stdout


@pytest.mark.parametrize(("chosen", "gpu"), [("1", "GPU-1b"), ("", "GPU-0a")])
def test_benchmark_facts_are_those_of_the_chosen_gpu(tmp_path: Path, chosen: str, gpu: str) -> None:
    done = run(tmp_path, TWO, BENCH_FACTS_SCRIPT, chosen)
    assert f"gpu={gpu}" in done.stdout.splitlines()
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if "query-gpu" in line]
    assert {line.split()[0] for line in asked} == {gpu}


def test_benchmark_facts_report_a_missing_gpu(tmp_path: Path) -> None:
    assert (
        "gpu=No devices were found"
        in run(tmp_path, TWO, BENCH_FACTS_SCRIPT, "7").stdout.splitlines()
    )
