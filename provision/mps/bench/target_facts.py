"""Facts of host, container and GPU for a benchmark: one script, and its output read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.core.shell import Script, fields, script, shell_text
from provision.mps.bench.cores import parse_cpu_list
from provision.resources.container import IS_RUNNING, WORKER_FUNCTIONS

HERE = Path(__file__).parent


@dataclass(frozen=True)
class TargetFacts:
    """The host, the worker's container and its GPU. A text is empty where nothing was reported."""

    is_mock: bool
    running: Mapping[str, str]
    """`true` for each container that runs, by its name."""
    workers: tuple[str, ...]
    """The containers of the workers, the first worker's included."""
    cpus: tuple[int, ...]
    """The cores that a worker may run on."""
    has_taskset: bool
    has_python: bool
    has_torch: bool
    gpu_uuid: str
    """UUID of the GPU where the machine has several or the settings choose one. What nvidia-smi
    printed instead where there is no such GPU."""
    gpu_name: str
    driver: str
    gpu_memory: str
    """With its unit, as nvidia-smi prints it."""
    compute_mode: str


def target_facts_script(container: str, daemon: str, gpu: str) -> Script:
    """The script for the host whose output `read_target_facts` reads.

    `daemon` is the container of the MPS daemon; `gpu` the GPU of the settings (index or UUID),
    empty for the first one.
    """
    return script(
        HERE / "host_facts.sh",
        uses=[IS_RUNNING, *WORKER_FUNCTIONS],
        name=container,
        daemon=daemon,
        body=shell_text(HERE / "container_facts.sh"),
        gpu=gpu,
    )


def read_target_facts(text: str) -> TargetFacts:
    """The facts that the script of `target_facts_script` printed. Never raises."""
    values = {key: value.strip() for key, value in fields(text).items()}
    prefix = "running "
    return TargetFacts(
        is_mock=bool(values.get("mock")),
        running={
            key.removeprefix(prefix): value
            for key, value in values.items()
            if key.startswith(prefix)
        },
        workers=tuple(values.get("workers", "").split()),
        cpus=parse_cpu_list(values.get("cpus", "")),
        has_taskset=values.get("taskset") == "yes",
        has_python=values.get("python") == "yes",
        has_torch=values.get("torch") == "yes",
        gpu_uuid=values.get("gpu", ""),
        gpu_name=values.get("name", ""),
        driver=values.get("driver_version", ""),
        gpu_memory=values.get("memory.total", ""),
        compute_mode=values.get("compute_mode", ""),
    )
