"""Every reader of provision.mps raises only `ProvisionError`, for any text."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import provision.mps
from provision.core.errors import ProvisionError
from provision.mps import explain
from provision.mps.bench import cell, cores, target_facts
from provision.mps.bench.cell import Cell
from provision.mps.daemon import probe_client
from provision.mps.doctor import evidence
from provision.mps.plan import gpu_limits, host_facts, measure

CLIENTS = 2
CELLS = [
    Cell(
        clients=CLIENTS,
        percentage=percentage,
        steps=1,
        threads=1,
        cores=("-", "-"),
        words=("x",),
        program_waits=True,
    )
    for percentage in (None, 50)
]
READERS: Mapping[str, Callable[[str], Any]] = {
    "bench.cores.parse_cpu_list": cores.parse_cpu_list,
    "bench.target_facts.read_target_facts": target_facts.read_target_facts,
    "bench.cell.read_cell": lambda text: [cell.read_cell(text, CELLS[len(text) % 2], "box")],
    "daemon.probe_client.read_probe": probe_client.read_probe,
    "explain.explain": explain.explain,
    "doctor.evidence.read_evidence": lambda text: evidence.read_evidence(text, text[::-1]),
    "plan.measure.read_measurement": measure.read_measurement,
    "plan.gpu_limits.sms_of": gpu_limits.sms_of,
    "plan.host_facts.is_running": host_facts.is_running,
    "plan.host_facts.is_mock": host_facts.is_mock,
    "plan.host_facts.gpu_uuid": host_facts.gpu_uuid,
    "plan.host_facts.host_facts": host_facts.host_facts,
}
ELSEWHERE = frozenset(("status.control_tool", "status.status", "status.gpu_users", "doctor.logs"))
"""Modules whose functions test_parse.py covers."""
SAMPLE = """idle 0
go 1700000000.5
attached 0 1
peak 900
client 0 1700000000.6 1700000009.1 0
client 1 1700000000.6 1700000009.2 0
printed 0 loss 0.3
late 1 importing
failed the daemon does not answer
done
none,mps,100/N,200/N
1h30m
6m
90s
0-3,8
running=true
mock=yes
gpu=0, GPU-0, NVIDIA H200, 580.1, 143771, 0, 143771, 9.0, Default, Disabled, 3, Enabled, 00:04.0
banner=| NVIDIA-SMI 580.126.09   Driver Version: 580.126.09   CUDA Version: 13.0 |
vcpus=16
shm_mib=64
pid=7
init=0
context=0
driver=13000
sms=132
ready=1
library=libcuda.so.1: cannot open
before=5
memory 700, 40
activity # gpu sm smutil
activity 0 3 12
times=0m1.23s 0m0.04s
start=10.5
end=20.5
process|7|1|S|/run/mps/pipe
worker|7|python3
env|7|CUDA_VISIBLE_DEVICES|0
"""
PIECES = st.sampled_from(sorted({*SAMPLE.split(), *SAMPLE.splitlines()}))
AWKWARD = st.sampled_from(
    [
        ",",
        "\n",
        "|",
        "=",
        "-",
        "-1",
        "nan",
        "inf",
        "1e400",
        "٣",
        "²",
        "\0",
        "\x85",
        "9" * 5000,
        "9" * 5000 + "h",
    ]
)
LIKELY = st.tuples(
    st.sampled_from([" ", "\n", "", "\n\n"]),
    st.lists(PIECES | AWKWARD | st.text(max_size=4), max_size=25),
).map(lambda made: made[0].join(made[1]))


@st.composite
def damaged_texts(draw: st.DrawFn) -> str:
    """The text with one word replaced or one line left out."""
    lines = SAMPLE.splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    words = lines[at].replace("=", " = ").split() if draw(st.booleans()) else lines[at].split()
    words[draw(st.integers(0, len(words) - 1))] = draw(AWKWARD)
    lines[at : at + 1] = draw(st.sampled_from([[" ".join(words)], ["".join(words)], []]))
    return "\n".join(line for line in lines if not line.startswith("failed") or draw(st.booleans()))


@pytest.mark.parametrize("name", READERS)
@given(text=damaged_texts() | AWKWARD | LIKELY | st.text())
def test_any_text_raises_only_provision_errors(name: str, text: str) -> None:
    with contextlib.suppress(ProvisionError):
        READERS[name](text)


def takes_text(function: Any, module: ModuleType) -> bool:
    if (
        not inspect.isfunction(function)
        or function.__module__ != module.__name__
        or function.__name__.startswith("_")
    ):
        return False
    return bool({"text", "container_text", "name"} & set(inspect.signature(function).parameters))


def test_every_reader_is_covered() -> None:
    found = set()
    for info in pkgutil.walk_packages(provision.mps.__path__, "provision.mps."):
        short = info.name.removeprefix("provision.mps.")
        if not info.ispkg and short not in ELSEWHERE and not short.startswith("bench.workloads"):
            module = importlib.import_module(info.name)
            found |= {
                f"{short}.{name}"
                for name, value in vars(module).items()
                if takes_text(value, module)
            }
    assert found == set(READERS)
