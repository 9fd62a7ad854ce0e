"""The owner of a process as mps.enable reads it: another user's daemon starts no server for us."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from provision.core.shell import PACKAGE, shell_text

ASK = (
    shell_text(PACKAGE / "mps/processes.sh")
    + '\necho "$(uid_of self) $(uid_of "$1") $(uid_of 4194305)"\n'
)


@pytest.mark.parametrize("shell", ["dash", "bash", "sh"])
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root, to start a process of another user",
)
def test_owner_of_another_users_process_is_printed(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    other = [
        "setpriv",
        "--reuid",
        "1000",
        "--regid",
        "1000",
        "--clear-groups",
        "sh",
        "-c",
        "echo up; exec sleep 60",
    ]
    with subprocess.Popen(other, stdout=subprocess.PIPE, text=True) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "up\n"
        words = [shell, "-eu", "-c", ASK, "provision", str(sleeper.pid)]
        environ = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": "/run/none"}
        done = subprocess.run(
            words, env=environ, capture_output=True, text=True, timeout=30, check=False
        )
        sleeper.kill()
    assert (done.returncode, done.stdout) == (0, "0 1000 \n"), done.stderr
