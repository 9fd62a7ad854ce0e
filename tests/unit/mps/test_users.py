"""Who uses the GPU, seen from a host where nobody is root: the script of mps.status, and what it takes for an answer."""

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
    exec) printf 'percentage=100.0\\nserver.50=ACTIVE\\nproof=current\\nproven.worker=attached: process 60\\n' ;;
esac
"""


@pytest.fixture
def seen() -> Iterator[Callable[[str], MpsStatus]]:
    """The status of a host whose nvidia-smi is this piece of shell; whoever asks is not root."""
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


def test_whoever_nvidia_smi_names_and_no_server_lists_is_outside(
    seen: Callable[[str], MpsStatus],
) -> None:
    """What other users' processes hold open is not to be seen; this very process holds no device node at all."""
    found = seen(
        f"case $1 in --query-compute-apps=pid,process*) echo '{os.getpid()}, python, 4900' ;; esac"
    )
    assert [(user.host_pid, user.memory_mib) for user in found.outside] == [(os.getpid(), 4900)]
    assert found.outside_known


def test_where_nothing_tells_who_uses_the_gpu_that_is_said(
    seen: Callable[[str], MpsStatus],
) -> None:
    found = seen("exit 9")
    assert (found.daemon, found.outside, found.outside_known) == (True, [], False)
    assert not is_healthy(found, strict=True)
    assert is_healthy(found, strict=False)
    assert is_healthy(seen("exit 0"), strict=True)


def test_a_server_that_no_client_was_tried_on_is_not_well_enough(
    seen: Callable[[str], MpsStatus],
) -> None:
    found = seen("exit 0")
    for proof in ((), (("worker", "unproven: the image has no Python to try it with"),)):
        assert is_healthy(replace(found, proof=proof), strict=False)
        assert not is_healthy(replace(found, proof=proof), strict=True)
