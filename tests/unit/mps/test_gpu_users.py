"""Users of the GPU on a host where the status script does not run as root."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from provision.commands.mps.status import is_healthy
from provision.mps.status.status import MpsStatus, read_status, status_script

NOBODY = 65534 if os.geteuid() == 0 else None
DOCKER = """#!/bin/sh
case $1 in
    container) echo 'true|' ;;
    exec)
        printf 'percentage=100.0\\nserver.50=ACTIVE\\nproof=current\\n'
        printf 'proven.worker=attached: process 60\\n'
        ;;
esac
"""


@pytest.fixture
def read_status_with_smi() -> Iterator[Callable[[str], MpsStatus]]:
    """Reads the status, without root, of a host whose nvidia-smi runs this shell."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "driver/bin").mkdir(parents=True)

        def ask(smi: str) -> MpsStatus:
            programs = {
                folder / "docker": DOCKER,
                folder / "driver/bin/nvidia-smi": f"#!/bin/sh\n{smi}\n",
            }
            for file, text in programs.items():
                file.write_text(text)
                file.chmod(0o755)
            source = (
                "R=\n" + status_script("worker", users=True, driver_dir=f"{folder}/driver").render()
            )
            path = f"{folder}:{os.defpath}"
            done = subprocess.run(
                ["sh", "-c", source],
                env={"PATH": path},
                capture_output=True,
                text=True,
                check=True,
                user=NOBODY,
            )
            return read_status(done.stdout)

        yield ask


def test_process_listed_by_nvidia_smi_only_is_outside(
    read_status_with_smi: Callable[[str], MpsStatus],
) -> None:
    """Open files of other users are hidden; this very process holds no device node."""
    found = read_status_with_smi(
        f"case $1 in --query-compute-apps=pid,process*) echo '{os.getpid()}, python, 4900' ;; esac"
    )
    assert [(user.host_pid, user.memory_mib) for user in found.outside] == [(os.getpid(), 4900)]
    assert found.outside_known


def test_outside_is_unknown_without_root_and_nvidia_smi(
    read_status_with_smi: Callable[[str], MpsStatus],
) -> None:
    found = read_status_with_smi("exit 9")
    assert (found.daemon, found.outside, found.outside_known) == (True, [], False)
    assert not is_healthy(found, strict=True)
    assert is_healthy(found, strict=False)
    assert is_healthy(read_status_with_smi("exit 0"), strict=True)


def test_strict_status_fails_without_proof_of_attachment(
    read_status_with_smi: Callable[[str], MpsStatus],
) -> None:
    found = read_status_with_smi("exit 0")
    for proof in ((), (("worker", "unproven: the image has no Python to try it with"),)):
        assert is_healthy(replace(found, proof=proof), strict=False)
        assert not is_healthy(replace(found, proof=proof), strict=True)
