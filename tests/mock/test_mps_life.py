"""MPS through the use cases: enabled, proven, changed, disabled, and its obstacles."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from provision.commands.dev.down import dev_down
from provision.commands.dev.up import dev_up
from provision.commands.mps.disable import mps_disable
from provision.commands.mps.doctor import mps_doctor
from provision.commands.mps.enable import mps_enable
from provision.commands.shared.targets import Targets
from provision.core.model import Event, Note, ResourceStarted
from provision.core.shell import shell_text
from provision.mps.daemon import daemon
from provision.testing import MockHost
from tests.mock.plain_client import eventually
from tests.mock.sharing import HERE, IMAGE, Shared, changed_resources

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
R = "$PROVISION_MOCK_ROOT"
RECORD_PROOF = shell_text(daemon.HERE / "record_proof.sh", *daemon.LOCK_FUNCTIONS)
recipe = importlib.import_module("provision.recipes.mps")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A host with two GPUs and a running container."""
    with MockHost(gpu_count=2, cpus=3) as host:
        made = Shared(tmp_path_factory.mktemp("shared"), host)
        assert made.up().exit_code == 0
        yield made


@pytest.fixture
def gpu(prepared: Shared, monkeypatch: pytest.MonkeyPatch) -> Shared:
    """That host with MPS off and nothing left of another test. Clients have a second to end."""
    prepared.set()
    assert mps_disable(prepared.project, HERE, force=True).exit_code == 0
    assert prepared.up().exit_code == 0
    plan = recipe._plan
    monkeypatch.setattr(
        recipe, "_plan", lambda settings: {**plan(settings), "drain_s": 1, "ready_s": 2}
    )
    return prepared


def test_enable_on_running_container_takes_two_exchanges(gpu: Shared) -> None:
    report = gpu.enable()
    assert (changed_resources(report), report["round_trips"]) == (["mps", "mps-steps"], 2)
    done = gpu.status(strict=True)
    assert done.exit_code == 0
    found = done.document
    assert (found["daemon"], found["server"]["state"]) == (True, "ACTIVE")
    assert found["server"]["uid"] is not None
    assert found["proof"]["worker"].startswith("attached: process ")
    assert (
        found["thread_percentage"],
        found["memory_limit"],
        found["compute_mode"],
        found["client_limit"],
    ) == (100.0, None, "Default", 48)
    assert (found["clients"], found["outside"]) == ([], [])
    again = gpu.enable()
    assert (changed_resources(again), again["round_trips"]) == ([], 1)
    assert gpu.status().document["server"] == found["server"]


def test_changed_plan_restarts_daemon_and_proves_it_again(gpu: Shared) -> None:
    gpu.enable()
    servers = [gpu.status().document["server"]["pid"]]
    plans: list[dict[str, Any]] = [
        {"thread_percentage": 25},
        {"thread_percentage": 25, "memory_limit": "1536M"},
        {
            "thread_percentage": 25,
            "memory_limit": "1100M",
        },  # reads back as 1G, as the one before does
        {"cpus": "0", "gpu": "1"},
        {
            "cpus": gpu.inside(
                "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status"
            ).strip()
        },  # every one of them
        {"gpu": "GPU-00000000-c0de-4b1d-8000-000000000000"},
    ]
    for plan in plans:
        gpu.set(**plan)
        assert changed_resources(gpu.enable())[:1] == ["mps"], plan
        found = gpu.status(strict=True)
        assert found.exit_code == 0
        assert found.document["memory_limit"] == plan.get("memory_limit")
        assert found.document["thread_percentage"] == float(plan.get("thread_percentage", 100))
        assert found.document["cpus"] == (plan["cpus"] if plan.get("cpus") == "0" else "all")
        servers.append(found.document["server"]["pid"])
    assert len(set(servers)) == len(servers)
    assert changed_resources(gpu.enable()) == []
    pid = gpu.inside(f'cat "{R}/run/mps/pipe/nvidia-cuda-mps-control.pid"')
    assert "CUDA_VISIBLE_DEVICES=GPU-00000000-" in gpu.inside(
        f"tr '\\0' '\\n' </proc/{pid}/environ"
    )
    assert gpu.inside("printenv CUDA_VISIBLE_DEVICES") == "", "clients do not get the variable"
    with gpu.program() as client:
        assert client.call(f"alloc {1 << 40}") == 0


def test_memory_limit_changed_by_hand_is_restored(gpu: Shared) -> None:
    gpu.set(memory_limit="1536M")
    gpu.enable()
    server = gpu.status().document["server"]["pid"]
    gpu.inside(f"echo set_device_pinned_mem_limit {server} 0 512M | nvidia-cuda-mps-control")
    assert gpu.status().document["memory_limit"] == "512M"
    assert "mps" in changed_resources(gpu.enable())
    assert gpu.status().document["memory_limit"] == "1536M"


def test_memory_limit_below_one_context_fails(gpu: Shared) -> None:
    gpu.set(memory_limit="16M")
    refused = gpu.first_error(mps_enable(gpu.project, HERE))
    assert (refused["what"].partition(",")[0], refused["fix"].partition(";")[0]) == (
        "no CUDA context fits into mps.memory_limit",
        "raise mps.memory_limit",
    )
    assert "cuCtxCreate_v2 gives 2" in refused["why"]


def test_enable_refuses_unknown_gpu_and_cpus(gpu: Shared) -> None:
    gpu.set(gpu=7)
    assert (
        gpu.first_error(mps_enable(gpu.project, HERE))["what"]
        == "the GPU of mps.gpu does not exist"
    )
    gpu.set(gpu="GPU-00000009-c0de-4b1d-8000-000000000009")
    assert (
        gpu.first_error(mps_enable(gpu.project, HERE))["what"]
        == "the GPU of mps.gpu does not exist"
    )
    lost = next(
        check
        for check in mps_doctor(gpu.project, HERE).document["checks"]
        if check["status"] == "fail"
    )
    assert (lost["id"], lost["fix"]) == ("devices", "invoke dev.exec -- nvidia-smi -L")
    gpu.set()
    gpu.enable()
    server = gpu.status().document["server"]
    for cpus in ("900", "0,900"):
        gpu.set(cpus=cpus)
        refused = gpu.first_error(mps_enable(gpu.project, HERE))
        assert refused["what"] == "the CPUs of mps.cpus do not exist"
        assert gpu.status().document["server"] == server, "the working daemon still runs"
    reported = gpu.inside(
        f"export OMP_NUM_THREADS=1; {refused['fix'].removeprefix('invoke dev.exec -- ')}"
    )
    assert (
        reported.split()[-1]
        == gpu.host.run("grep Cpus_allowed_list /proc/self/status").output.split()[-1]
    )


def test_changed_plan_lists_remaining_clients_and_force_ends_them(gpu: Shared) -> None:
    gpu.enable()
    with gpu.program() as client:
        gpu.set(thread_percentage=50)
        refused = gpu.first_error(mps_enable(gpu.project, HERE))
        assert (refused["what"], refused["fix"]) == (
            "programs are still attached to MPS",
            "let them end, or invoke mps.disable --force",
        )
        assert re.search(rf"still attached after 1 s: {client.pid} \S*python", refused["why"]), (
            refused["why"]
        )
        assert refused["why"].count("waiting up to 1 s") == 1
        assert client.pid in gpu.first_error(mps_disable(gpu.project, HERE))["why"]
        assert client.call("cuCtxSynchronize") == 0
        found = gpu.status().document
        assert [(each["pid"], each["container"]) for each in found["clients"]] == [
            (int(client.pid), "worker")
        ]
        assert "python" in found["clients"][0]["command"]
        assert mps_disable(gpu.project, HERE, force=True).exit_code == 0
        assert client.call("cuCtxSynchronize") == 810
    assert (
        gpu.inside(
            f'ls -d "{R}"/run/mps/pipe "{R}"/run/mps/log "{R}"/run/provision-mps 2>/dev/null'
        )
        == ""
    )
    assert gpu.status().document["daemon"] is False
    assert changed_resources(dict(mps_disable(gpu.project, HERE).document["hosts"]["box"])) == []


def test_changed_plan_waits_for_clients_to_end(gpu: Shared) -> None:
    gpu.enable()
    gpu.set(thread_percentage=50)
    with gpu.program() as client:
        client.end()
    assert changed_resources(gpu.enable()) == ["mps", "mps-steps"]


def test_enable_reports_programs_outside_mps(gpu: Shared) -> None:
    with gpu.program() as early:  # no daemon yet: it runs without MPS and reports no error
        report = gpu.enable()
        assert report["round_trips"] == 2
        reported = next(
            result["note"] for result in report["results"] if result["resource"] == "outside"
        )
        assert reported.startswith(
            f"uses the GPU outside MPS until it is started again: {early.pid} "
        )
        assert reported.endswith(" (worker)")
        with gpu.program() as late:
            assert gpu.status().exit_code == 0
            done = gpu.status(strict=True)
            assert done.exit_code == 1
            assert [(each["pid"], each["container"]) for each in done.document["outside"]] == [
                (int(early.pid), "worker")
            ]
            assert [each["pid"] for each in done.document["clients"]] == [int(late.pid)]
            assert "outside MPS" in done.text
        assert mps_disable(gpu.project, HERE).exit_code == 0
        assert "these use the GPU without MPS" in gpu.status().text
    assert gpu.status().document["outside"] == []


def test_mps_works_for_docker_user_without_root(
    gpu: Shared, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The user's own machine with a driver: `become: none`, and the group docker."""
    monkeypatch.setitem(gpu.base["hosts"]["box"], "become", "none")
    gpu.set(thread_percentage=50)
    gpu.host.faults.set("sudo_denied")
    request.addfinalizer(lambda: gpu.host.faults.clear("sudo_denied"))
    with gpu.program() as early:
        gpu.enable()
        with gpu.program() as late:
            done = gpu.status(strict=True)
            assert [each["pid"] for each in done.document["clients"]] == [int(late.pid)]
            assert [each["pid"] for each in done.document["outside"]] == [int(early.pid)]
            assert done.exit_code == 1
    assert gpu.status(strict=True).exit_code == 0
    assert changed_resources(gpu.enable()) == []
    checks = {
        check["id"]: check["status"] for check in mps_doctor(gpu.project, HERE).document["checks"]
    }
    assert [check for check in checks if checks[check] in {"fail", "unknown"}] == ["kernel-log"], (
        "only root has access"
    )
    assert mps_disable(gpu.project, HERE).exit_code == 0
    assert gpu.status().document["daemon"] is False


def test_program_on_another_gpu_is_not_outside(gpu: Shared) -> None:
    """A CUDA program opens the nodes of all GPUs; nvidia-smi reports the one that it uses."""
    other = (
        "--env CUDA_VISIBLE_DEVICES=GPU-00000001-c0de-4b1d-8000-000000000001 --env "
        "CUDA_MPS_PIPE_DIRECTORY=/nowhere worker"
    )
    gpu.set(gpu=0)
    gpu.enable()
    with gpu.program(other) as elsewhere, gpu.program() as client:
        done = gpu.status(strict=True)
        assert (done.exit_code, done.document["outside"]) == (0, []), done.text
        bad = [
            check
            for check in mps_doctor(gpu.project, HERE).document["checks"]
            if check["status"] == "fail"
        ]
        assert bad == []
        assert [each["pid"] for each in done.document["clients"]] == [int(client.pid)]
        client.end()
        gpu.set()
        assert [each["pid"] for each in gpu.status().document["outside"]] == [int(elsewhere.pid)], (
            "all GPUs are shared"
        )
        bad = [
            check["id"]
            for check in mps_doctor(gpu.project, HERE).document["checks"]
            if check["status"] == "fail"
        ]
        assert "environment" in bad
        gpu.set(gpu="GPU-00000001-c0de-4b1d-8000-000000000001")
        assert [each["pid"] for each in gpu.status().document["outside"]] == [int(elsewhere.pid)], (
            "the process uses the chosen GPU"
        )


def test_exclusive_compute_mode_is_set_and_restored(gpu: Shared) -> None:
    def mode() -> list[str]:
        smi = f"sudo env LD_LIBRARY_PATH=/var/lib/nvidia/lib64 {R}/var/lib/nvidia/bin/nvidia-smi"
        return gpu.host.run(f"{smi} --query-gpu=compute_mode --format=csv,noheader").output.split()

    gpu.set(exclusive=True)
    report = gpu.enable()
    assert (changed_resources(report), report["round_trips"]) == (
        ["compute-mode", "mps", "mps-steps"],
        2,
    )
    assert mode() == ["Exclusive_Process"] * 2
    with gpu.program(), gpu.program():
        pass
    gpu.set()
    assert "compute-mode" in changed_resources(gpu.enable())
    assert mode() == ["Default"] * 2
    gpu.set(exclusive=True, gpu=1)
    gpu.enable()
    assert mode() == ["Default", "Exclusive_Process"]
    assert gpu.status().document["compute_mode"] == "Exclusive_Process", (
        "the mode of the shared GPU"
    )
    gpu.set(exclusive=True, gpu=0)
    assert "compute-mode" in changed_resources(gpu.enable())
    assert mode() == ["Exclusive_Process", "Default"], "the previous GPU has its own mode again"
    gpu.set(exclusive=True)
    gpu.enable()
    assert mode() == ["Exclusive_Process"] * 2
    assert changed_resources(gpu.enable()) == []
    assert dev_down(gpu.project, HERE).exit_code == 0
    assert mode() == ["Default"] * 2, "a second process would fail without the daemon"

    gpu.host.run(
        f"sudo env LD_LIBRARY_PATH=/var/lib/nvidia/lib64 {R}/var/lib/nvidia/bin/nvidia-smi -c 2"
    )
    gpu.set()
    gpu.up()
    refused = gpu.first_error(mps_enable(gpu.project, HERE))
    assert refused["what"] == "the compute mode of the GPU is PROHIBITED: no process may use it"
    assert mode() == ["Prohibited"] * 2
    gpu.host.run(
        f"sudo env LD_LIBRARY_PATH=/var/lib/nvidia/lib64 {R}/var/lib/nvidia/bin/nvidia-smi -c 0"
    )


def test_enable_works_over_files_of_a_dead_daemon(gpu: Shared) -> None:
    pipe = f"{R}/run/mps/pipe"
    kill = f'kill -KILL "$(cat "{pipe}/nvidia-cuda-mps-control.pid")"'

    gpu.enable()
    gpu.inside(kill)  # all its files stay, and its server dies with it
    assert eventually(lambda: gpu.status().document["daemon"] is False)
    assert changed_resources(gpu.enable()) == ["mps"]

    gpu.inside(f'rm -rf "{pipe}"')  # an unreachable daemon
    assert changed_resources(gpu.enable()) == ["mps"]
    assert gpu.status(strict=True).exit_code == 0
    assert len(_processes(gpu)) == 2, "the orphaned daemon and its server have ended"

    gpu.inside(f'rm -rf "{pipe}"')
    off = dict(mps_disable(gpu.project, HERE).document["hosts"]["box"])
    assert "mps" in changed_resources(off)
    assert _processes(gpu) == []

    gpu.inside(
        f'mkdir -p "{pipe}"; : >"{pipe}/control"; echo 1 >"{pipe}/nvidia-cuda-mps-control.pid"'
    )  # foreign files
    gpu.enable()
    assert mps_disable(gpu.project, HERE).exit_code == 0
    assert gpu.inside(f'ls "{pipe}"').split() == ["control"], (
        "the daemon itself removes its pid file"
    )

    gpu.inside(f'rm -rf "{pipe}"; : >"{pipe}"')
    assert (
        gpu.first_error(mps_enable(gpu.project, HERE))["what"]
        == "a file is where a folder of MPS should be"
    )
    gpu.inside(f'rm -f "{pipe}"')

    gpu.inside("nvidia-cuda-mps-control -d 2>/dev/null || { mkdir -p /run/mps; }")
    gpu.enable()  # whether a daemon was started by hand or not
    assert gpu.status(strict=True).exit_code == 0


def _processes(gpu: Shared) -> list[str]:
    """Live processes of MPS in the container."""
    source = f"""
for process in /proc/[0-9]*; do
    read -r name <"$process/comm" && case $name in nvidia-cuda-mps*) ;; *) continue ;; esac
    tr '\\0' '\\n' <"$process/environ" | grep -qx "PROVISION_MOCK_ROOT={R}" || continue
    read -r pid _ state _ <"$process/stat" && echo "$pid$state"
done 2>/dev/null"""
    return [line for line in gpu.inside(source).split() if not line.endswith("Z")]


ZOMBIE = """
import os, time
pid = os.fork()
if pid == 0:
    open("/proc/self/comm", "w").write("nvidia-cuda-mps-control")
    os._exit(0)
while "Z" not in open(f"/proc/{pid}/stat").read().rpartition(")")[2]:
    time.sleep(0.01)
print(pid, flush=True)
time.sleep(300)
"""


def test_zombie_daemon_is_not_taken_for_a_daemon(gpu: Shared) -> None:
    """A zombie keeps its name and has no environment."""
    pipe = f"{R}/run/mps/pipe"
    gpu.host.put("/tmp/zombie.py", ZOMBIE)
    gpu.inside(f'mkdir -p "{pipe}"')
    gpu.inside(
        f'python "{gpu.host.root_path}/tmp/zombie.py" '
        f'>"{pipe}/nvidia-cuda-mps-control.pid" 2>/dev/null </dev/null &'
    )
    assert eventually(
        lambda: gpu.inside(f'cat "{pipe}/nvidia-cuda-mps-control.pid"').strip().isdigit()
    )
    pid = int(gpu.inside(f'cat "{pipe}/nvidia-cuda-mps-control.pid"'))
    read = f"read -r _ name state parent _ </proc/{pid}/stat; echo $name $state"
    assert gpu.inside(read) == "(nvidia-cuda-mps) Z\n"
    assert mps_disable(gpu.project, HERE).exit_code == 0
    gpu.enable()
    assert gpu.status(strict=True).exit_code == 0
    assert mps_disable(gpu.project, HERE).exit_code == 0
    assert gpu.inside(f"{read}; kill -KILL $parent") == "(nvidia-cuda-mps) Z\n", (
        "the zombie existed throughout"
    )


def test_status_takes_two_control_tool_sessions(gpu: Shared) -> None:
    """Each session with the control tool leaves its lines in control.log."""
    count = f'grep -c "NEW UI" "{R}/run/mps/log/control.log"'
    gpu.set(memory_limit="4G", thread_percentage=50)
    gpu.enable()
    with gpu.program() as client:
        before = int(gpu.inside(count))
        found = gpu.status(strict=True)
        assert int(gpu.inside(count)) - before == 2
    assert (
        found.exit_code,
        found.document["memory_limit"],
        found.document["thread_percentage"],
    ) == (0, "4G", 50.0)
    assert [each["pid"] for each in found.document["clients"]] == [int(client.pid)]


def test_enable_queries_gpu_users_only_when_another_process_holds_the_gpu(gpu: Shared) -> None:
    """With the query, mps.enable took 2.9 s on two H200 (docs/mps.md); its limit is two."""
    gpu.enable()
    count = f'grep -c "NEW UI" "{R}/run/mps/log/control.log"'
    before = int(gpu.inside(count))
    assert gpu.enable()["changed"] == 0
    quiet = int(gpu.inside(count)) - before
    with gpu.program():
        gpu.enable()
        assert int(gpu.inside(count)) - before - quiet > quiet


def test_restarted_container_gets_its_daemon_back(gpu: Shared) -> None:
    gpu.enable()
    before = gpu.status().document["server"]["pid"]
    gpu.host.run("docker restart --time 0 worker")
    assert gpu.status().document["daemon"] is False
    assert changed_resources(dict(gpu.up().document["hosts"]["box"])) == ["mps-as-chosen"]
    found = gpu.status(strict=True)
    assert (found.exit_code, found.document["server"]["pid"] != before) == (0, True)


def test_enable_reports_missing_proof_without_python(gpu: Shared) -> None:
    tools = gpu.host.folder / "mock/container-bin"
    names = ("python", "python3")
    for name in names:
        (tools / name).rename(tools / f"no-{name}")
    try:
        for _ in "12":  # changed, then as it should be
            note = next(
                each["note"] for each in gpu.enable()["results"] if each["resource"] == "mps"
            )
            assert note == (
                "not proven that programs attach: worker: unproven: the image has no "
                "Python to try it with"
            )
        assert [gpu.status(strict=strict).exit_code for strict in (False, True)] == [0, 1]
        assert (
            gpu.status().document["proof"]["worker"]
            == "unproven: the image has no Python to try it with"
        )
        assert "worker: unproven" in gpu.status().text
    finally:
        for name in names:
            (tools / f"no-{name}").rename(tools / name)


def test_enable_fails_when_a_container_cannot_reach_the_daemon(gpu: Shared) -> None:
    gpu.host.faults.set("mps_server_fault")
    try:
        done = mps_enable(gpu.project, Targets())
        assert gpu.first_error(done)["what"] == "the MPS server did not become ACTIVE"
    finally:
        gpu.host.faults.clear("mps_server_fault")


def test_topology_change_keeps_daemon_until_image_exists(gpu: Shared) -> None:
    gpu.enable()
    gpu.set(topology="containers", worker={"image": "us-docker.pkg.dev/project/repo/not-there:1"})
    refused = gpu.first_error(mps_enable(gpu.project, HERE))
    assert (refused["what"], refused["fix"]) == (
        "the worker image is not on the host",
        "invoke dev.up",
    )
    gpu.set()
    assert gpu.status(strict=True).exit_code == 0, "the previous daemon"


def test_containers_topology_enables_daemon_for_every_worker(gpu: Shared) -> None:
    gpu.enable()
    with gpu.program() as client:
        gpu.set(topology="containers")
        assert client.pid in gpu.first_error(mps_enable(gpu.project, HERE))["why"], (
            "the clients end first"
        )
    report = gpu.enable()
    assert changed_resources(report) == [
        "mps-elsewhere",
        "mps-container",
        "container",
        "siblings",
        "worker-steps",
        "mps",
        "mps-steps",
    ]
    again = gpu.enable()
    assert (changed_resources(again), again["round_trips"]) == ([], 1)
    names = gpu.host.run("docker ps --format '{{.Names}}'").output.split()
    assert sorted(names) == ["worker", "worker-2", "worker-3", "worker-mps"], (
        "one worker for each CPU, and the daemon's container"
    )
    found = gpu.status(strict=True)
    assert found.exit_code == 0
    assert [printed.split(":")[0] for printed in found.document["proof"].values()] == [
        "attached"
    ] * 3
    with gpu.program("worker-2") as one, gpu.program("worker-3") as two:
        clients = gpu.status().document["clients"]
        assert sorted((each["pid"], each["container"]) for each in clients) == sorted(
            [(int(one.pid), "worker-2"), (int(two.pid), "worker-3")]
        )
    unchanged = gpu.up().document["hosts"]["box"]
    assert changed_resources(dict(unchanged)) == []
    assert mps_disable(gpu.project, HERE).exit_code == 0
    assert gpu.enable()["round_trips"] == 2, "also in this topology"

    gpu.host.run("docker stop --time 0 worker-mps")  # the first process of everybody's namespace
    assert gpu.host.run("docker ps --quiet").output == ""
    assert changed_resources(gpu.enable()) == ["mps-container", "container", "siblings", "mps"]
    gpu.host.run("docker rm -f worker-mps")
    assert (gpu.status().exit_code, gpu.status().text) == (
        1,
        "the container worker-mps is not running: invoke dev.up",
    )
    assert changed_resources(gpu.enable()) == ["mps-container", "container", "siblings", "mps"]

    gpu.set(topology="containers", worker={"processes": 2})
    assert "siblings" in changed_resources(gpu.enable())
    gpu.set()
    assert changed_resources(gpu.enable())[0] == "mps-elsewhere"
    assert gpu.host.run("docker ps --all --format '{{.Names}}'").output.split() == ["worker"]
    assert "worker-mps" not in gpu.host.run("docker volume ls --quiet").output
    assert gpu.status(strict=True).exit_code == 0


def _mode(gpu: Shared) -> set[str]:
    smi = f"sudo env LD_LIBRARY_PATH=/var/lib/nvidia/lib64 {R}/var/lib/nvidia/bin/nvidia-smi"
    return set(gpu.host.run(f"{smi} --query-gpu=compute_mode --format=csv,noheader").output.split())


@pytest.mark.parametrize("fault", ["mps_daemon_dies", "mps_server_fault"])
def test_failed_enable_restores_compute_mode(gpu: Shared, fault: str) -> None:
    """With EXCLUSIVE_PROCESS and no daemon every second program would fail with 46."""
    gpu.set(exclusive=True)
    gpu.host.faults.set(fault)
    try:
        assert gpu.first_error(mps_enable(gpu.project, HERE))
    finally:
        gpu.host.faults.clear(fault)
    assert _mode(gpu) == {"Default"}
    gpu.enable()
    assert _mode(gpu) == {"Exclusive_Process"}


def test_failed_change_of_plan_restores_compute_mode_with_its_daemon_ended(gpu: Shared) -> None:
    gpu.set(exclusive=True)
    gpu.enable()
    with gpu.program() as client:
        gpu.set(exclusive=True, thread_percentage=50)
        assert client.pid in gpu.first_error(mps_enable(gpu.project, HERE))["why"]
        assert _mode(gpu) == {"Exclusive_Process"}, "the previous daemon still runs"
    gpu.set(exclusive=True, thread_percentage=25)
    gpu.host.faults.set("mps_daemon_dies")
    try:
        assert gpu.first_error(mps_enable(gpu.project, HERE))
    finally:
        gpu.host.faults.clear("mps_daemon_dies")
    assert _mode(gpu) == {"Default"}, "the previous daemon was ended and not replaced"


@pytest.mark.parametrize(("how", "code"), [("ctrl-c", 130), ("connection", 4)])
def test_interrupted_enable_restores_compute_mode(gpu: Shared, how: str, code: int) -> None:
    reported: list[str] = []

    def cut(event: Event) -> None:
        if isinstance(event, Note):
            reported.append(event.text)
        if isinstance(event, ResourceStarted) and event.resource == "mps" and not reported:
            reported.append(" ".join(_mode(gpu)))
            if how == "ctrl-c":
                os.kill(os.getpid(), signal.SIGINT)
            else:
                gpu.host.server.drop_connections()

    gpu.set(exclusive=True)
    done = mps_enable(replace(gpu.project, emit=cut), HERE)
    assert (done.exit_code, reported) == (
        code,
        ["Exclusive_Process", "the compute mode of the GPU is as it was found"],
    )
    assert _mode(gpu) == {"Default"}


@pytest.mark.parametrize("fault", ["mps_daemon_dies", "mps_server_fault", None])
def test_boot_with_failing_daemon_restores_compute_mode(gpu: Shared, fault: str | None) -> None:
    """The container runs without MPS, and its programs time-slice the GPU."""
    gpu.set(exclusive=True)
    gpu.enable()
    gpu.host.reboot()
    if fault:
        gpu.host.faults.set(fault)
    booted = gpu.host.run(f'sudo sh "{R}/var/lib/provision/boot.sh"')
    assert (booted.status, _mode(gpu)) == (
        (1, {"Default"}) if fault else (0, {"Exclusive_Process"})
    ), booted.output
    if fault:
        gpu.host.faults.clear(fault)
        with gpu.program(), gpu.program():
            pass
        assert "compute-mode" in changed_resources(gpu.enable())
        assert _mode(gpu) == {"Exclusive_Process"}
    assert mps_disable(gpu.project, HERE).exit_code == 0
    assert _mode(gpu) == {"Default"}, "the mode from before the first boot"


def test_dev_up_with_failing_daemon_restores_compute_mode(gpu: Shared) -> None:
    reported: list[str] = []
    gpu.set(exclusive=True)
    gpu.enable()
    gpu.host.run("docker rm -f worker")
    gpu.host.faults.set("mps_daemon_dies")
    try:
        done = dev_up(
            replace(
                gpu.project,
                emit=lambda event: reported.append(event.text) if isinstance(event, Note) else None,
            ),
            HERE,
        )
        assert gpu.first_error(done)
    finally:
        gpu.host.faults.clear("mps_daemon_dies")
    assert (_mode(gpu), reported) == (
        {"Default"},
        ["the compute mode of the GPU is as it was found"],
    )
    gpu.enable()
    assert _mode(gpu) == {"Exclusive_Process"}


@pytest.mark.parametrize(
    "tasks", [("enable", "enable"), ("disable", "disable"), ("enable", "disable")]
)
def test_two_concurrent_runs_end_in_the_state_of_one(gpu: Shared, tasks: tuple[str, str]) -> None:
    if "disable" in tasks:
        gpu.enable()
    calls = {
        "enable": lambda: mps_enable(gpu.new_project(), HERE),
        "disable": lambda: mps_disable(gpu.new_project(), HERE),
    }
    with ThreadPoolExecutor(2) as pool:
        done = [each.result() for each in [pool.submit(calls[task]) for task in tasks]]
    status = gpu.status(strict=True)
    if tasks[0] == tasks[1]:
        assert [each.exit_code for each in done] == [0, 0], [each.document for each in done]
        assert status.document["daemon"] is (tasks[0] == "enable")
        assert len(_processes(gpu)) == (2 if tasks[0] == "enable" else 0)
    else:  # either came last; a run whose work was undone reports it
        assert all(each.exit_code in {0, 1} for each in done)
        assert len(_processes(gpu)) in {0, 2}
    gpu.enable()
    assert gpu.status(strict=True).exit_code == 0


def test_proof_stays_readable_while_it_is_replaced(gpu: Shared) -> None:
    """Two concurrent runs: one probes the server while the other records a proof."""
    gpu.enable()
    proof = f'"{R}/run/provision-mps/proof"'
    # read before anything is redirected: a shell gives up its end of the pipe there, and the writer
    # goes on
    read = f'{{ sleep 0.5; seen=$(cat {proof}); echo "$seen" >&2; }}'
    seen = gpu.inside(f"{read} | sh -eu -c {shlex.quote(RECORD_PROOF)} provision key 2>&1")
    assert "worker: attached" in seen
    assert gpu.inside(f"cat {proof}").endswith(":key\n")


def test_lock_of_a_killed_run_is_taken_over(gpu: Shared) -> None:
    """The lock holds the PID of a dead process, or of an unrelated one."""
    for holder in ("1:1", "4194305:7"):
        gpu.inside(f'mkdir "{R}/run/provision-mps"; ln -sfn {holder} "{R}/run/provision-mps/lock"')
        gpu.enable()
        assert gpu.inside(f'ls "{R}"/run/provision-mps/lock* 2>/dev/null') == ""
        gpu.inside(f'ln -sfn {holder} "{R}/run/provision-mps/lock"')
        assert mps_disable(gpu.project, HERE).exit_code == 0
        assert gpu.inside(f'ls -d "{R}"/run/provision-mps* 2>/dev/null') == ""


def test_daemon_runs_as_the_user_of_the_image(gpu: Shared) -> None:
    gpu.host.put("/tmp/own/Dockerfile", f"FROM {IMAGE}\nUSER 1000\n")
    assert gpu.host.run("docker build -t own:1 /tmp/own").status == 0
    gpu.set(worker={"image": "own:1"})
    assert gpu.up().exit_code == 0
    gpu.enable()
    assert gpu.status(strict=True).exit_code == 0
    modes = gpu.inside(f'stat -c %a "{R}"/run/mps/pipe "{R}"/run/mps/log "{R}"/run/provision-mps')
    assert modes.split() == ["777"] * 3, "root created it for that user"
    gpu.set(worker={"image": "own:1"}, thread_percentage=50)
    assert "mps" in changed_resources(gpu.enable())
    assert mps_disable(gpu.project, HERE).exit_code == 0
    assert (
        gpu.inside(
            f'ls -d "{R}"/run/mps/pipe "{R}"/run/mps/log "{R}"/run/provision-mps 2>/dev/null'
        )
        == ""
    )
