"""What the control tool answers, on the mock and, with PROVISION_TEST_GPU, on this machine's own driver.

The rows are data; a place runs the shell of a row in fresh directories. The real place needs nothing but pytest:
`PROVISION_TEST_GPU=1 python -m pytest tests/mps_rows -m gpu --noconftest`.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

ROWS = tomllib.loads(Path(__file__).with_name("rows.toml").read_text(encoding="utf-8"))["row"]
NUMBERS = count(1)
Place = Callable[[str], str]

PRELUDE = """
say() { printf '%s\\n' "$@" | nvidia-cuda-mps-control 2>&1; echo "[$?]"; }
answers() { echo get_server_list | nvidia-cuda-mps-control >/dev/null 2>&1; }
answering() { tries=0; until answers || test "$tries" -gt 100; do tries=$((tries + 1)); sleep 0.1; done; }
gone() { tries=0; while answers && test "$tries" -lt 100; do tries=$((tries + 1)); sleep 0.1; done; }
start() { nvidia-cuda-mps-control -d >/dev/null 2>&1; answering; }
server() {
    echo "start_server -uid $(id -u)" | nvidia-cuda-mps-control
    tries=0
    while :; do
        SERVER=$(echo get_server_list | nvidia-cuda-mps-control | tail -n 1)
        test "$(echo "get_server_status $SERVER" | nvidia-cuda-mps-control)" != ACTIVE || return 0
        test "$tries" -lt 100 || return 1
        tries=$((tries + 1))
        sleep 0.1
    done
}
CONTROL=$(command -v nvidia-cuda-mps-control)
"""
# What `docker exec -u 1000` sets on the mock, and a real change of the user.
AS_1000_MOCK = """
other() { printf '%s\\n' "$@" | PROVISION_MOCK_SUDO= PROVISION_MOCK_UID=1000 nvidia-cuda-mps-control 2>&1; echo "[$?]"; }
"""
AS_1000 = """
other() { printf '%s\\n' "$@" | setpriv --reuid 1000 --regid 1000 --clear-groups "$CONTROL" 2>&1; echo "[$?]"; }
"""
AFTER = """
{
    test ! -e "$P/nvidia-cuda-mps-control.pid" || echo 'quit -t 1' | nvidia-cuda-mps-control
    test ! -e "$P/nvidia-cuda-mps-control.pid" || kill -KILL "$(cat "$P/nvidia-cuda-mps-control.pid")"
    rm -rf "$P" "$L" "$P.said"
} >/dev/null 2>&1
true
"""


@pytest.fixture(scope="module")
def mock() -> Iterator[Place]:
    """A container of a mock host that has the driver."""
    from provision.testing import MockHost

    with MockHost() as host:
        root, driver = "$PROVISION_MOCK_ROOT", "/var/lib/nvidia"
        host.run(f"sudo cos-extensions install gpu; sudo mount --bind {driver} {driver}; sudo mount -o remount,exec {driver}")
        options = (
            f'--device "{root}/dev/nvidia0" --device /dev/nvidiactl --volume "{root}"/var/lib/nvidia/bin:/usr/local/nvidia/bin:ro '
            f'--volume "{root}"/var/lib/nvidia/lib64:/usr/local/nvidia/lib64:ro --env LD_LIBRARY_PATH=/usr/local/nvidia/lib64 '
            "--env PATH=/usr/local/nvidia/bin:/usr/bin"
        )
        assert host.run(f"docker run -d --init --name dev --entrypoint sleep {options} python:3.11 infinity").status == 0

        def run(source: str) -> str:
            number = next(NUMBERS)
            names = f"export CUDA_MPS_PIPE_DIRECTORY=/run/p{number} CUDA_MPS_LOG_DIRECTORY=/run/l{number}\n"
            paths = f'P="{root}/run/p{number}" L="{root}/run/l{number}"\n'
            whole = names + paths + PRELUDE + AS_1000_MOCK + source + AFTER
            return host.run("docker exec -i dev sh -s", stdin=whole.encode()).output

        yield run


@pytest.fixture(scope="module")
def real() -> Place:
    """This machine: its own driver's control tool, as root."""
    if not os.environ.get("PROVISION_TEST_GPU"):
        pytest.skip("PROVISION_TEST_GPU is not set")

    def run(source: str) -> str:
        folder = Path("/tmp") / f"mps-rows-{os.getpid()}-{next(NUMBERS)}"
        folder.mkdir(mode=0o755)
        names = f"P={folder}/p L={folder}/l\nexport CUDA_MPS_PIPE_DIRECTORY=$P CUDA_MPS_LOG_DIRECTORY=$L\n"
        whole = names + PRELUDE + AS_1000 + source + AFTER + f"rmdir {folder}\n"
        done = subprocess.run(["sh", "-c", "exec sh -s 2>&1"], input=whole, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout

    return run


def named(row: Mapping[str, Any]) -> str:
    return str(row["name"])


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_the_mock_answers_as_the_real_one(mock: Place, row: Mapping[str, Any]) -> None:
    said = mock(row["source"])
    assert re.fullmatch(row["output"], said), said


@pytest.mark.gpu
@pytest.mark.parametrize("row", ROWS, ids=named)
def test_the_real_one_answers_as_written_down(real: Place, row: Mapping[str, Any]) -> None:
    said = real(row["source"])
    assert re.fullmatch(row["output"], said), said
