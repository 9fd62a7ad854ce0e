"""Behaviour of the control tool and CUDA programs under MPS, on the mock and a real driver.

PROVISION_LAB_GPU=real runs the rows on this machine's own driver.

The rows are data; a place runs the shell of a row in fresh directories. The real place needs root,
setpriv and pytest: `PROVISION_LAB_GPU=real python -m pytest tests/mps_rows -m gpu --noconftest`.
Without a GPU but with the driver's programs, the rows that need no server run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROWS = tomllib.loads((HERE / "rows.toml").read_text(encoding="utf-8"))["row"]
PRELUDE = (HERE / "prelude.sh").read_text(encoding="utf-8")
UNREAPED = (HERE / "unreaped.py").read_text(encoding="utf-8")
CLIENT = (HERE.parent / "gpu" / "client.py").read_text(encoding="utf-8")
ELSEWHERE = frozenset(
    {
        # containers: tests/gpu, and tests/mock/test_mps.py
        "container with `--device` flags and both volumes, not privileged",
        "daemon and client in two containers with a shared pipe folder",
        "the same with `--pid container:` and a shareable IPC namespace",
        # what mps.enable, mps.status and mps.doctor make of it: tests/gpu and tests/mock
        "the steps of `mps.enable` in a shell on the machine itself",
        "pipe folder removed under a daemon; daemon killed",
        "a CUDA program, attached or not",
        "a daemon started with a PATH that lacks the server",
        # figures of a GPU: tests/gpu, and the recordings below tests/data/mps
        "`start_server -uid 0`",
        "nvidia-smi on the host",
        "context of a light client",
        "contexts of those at 25 % and 10 %",
        "nvidia-smi `dmon --gpm-metrics 2`",
    }
)
"""Lines of docs/facts.md that are no row here."""
NUMBERS = count(1)
LONGEST_S = 120
Place = Callable[[str], str]

AFTER = "\nleave\n"
MOCK = """
R=$PROVISION_MOCK_ROOT PYTHON=python
OTHER="env PROVISION_MOCK_SUDO= PROVISION_MOCK_UID=1000"  # what `docker exec -u 1000` sets
"""
REAL = """
R= OTHER="setpriv --reuid 1000 --regid 1000 --clear-groups"
"""


@pytest.fixture(scope="module")
def mock() -> Iterator[Place]:
    """A container of a mock host with the GPU on which most rows were observed."""
    from provision.testing import MockHost
    from tests.mock.plain_client import SHELL

    with MockHost(shell=SHELL, gpu="nvidia-h200-141gb") as host:
        root, driver = "$PROVISION_MOCK_ROOT", "/var/lib/nvidia"
        host.run(
            f"sudo cos-extensions install gpu; sudo mount --bind {driver} {driver}; "
            f"sudo mount -o remount,exec {driver}"
        )
        host.put("/tmp/client.py", CLIENT)
        host.put("/tmp/unreaped.py", UNREAPED)
        options = (
            f'--device "{root}/dev/nvidia0" --device /dev/nvidiactl --device /dev/nvidia-uvm '
            f'--volume "{root}"/var/lib/nvidia/bin:/usr/local/nvidia/bin:ro '
            f'--volume "{root}"/var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro '
            "--env LD_LIBRARY_PATH=/usr/local/nvidia/lib64 --env "
            "PATH=/usr/local/nvidia/bin:/usr/bin"
        )
        assert (
            host.run(
                f"docker run -d --init --name dev --entrypoint sleep {options} python:3.11 infinity"
            ).status
            == 0
        )

        def run(source: str) -> str:
            number = next(NUMBERS)
            names = (
                f"export CUDA_MPS_PIPE_DIRECTORY=/run/p{number} "
                f"CUDA_MPS_LOG_DIRECTORY=/run/l{number}\n"
            )
            names += (
                f'CLIENT="{host.root_path}/tmp/client.py" '
                f'UNREAPED="{host.root_path}/tmp/unreaped.py"\n'
            )
            whole = MOCK + names + PRELUDE + source + AFTER
            return host.run("docker exec -i dev sh -s", stdin=whole.encode()).output

        yield run


@pytest.fixture(scope="module")
def real() -> Place:
    """This machine: its own driver's control tool, as root."""
    if os.environ.get("PROVISION_LAB_GPU") != "real":
        pytest.skip("needs a real NVIDIA driver: make gpu")

    def run(source: str) -> str:
        folder = Path("/tmp") / f"mps-rows-{os.getpid()}-{next(NUMBERS)}"
        folder.mkdir(mode=0o755)
        for name, text in (("client.py", CLIENT), ("unreaped.py", UNREAPED)):
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o644)
        # another user may not be let into the folder of this interpreter
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
        names = f"PYTHON={python} CLIENT={folder}/client.py UNREAPED={folder}/unreaped.py\n"
        names += f"export CUDA_MPS_PIPE_DIRECTORY={folder}/p CUDA_MPS_LOG_DIRECTORY={folder}/l\n"
        whole = REAL + names + PRELUDE + source + AFTER
        try:
            done = subprocess.run(
                ["sh", "-c", "exec sh -s 2>&1"],
                input=whole,
                capture_output=True,
                text=True,
                timeout=LONGEST_S,
                check=False,
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return done.stdout

    return run


def driver_branch() -> int | None:
    """The branch of the loaded driver, 580 of 580.159.04; None without one."""
    try:
        return int(Path("/sys/module/nvidia/version").read_text(encoding="ascii").split(".")[0])
    except (OSError, ValueError):
        return None


def gpu_name() -> str:
    """Name of the first GPU by nvidia-smi; empty without one."""
    listed = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(
            listed, capture_output=True, text=True, timeout=LONGEST_S, check=False
        ).stdout.partition("\n")[0]
    except OSError:
        return ""


def named(row: Mapping[str, Any]) -> str:
    return str(row["name"])


def marked(row: Mapping[str, Any]) -> Any:
    return pytest.param(row, id=named(row), marks=[pytest.mark.slow] if row.get("slow") else [])


@pytest.mark.busybox
@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("row", [marked(row) for row in ROWS])
def test_mock_behaves_as_recorded(mock: Place, row: Mapping[str, Any]) -> None:
    printed = mock(row["source"])
    assert re.fullmatch(row["output"], printed), printed


@pytest.mark.gpu
@pytest.mark.timeout(2 * LONGEST_S)
@pytest.mark.parametrize("row", ROWS, ids=named)
def test_real_mps_behaves_as_recorded(real: Place, row: Mapping[str, Any]) -> None:
    if row.get("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("needs a GPU: it starts a server")
    branch = driver_branch()
    if branch is not None and branch < row.get("driver", 0):
        pytest.skip(f"seen on driver {row['driver']}, this is {branch}")
    if not re.search(row.get("only", ""), gpu_name()):
        pytest.skip(f"seen on {row['only']} alone, this is {gpu_name()}")
    printed = real(row["source"])
    assert re.fullmatch(row["output"], printed), printed


def test_facts_and_rows_match() -> None:
    page = (HERE.parents[1] / "docs" / "facts.md").read_text(encoding="utf-8")
    section = page[page.index("\nMeasured on the control daemon") : page.index("\n## Threads")]
    written = [
        line.split(" | ")[0].removeprefix("| ")
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    repeated = {fact for row in ROWS for fact in row.get("facts", ())}
    assert sorted(repeated - set(written)) == []
    assert sorted(set(written) - repeated - ELSEWHERE - {"what was done"}) == []
