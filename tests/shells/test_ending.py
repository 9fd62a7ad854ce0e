"""Ending the programs of a run, under every shell: SIGTERM, then MPS, then SIGKILL."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from provision.commands.shared.user_program.run import end_text
from tests.shells.shells import Scratch

pytestmark = pytest.mark.slow

TOOL = """#!/bin/sh
read -r words
case $words in
    get_server_list) echo 77 ;;
    'get_client_list 77') cat "$TOOLS/clients" ;;
    'get_client_list '*) echo "no such server" ;;
    *) echo "$words" >>"$TOOLS/terminated" ;;
esac
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print(flush=True); time.sleep(60)"
)
WILLING = "import time; print(flush=True); time.sleep(60)"


@contextmanager
def running(scratch: Scratch, source: str, token: str) -> Iterator[subprocess.Popen[bytes]]:
    """A started program of the run with this token."""
    environment = scratch.shell.environment(PROVISION_RUN=token)
    with subprocess.Popen(
        [sys.executable, "-c", source], env=environment, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        try:
            yield program
        finally:
            program.kill()


def end(scratch: Scratch, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    scratch.enter(monkeypatch)
    done = subprocess.run(
        ["sh", "-c", end_text(), "provision", token], capture_output=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.parametrize("is_on", [True, False])
def test_program_that_ignores_sigterm_is_terminated_by_mps_and_then_killed(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, *, is_on: bool
) -> None:
    token, other = f"mine-{id(scratch)}", f"other-{id(scratch)}"
    pipe = scratch.root / "run/mps"
    pipe.mkdir(parents=True)
    (pipe / "nvidia-cuda-mps-control.pid").write_text("1") if is_on else None
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    terminated = scratch.tools / "terminated"
    terminated.touch()
    tool = scratch.tools / "nvidia-cuda-mps-control"
    tool.write_text(TOOL.replace("$TOOLS", shlex.quote(str(scratch.tools))))
    tool.chmod(0o755)
    with (
        running(scratch, STUBBORN, token) as stays,
        running(scratch, WILLING, token) as goes,
        running(scratch, STUBBORN, other) as left,
    ):
        (scratch.tools / "clients").write_text(f"{goes.pid}\n{left.pid}\n{stays.pid}\n")
        end(scratch, monkeypatch, token)
        assert (goes.wait(10), stays.wait(10), left.poll()) == (
            -signal.SIGTERM,
            -signal.SIGKILL,
            None,
        )
        assert terminated.read_text() == (f"terminate_client 77 {stays.pid}\n" if is_on else "")
