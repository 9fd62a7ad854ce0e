"""MPS in the lab: real containers and namespaces, with a fake driver or a real GPU."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.base_image import BaseImage
from lab.host import Lab
from provision.commands.dev.down import dev_down
from provision.commands.dev.exec import dev_exec
from provision.commands.dev.up import dev_up
from provision.commands.image.build import image_build
from provision.commands.mps.bench.bench import mps_bench
from provision.commands.mps.bench.options import parse_options
from provision.commands.mps.disable import mps_disable
from provision.commands.mps.enable import mps_enable
from provision.commands.mps.status import mps_status
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.shared.worker_image import worker_image
from provision.commands.vm.provision import vm_provision
from provision.project.project import Project
from provision.settings import Level, Settings

HERE = Targets()
CLIENT = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
status = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
status = status or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
time.sleep(1)
raise SystemExit(status)
"""
WITHOUT = b"MPS is enabled here, but no daemon runs"
PROGRAM = shlex.join(["python3", "-c", CLIENT])


@pytest.fixture
def sessions(lab: Lab, image: BaseImage, tmp_path: Path) -> Iterator[Any]:
    """Builds projects on the lab from settings of MPS and of the worker."""
    host = lab.host
    entry = {
        "address": host.address,
        "port": host.port,
        "user": host.user,
        "identity": host.identity,
        "host_key": host.host_key,
    }
    folder = tmp_path / "project"
    folder.mkdir()
    output = bytearray()

    def project(**mps: Any) -> Project:
        worker = {"python": image.python, "processes": 2, **mps.pop("worker", {})}
        data = {"name": "lab", "hosts": {"lab": entry}, "worker": worker, "mps": mps}
        settings = Settings.from_levels([Level("test", data)])
        output.clear()
        return Project(
            settings,
            tmp_path / "state",
            folder,
            stdout=output.extend,
            stderr=output.extend,
            environ=dict(os.environ),
        )

    project.output = output  # type: ignore[attr-defined]
    yield project
    assert mps_disable(project(), HERE, force=True).exit_code == 0
    assert dev_down(project(), HERE).exit_code == 0


def _well(done: TaskResult) -> dict[str, Any]:
    assert done.exit_code == 0, done.document
    return dict(done.document["hosts"]["lab"])


def test_both_topologies_are_proven_and_attach_several_programs(sessions: Any, lab: Lab) -> None:
    _well(vm_provision(sessions(), HERE))
    _well(image_build(sessions(), HERE))
    _well(dev_up(sessions(), HERE))
    assert _well(mps_enable(sessions(), HERE))["round_trips"] <= 3
    found = mps_status(sessions(), HERE, strict=True)
    assert found.exit_code == 0, found.document
    assert found.document["proof"]["worker"].startswith("attached: process ")

    done = dev_exec(sessions(), HERE, ["printenv", "OMP_NUM_THREADS"], count=3)
    assert (done.exit_code, [each["status"] for each in done.document["clients"]]) == (0, [0, 0, 0])
    assert b"[1] " in sessions.output
    assert WITHOUT not in sessions.output
    done = dev_exec(
        sessions(),
        HERE,
        ["sh", "-c", "head -c 16000000 /dev/zero | tr '\\0' x | fold -w 79"],
        count=1,
    )
    assert (done.exit_code, sessions.output.count(b"x")) == (0, 16_000_000)
    lab.exec_inside("docker", "restart", "--time", "1", "worker")
    assert dev_exec(sessions(), HERE, ["true"]).exit_code == 0
    assert WITHOUT in sessions.output, "the daemon ended with the container"

    apart = {"topology": "containers", "thread_percentage": 50}
    report = _well(mps_enable(sessions(**apart), HERE))
    assert [each["resource"] for each in report["results"] if each["status"] == "changed"][-2:] == [
        "mps",
        "mps-steps",
    ]
    found = mps_status(sessions(**apart), HERE, strict=True)
    assert found.exit_code == 0, found.document
    assert sorted(found.document["proof"]) == ["worker", "worker-2"]
    assert all(
        output.startswith("attached: process ") for output in found.document["proof"].values()
    ), found.document["proof"]
    assert found.document["thread_percentage"] == 50.0
    assert _well(mps_enable(sessions(**apart), HERE))["round_trips"] == 1
    assert _well(dev_up(sessions(**apart), HERE))["changed"] == 0

    asked = parse_options(
        command=PROGRAM, clients="1,3", modes="none,mps", rounds="1", with_chart=False
    )
    done = mps_bench(sessions(**apart), HERE, asked)
    assert (done.exit_code, done.document["failures"], len(done.document["cells"])) == (0, [], 4), (
        done.text
    )
    assert mps_status(sessions(**apart), HERE, strict=True).exit_code == 0
    assert (
        dev_exec(sessions(**apart), HERE, ["sh", "-c", "! ls -A /workspace | grep bench"]).exit_code
        == 0
    ), "no folder of the benchmark remains"

    assert [
        each
        for each in _well(mps_enable(sessions(), HERE))["results"]
        if each["status"] == "failed"
    ] == []
    assert mps_status(sessions(), HERE, strict=True).exit_code == 0


def test_root_creates_folders_for_an_image_with_its_own_user(sessions: Any, lab: Lab) -> None:
    _well(vm_provision(sessions(), HERE))
    _well(image_build(sessions(), HERE))
    base = worker_image(sessions()).reference
    lab.exec_inside("sh", "-c", f"printf 'FROM {base}\\nUSER 1000\\n' | docker build --tag own:1 -")
    own = {"worker": {"image": "own:1"}}
    for topology in ("container", "containers"):
        _well(dev_up(sessions(**own, topology=topology), HERE))
        _well(mps_enable(sessions(**own, topology=topology), HERE))
        found = mps_status(sessions(**own, topology=topology), HERE, strict=True)
        assert (found.exit_code, found.document["server"]["uid"]) == (0, 1000), found.document
        _well(mps_disable(sessions(**own, topology=topology), HERE))
        if topology == "container":
            left = "ls -A /run/mps /run/provision-mps 2>/dev/null || true"
            assert (
                lab.exec_inside("docker", "exec", "worker", "sh", "-c", left).stdout
                == "/run/mps:\n"
            )
