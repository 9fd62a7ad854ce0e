"""A host without a GPU, and its error messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Lab
from lab.image import Gpu
from provision import templating
from provision.core.engine import converge
from provision.core.model import Status
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh.connection import connect
from provision.recipes import gpu_host
from provision.settings import Level, Settings
from tests.lab.conftest import explain, summary


@pytest.fixture
def bare(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab without a GPU, beside that of the session."""
    machine = Lab(tmp_path_factory.mktemp("bare") / "lab", gpu=Gpu(count=0), engine=lab.engine)
    machine.start()
    yield machine
    machine.remove()


def test_missing_gpu_is_reported_and_stops_the_run(bare: Lab, tmp_path: Path) -> None:
    transport = connect(bare.host, known_hosts=KnownHosts(tmp_path / "known"), timeout_s=20)
    try:
        with_gpu = gpu_host(Settings.from_levels([]), boot_unit=templating.boot_unit())
        report = converge(transport, with_gpu, lambda event: None, clock=time.monotonic)
        assert summary(report)["gpu"] is Status.FAILED
        assert "the host has 0 NVIDIA GPUs, 1 wanted" in explain(report)
        assert {"driver", "nvidia-smi"} <= {
            name for name, status in summary(report).items() if status is Status.SKIPPED
        }
        assert report.round_trips == 1

        without = gpu_host(
            Settings.from_levels([Level("test", {"gpu": "none"})]), boot_unit=templating.boot_unit()
        )
        report = converge(transport, without, lambda event: None, clock=time.monotonic)
        assert not report.failed, explain(report)
        assert "driver" not in summary(report)
        again = converge(transport, without, lambda event: None, clock=time.monotonic)
        assert (set(summary(again).values()), again.round_trips) == ({Status.OK}, 1)
    finally:
        transport.close()


def test_installer_refuses_without_gpu(bare: Lab) -> None:
    output = bare.exec_inside(
        "cos-extensions", "install", "gpu", "--", "-version=default", check=False
    )
    assert output.returncode == 1
    assert "failed to get GPU type information" in output.stderr
    assert (
        bare.exec_inside("sh", "-c", "ls /dev/nvidia* /sys/module/nvidia", check=False).stdout == ""
    )
