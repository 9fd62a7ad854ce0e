"""The acceptance run of MPS on a real GPU: enabled, proven, broken, measured, disabled.

The tests follow one another on one machine, as a user's day does; each leaves MPS as it found it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import subprocess
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lab.host import Lab
from lab.programs import find_programs
from tests.gpu.conftest import RESULTS, Machine, frameworks

FIGURES: dict[str, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def figures() -> Iterator[None]:
    """Writes measurements to the folder for results, if there is one."""
    yield
    if RESULTS and FIGURES:
        Path(RESULTS).mkdir(parents=True, exist_ok=True)
        figures = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **FIGURES}
        (Path(RESULTS) / "gpu.json").write_text(json.dumps(figures, indent=1) + "\n")


@pytest.fixture
def restored_mps(machine: Machine) -> Iterator[None]:
    """Restore MPS after the test."""
    yield
    machine.configure()
    machine("mps.disable", "--force")
    assert enabled(machine)["server"]["state"] == "ACTIVE"


@contextlib.contextmanager
def client(machine: Machine, *words: str, env: str = "") -> Iterator[subprocess.Popen[str]]:
    """A CUDA client in the container with its context; ended with the block."""
    shell = f"exec env {env} python3 client.py {' '.join(words)}"
    child = machine.start("dev.exec", "--", "sh", "-c", shell)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n", child.communicate(timeout=60)
        yield child
    finally:
        child.terminate()
        child.communicate(timeout=60)


def checks(machine: Machine, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status of mps.doctor, and each check by name."""
    result = machine("mps.doctor", "--json", *words)
    return result.status, {check["id"]: check for check in result.document["checks"]}


def explanations_of(machine: Machine, text: str) -> list[str]:
    """The rows of `mps.explain` that match an error text."""
    return [match["id"] for match in machine.ok("mps.explain", "--text", text)["matches"]]


def archive(busybox: bytes) -> bytes:
    """An image with busybox and nothing else, as a tar."""
    names = (
        "sh",
        "awk",
        "cat",
        "cut",
        "date",
        "df",
        "env",
        "grep",
        "head",
        "id",
        "ls",
        "readlink",
        "sed",
        "sleep",
        "sort",
        "stat",
        "tail",
        "tr",
    )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        program = tarfile.TarInfo("bin/busybox")
        program.size, program.mode = len(busybox), 0o755
        tar.addfile(program, io.BytesIO(busybox))
        for name in names:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return buffer.getvalue()


def enabled(machine: Machine) -> dict[str, Any]:
    machine.ok("mps.enable")
    return machine.ok("mps.status")


def test_container_has_the_real_driver(machine: Machine) -> None:
    assert machine.ok("dev.up")["hosts"]["lab"]["failed"] == 0
    listed = machine.inside("nvidia-smi -L")
    assert listed.startswith("GPU 0: NVIDIA ")
    driver = machine.inside("nvidia-smi --query-gpu=driver_version --format=csv,noheader").strip()
    FIGURES.update(gpu=listed.split(":")[1].split("(")[0].strip(), driver=driver)
    result = machine("dev.run", "client.py", "--", "hold")
    assert (result.status, result.out) == (0, "ready\ndone\n"), result


# --- one container --------------------------------------------------------------------------------


def test_enable_starts_daemon_and_proves_attachment(machine: Machine) -> None:
    result = machine("mps.enable", "--json")
    assert result.status == 0, result
    host = result.document["hosts"]["lab"]
    assert host["changed"] >= 1
    assert host["round_trips"] <= 3
    FIGURES["enable"] = {
        "seconds": round(host["seconds"], 2),
        "round_trips": host["round_trips"],
        "whole_command_s": round(result.seconds, 2),
    }
    status = machine.ok("mps.status", "--strict")
    assert (status["daemon"], status["server"]["state"], status["outside"]) == (True, "ACTIVE", [])
    assert "attached" in str(status["proof"])
    assert machine.ok("mps.enable")["hosts"]["lab"]["changed"] == 0


def test_enable_on_running_container_takes_two_seconds(machine: Machine) -> None:
    seconds = []
    for _ in range(3):
        machine.ok("mps.disable")
        seconds.append(machine.ok("mps.enable")["hosts"]["lab"]["seconds"])
    FIGURES["enable"]["again_s"] = [round(value, 2) for value in seconds]
    assert statistics.median(seconds) <= 2.0


def test_status_lists_real_clients_as_attached(machine: Machine) -> None:
    with (
        client(machine, "hold", "30"),
        client(machine, "hold", "30"),
        client(machine, "hold", "30"),
    ):
        status = machine.ok("mps.status", "--strict")
    assert len(status["clients"]) == 3
    assert all(
        "client.py" in each["command"] and each["pid"] > 1 and each["container"] == "worker"
        for each in status["clients"]
    )


def test_doctor_reports_healthy_host(machine: Machine) -> None:
    with client(machine, "hold", "30"):
        code, found = checks(machine)
    bad = {name: check for name, check in found.items() if check["status"] in {"fail", "unknown"}}
    assert (code in {0, 1}, bad) == (True, {}), json.dumps(found, indent=1)
    FIGURES["doctor"] = {
        name: f"{check['status']}: {check['what']}" for name, check in found.items()
    }


# --- eight faults, each with its remedy -----------------------------------------------------------


@pytest.mark.usefixtures("restored_mps")
def test_killed_daemon_is_reported_and_restarted(machine: Machine) -> None:
    with client(machine, "hold", "60") as child:
        machine.inside("kill -9 $(cat $CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid)")
        out, err = child.communicate(timeout=60)
    assert "error 806" in out, f"the server dies with its daemon: {out} {err}"
    assert explanations_of(machine, out) == ["806"]
    with client(machine, "hold", "30"):
        code, found = checks(machine)
        outside = machine("mps.status", "--json").document["outside"]
    assert (code, found["daemon"]["status"]) == (2, "fail")
    assert "mps.enable" in found["daemon"]["fix"]
    assert len(outside) == 1, "a new client runs without MPS and reports no error"


@pytest.mark.usefixtures("restored_mps")
def test_client_over_the_limit_gets_error_808(machine: Machine) -> None:
    """As many clients run as `mps.status` reports, others get 808, and the doctor warns.

    A server takes 48 clients, from CUDA 13.1 on 60. Their shares are small, so memory suffices.
    """
    machine.configure(mps={"thread_percentage": 12})
    reported = enabled(machine)["client_limit"]
    run = machine.start(
        "dev.exec", "--clients", "64", "--json", "--", "python3", "client.py", "hold", "25"
    )
    try:
        machine.eventually(
            lambda: len(machine.ok("mps.status")["clients"]) == reported,
            f"{reported} clients are attached",
        )
        code, found = checks(machine)
    finally:
        out, err = run.communicate(timeout=120)
    statuses = [each["status"] for each in json.loads(out)["clients"]]
    ran, refused = statuses.count(0), [line for line in err.splitlines() if "error 808" in line]
    FIGURES["limit"] = {"ran": ran, "told": reported}
    assert (len(statuses), ran) == (64, reported), out + err
    assert statuses.count(40) == len(refused) == 64 - ran, out + err
    assert explanations_of(machine, "\n".join(refused)) == ["808"]
    assert (code, found["clients"]["status"]) == (2, "warn"), found["clients"]
    assert "error 808" in found["clients"]["why"]
    assert "mps.plan" in found["clients"]["fix"]
    assert (found["attachment"]["status"], "gives 808" in found["attachment"]["why"]) == (
        "fail",
        True,
    ), "the probe client does not fit either"
    assert explanations_of(machine, found["attachment"]["why"]) == ["808"]


@pytest.mark.usefixtures("restored_mps")
def test_client_of_second_user_waits_for_the_first(machine: Machine, lab: Lab) -> None:
    with client(machine, "hold", "40"):
        words = [
            "docker",
            "exec",
            "-d",
            "-u",
            "1000",
            "-w",
            "/workspace",
            "worker",
            "python3",
            "client.py",
            "hold",
            "3",
        ]
        lab.exec_inside(*words)
        waits = "from user 1000: Server is not ready"
        machine.eventually(
            lambda: waits in machine.inside("cat $CUDA_MPS_LOG_DIRECTORY/control.log"),
            "the second user waits",
        )
        code, found = checks(machine)
    assert (code, found["server"]["status"], found["server"]["what"]) == (
        2,
        "fail",
        "clients of user 1000 wait",
    ), found["server"]
    assert found["server"]["fix"] == "run daemon and workers as one user"
    machine.eventually(
        lambda: not machine.inside("pgrep -f '[c]lient.py hold' || true").strip(),
        "it has its turn, and ends",
    )


@pytest.mark.usefixtures("restored_mps")
def test_client_with_another_pipe_directory_is_outside(machine: Machine) -> None:
    with client(machine, "hold", "30", env="CUDA_MPS_PIPE_DIRECTORY=/tmp/elsewhere"):
        code, found = checks(machine)
        strict = machine("mps.status", "--strict", "--json")
    assert (code, found["environment"]["status"]) == (2, "fail"), found["environment"]
    assert "/tmp/elsewhere" in found["environment"]["why"]
    assert "CUDA_MPS_PIPE_DIRECTORY" in found["environment"]["fix"]
    assert (strict.status, [each["command"] for each in strict.document["outside"]]) == (
        1,
        ["python3 client.py hold 30"],
    )


@pytest.mark.usefixtures("restored_mps")
def test_client_with_gpu_index_runs_and_doctor_warns(machine: Machine) -> None:
    """It runs, as index 0 exists on both sides, and the doctor warns."""
    machine.configure(mps={"gpu": "0"})
    enabled(machine)
    with client(machine, "hold", "30", env="CUDA_VISIBLE_DEVICES=0"):
        _, found = checks(machine)
    assert found["environment"]["status"] == "warn", found["environment"]
    assert "CUDA_VISIBLE_DEVICES=0" in found["environment"]["what"]


@pytest.mark.usefixtures("restored_mps")
def test_gpu_index_that_the_daemon_remapped_fails(machine: Machine) -> None:
    """The daemon's only GPU is 0 to clients: the machine's index for it fails under MPS."""
    last = machine.inside("nvidia-smi -L").count("GPU ") - 1
    if last == 0:
        pytest.skip("needs two GPUs: on one, index 1 is an error without MPS as well")
    hold = f"CUDA_VISIBLE_DEVICES={last} python3 client.py hold"
    machine.configure(mps={"gpu": str(last)})
    machine.ok("mps.disable")
    assert machine.inside(hold) == "ready\ndone\n", "the GPU is available without MPS"
    enabled(machine)
    result = machine("dev.exec", "--", "sh", "-c", hold)
    assert (result.status, "error 100" in result.out) == (40, True), result
    assert explanations_of(machine, result.out) == ["no-device"]


@pytest.mark.usefixtures("restored_mps")
def test_doctor_reports_daemon_without_server_on_path(machine: Machine) -> None:
    machine.ok("mps.disable")
    start = (
        "mkdir -p $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY; PATH=/usr/bin:/bin "
        "/usr/local/nvidia/bin/nvidia-cuda-mps-control -d"
    )
    machine.inside(start)
    machine.start("dev.exec", "--", "timeout", "10", "python3", "client.py", "hold").communicate(
        timeout=60
    )
    code, found = checks(machine)
    reported = json.dumps([check for check in found.values() if check["status"] == "fail"])
    assert code == 2
    machine.inside(
        (
            "echo quit | nvidia-cuda-mps-control; rm -rf $CUDA_MPS_PIPE_DIRECTORY "
            "$CUDA_MPS_LOG_DIRECTORY"
        ),
        status=None,
    )
    assert "PATH" in reported, reported


@pytest.mark.usefixtures("restored_mps")
def test_illegal_address_in_one_client_fails_the_others(machine: Machine) -> None:
    with client(machine, "hold", "40") as other:
        broken = machine("dev.exec", "--", "python3", "client.py", "fault")
        out, _ = other.communicate(timeout=60)
    assert (broken.status, "error 700" in broken.out) == (40, True), broken
    assert "error 700" in out, "all clients get the fault of one"
    assert explanations_of(machine, out) == ["shared-fault"]
    assert machine.ok("mps.status")["server"]["state"] == "ACTIVE"
    _, found = checks(machine)
    assert found["server"]["status"] in {"ok", "warn"}, (
        "it is ACTIVE again; earlier faults in its log do not count"
    )
    assert "ACTIVE" in found["server"]["what"]
    with client(machine, "hold", "10"):
        assert len(machine.ok("mps.status", "--strict")["clients"]) == 1


def test_doctor_reports_image_without_glibc(machine: Machine, lab: Lab) -> None:
    """As Alpine: programs of the driver are linked to glibc, which such an image lacks."""
    busybox = find_programs(lab.engine).busybox.read_bytes()
    lab.exec_inside("docker", "import", "-", "alpine-like", stdin=archive(busybox))
    driver = [
        "-v",
        "/var/lib/nvidia/bin:/usr/local/nvidia/bin:ro",
        "-v",
        "/var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro",
    ]
    env = ["-e", "PATH=/usr/local/nvidia/bin:/bin", "-e", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64"]
    run = [
        "docker",
        "run",
        "-d",
        "--name",
        "alpine",
        "--network",
        "host",
        "--privileged",
        *driver,
        *env,
    ]
    lab.exec_inside(*run, "alpine-like", "/bin/busybox", "sleep", "600")
    machine.configure(worker={**machine.settings["worker"], "name": "alpine"})
    try:
        code, found = checks(machine)
    finally:
        machine.configure()
        lab.exec_inside("docker", "rm", "-f", "alpine")
    assert code == 2
    assert found["container"]["status"] == "fail", json.dumps(found, indent=1)
    assert "glibc" in json.dumps(found["container"])


# --- measured -------------------------------------------------------------------------------------


def test_plan_measures_one_run(machine: Machine) -> None:
    workload = "mlp" if frameworks()[1] else "driver"
    source = (
        Path(__file__).parents[2] / "provision" / "mps" / "bench" / "workloads" / f"{workload}.py"
    )
    (machine.project / "work.py").write_text(source.read_text())
    stand_in = (
        "PROVISION_BENCH_STEPS=6000 PROVISION_BENCH_CLIENT=0 "
        "PROVISION_BENCH_READY=/dev/null PROVISION_BENCH_GO=/dev/null"
    )
    (machine.project / "plan.sh").write_text(
        f"{stand_in} PROVISION_BENCH_TIMES=/dev/null exec python3 work.py\n"
    )
    machine("dev.run", "plan.sh", timeout_s=120)
    plan = machine.ok("mps.plan", "--measure", "sh plan.sh")
    FIGURES["plan"] = plan
    assert plan["measured"]["status"] == 0
    assert plan["host"]["vcpus"] == len(os.sched_getaffinity(0)), (
        "nproc would print OMP_NUM_THREADS"
    )
    assert plan["host"]["sm_source"] == "driver"
    assert plan["workload"]["peak_memory_mib"] > 0
    assert 1 <= plan["plan"]["clients"] <= plan["plan"]["client_limit"]


def test_short_benchmark_proves_attachment(machine: Machine) -> None:
    words = (
        "--workload",
        "driver",
        "--clients",
        "1,8",
        "--modes",
        "none,mps",
        "--rounds",
        "1",
        "--steps",
        "2000",
        "--no-chart",
    )
    document = machine.ok("mps.bench", *words, timeout_s=400)
    assert document["failures"] == []
    found = {(cell["mode"], cell["clients"]): cell for cell in document["cells"]}
    FIGURES["bench"] = document["cells"]
    assert found["mps", 8]["times_none"] > 1.5


def test_client_sees_its_share_of_the_gpu(machine: Machine) -> None:
    machine.configure(mps={"thread_percentage": 12})
    try:
        status = enabled(machine)
        assert status["thread_percentage"] == pytest.approx(12.0)
    finally:
        machine.configure()
    assert enabled(machine)["thread_percentage"] == pytest.approx(100.0)


def test_disable_leaves_nothing_behind(machine: Machine) -> None:
    machine.ok("mps.disable")
    assert machine.inside("pgrep -f '[n]vidia-cuda-mps' || true") == ""
    assert (
        machine.inside("ls -d $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY 2>/dev/null || true")
        == ""
    )
    assert set(
        machine.inside("nvidia-smi --query-gpu=compute_mode --format=csv,noheader").splitlines()
    ) == {"Default"}
    assert machine.ok("mps.disable")["hosts"]["lab"]["changed"] == 0


# --- a container for the daemon, and one for each worker ------------------------------------------


def test_containers_topology_works_as_on_dataflow(machine: Machine, lab: Lab) -> None:
    machine.configure(
        mps={"topology": "containers"}, worker={**machine.settings["worker"], "processes": 3}
    )
    try:
        machine.ok("dev.up")
        result = machine("mps.enable", "--json")
        assert result.status == 0, result
        FIGURES["containers"] = {"seconds": round(result.document["hosts"]["lab"]["seconds"], 2)}
        status = machine.ok("mps.status", "--strict")
        assert "attached" in str(status["proof"])
        checks = {
            check["id"]: check["what"]
            for check in machine("mps.doctor", "--json").document["checks"]
            if check["status"] == "ok"
        }
        assert {"container", "log-directory", "server", "attachment"} <= set(checks), checks
        assert checks["control-log"] == "nothing unusual", (
            "the daemon's logs are read, not an empty folder"
        )
        run = machine.start(
            "dev.exec", "--clients", "3", "--", "python3", "client.py", "hold", "15"
        )
        try:
            found = machine.eventually(
                lambda: (
                    status if len((status := machine.ok("mps.status"))["clients"]) == 3 else None
                ),
                "three clients are attached",
            )
        finally:
            out, err = run.communicate(timeout=120)
        assert run.returncode == 0, out + err
        assert all(
            each["pid"] > 1 and "client.py" in each["command"] for each in found["clients"]
        ), "each client has a real PID and command"
        assert len({each["container"] for each in found["clients"]}) == 3, (
            "one client in each container"
        )
        words = (
            "--workload",
            "driver",
            "--clients",
            "1,3",
            "--modes",
            "none,mps",
            "--rounds",
            "1",
            "--steps",
            "2000",
            "--no-chart",
        )
        document = machine.ok("mps.bench", *words, timeout_s=200)
        assert (document["failures"], document["topology"], len(document["cells"])) == (
            [],
            "containers",
            4,
        )
        FIGURES["containers"]["bench"] = document["cells"]
        lab.reboot()
        assert lab.wait_for_unit("provision-boot.service") == "active"
        machine.eventually(
            lambda: machine("mps.status", "--strict").status == 0,
            "a boot brings it back",
            timeout_s=120,
        )
    finally:
        machine("mps.disable", "--force")
        machine.configure()
    machine.ok("dev.up")
