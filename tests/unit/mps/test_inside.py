"""What is run in the daemon's container, run here: who may not write where its notes are is told so at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.resources.mps import inside

NOBODY = 65534


@pytest.fixture
def root() -> Iterator[Path]:
    """The root folder of a container whose `/run` is another user's."""
    folder = Path(tempfile.mkdtemp())
    (folder / "run").mkdir()
    (folder / "run").chmod(0o555)
    folder.chmod(0o755)
    yield folder
    (folder / "run").chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("source", [inside.ENABLE, inside.DISABLE], ids=["enable", "disable"])
def test_a_user_who_may_not_write_is_told_at_once(root: Path, source: str) -> None:
    names = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps/pipe", "CUDA_MPS_LOG_DIRECTORY": "/run/mps/log", "PROVISION_MOCK_ROOT": str(root)}
    done = subprocess.run(
        ["sh", "-eu", "-c", source, "provision", "yes", "100", "", "", "", "20", "30"],
        env={**names, "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
        timeout=5,
        user=NOBODY if os.geteuid() == 0 else None,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("user ")
    assert done.stdout.endswith(" of the container may not write to /run/provision-mps\n")
