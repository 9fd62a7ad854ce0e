"""The scripts for the daemon's container, run on this machine with a fake control tool."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.core.shell import shell_text
from provision.mps.daemon import daemon
from provision.mps.status import status
from provision.mps.status.status import read_status

NOBODY = 65534
ENABLE = shell_text(daemon.HERE / "enable_in_container.sh", *daemon.STOP_FUNCTIONS)
DISABLE = shell_text(daemon.HERE / "disable_in_container.sh", *daemon.STOP_FUNCTIONS)
RECORD_PROOF = shell_text(daemon.HERE / "record_proof.sh", *daemon.LOCK_FUNCTIONS)
REMOVE_CREATED = shell_text(daemon.HERE / "remove_created.sh", *daemon.LOCK_FUNCTIONS)
STATUS = shell_text(status.HERE / "daemon.sh", *status.DAEMON_FUNCTIONS)


@pytest.fixture
def root() -> Iterator[Path]:
    """The root folder of a container."""
    folder = Path(tempfile.mkdtemp())
    (folder / "run").mkdir()
    folder.chmod(0o755)
    yield folder
    (folder / "run").chmod(0o755)
    shutil.rmtree(folder)


def run_script(
    root: Path, source: str, *words: str, control: str = "exit 1", user: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script of the container; `control` is the shell of its control tool."""
    (root / "nvidia-cuda-mps-control").write_text(f"#!/bin/sh\n{control}\n")
    (root / "nvidia-cuda-mps-control").chmod(0o755)
    names = {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps/pipe",
        "CUDA_MPS_LOG_DIRECTORY": "/run/mps/log",
        "PROVISION_MOCK_ROOT": str(root),
    }
    return subprocess.run(
        ["sh", "-eu", "-c", source, "provision", *words],
        env={**names, "PATH": f"{root}:{os.defpath}"},
        input="worker: attached: process 7\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=5,
        user=user,
    )


@pytest.mark.parametrize("source", [ENABLE, DISABLE], ids=["enable", "disable"])
def test_enable_and_disable_fail_at_once_when_run_directory_is_not_writable(
    root: Path, source: str
) -> None:
    (root / "run").chmod(0o555)
    done = run_script(
        root,
        source,
        "yes",
        "100",
        "",
        "",
        "",
        "20",
        "30",
        user=NOBODY if os.geteuid() == 0 else None,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("user ")
    assert done.stdout.endswith(" of the container may not write to /run/provision-mps\n")


def test_proof_is_recorded_only_while_a_server_runs(root: Path) -> None:
    """Another run may have ended MPS since; no later run would remove the proof."""
    assert run_script(root, RECORD_PROOF, "key").returncode == 0
    assert list((root / "run").iterdir()) == []
    assert run_script(root, RECORD_PROOF, "key", control="echo 1").returncode == 0
    assert (
        (root / "run/provision-mps/proof")
        .read_text()
        .endswith(":key\nworker: attached: process 7\n")
    )


def test_created_paths_are_recorded_and_removed_despite_existing_proof(root: Path) -> None:
    notes = root / "run/provision-mps"
    notes.mkdir()
    (notes / "proof").write_text("of a daemon that a user started\n")
    assert run_script(root, ENABLE, "", "100", "", "", "", "20", "30").returncode == 1, (
        "no daemon can start"
    )
    assert (notes / "made").read_text().split() == [f"{root}/run/mps/pipe", f"{root}/run/mps/log"]
    assert run_script(root, REMOVE_CREATED).returncode == 0
    assert [path.name for path in (root / "run").iterdir()] == ["mps"]
    assert list((root / "run/mps").iterdir()) == []


V3 = """
read -r line
case $line in
    'server list'*)
        printf 'name,uid,pid,status,pipe-directory,allowed-devices,context-ids\\n'
        printf 'training,1000,48201,Ready,/run/x,GPU-1,-\\n'
        ;;
    'client list'*)
        printf 'pid,server,device,namespace,cmd\\n51023,training,0,default,python train.py\\n'
        ;;
    *) echo "error: unknown command" ;;
esac
"""


@pytest.mark.parametrize("source", [ENABLE, DISABLE], ids=["enable", "disable"])
def test_enable_and_disable_refuse_a_daemon_of_mps_v3(root: Path, source: str) -> None:
    done = run_script(root, source, "", "100", "", "", "", "20", "30", control=V3)
    assert (done.returncode, done.stdout) == (1, "the control daemon speaks MPS v3\n")


def test_status_lists_servers_and_clients_of_mps_v3(root: Path) -> None:
    found = read_status(run_script(root, STATUS, "key", "", "yes", control=V3).stdout)
    assert (found.daemon, [(each.name, each.uid, each.state) for each in found.v3_servers]) == (
        False,
        [("training", 1000, "ACTIVE")],
    )
    assert [(each.pid, each.command) for each in found.clients] == [(51023, "python train.py")]
