"""GPU types and the machine types that carry them, from the packaged table. Pure.

Source of the table: Compute Engine, "GPU machine types" (page of 2026-04-14), NVIDIA's CUDA GPU
pages (compute capability) and Container-Optimized OS, "Running GPU instances"; each row of
data/gpu_machines.json names its source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Protocol

from provision.core.errors import SettingsError

COMFORTABLE_VCPUS = 8
"""vCPUs of a default machine, or more: one SDK process per vCPU shares the GPU."""

_N1_MEMORY_GB_PER_VCPU = {"standard": 3.75, "highmem": 6.5, "highcpu": 0.9}
_N1_SIZES = {
    "standard": (1, 2, 4, 8, 16, 32, 64, 96),
    "highmem": (2, 4, 8, 16, 32, 64, 96),
    "highcpu": (2, 4, 8, 16, 32, 64, 96),
}


class _HasShape(Protocol):
    """A Vm or a VmSpec: it has the three fields of a shape."""

    @property
    def machine_type(self) -> str: ...
    @property
    def gpu(self) -> str | None: ...
    @property
    def gpu_count(self) -> int: ...


@dataclass(frozen=True)
class Shape:
    """A machine type and its GPUs, attached or part of the type."""

    machine_type: str
    gpu: str | None = None
    gpu_count: int = 0

    @classmethod
    def of(cls, thing: _HasShape) -> Shape:
        """Return the shape of a Vm or of a VmSpec."""
        return cls(thing.machine_type, thing.gpu, thing.gpu_count)

    def __str__(self) -> str:
        gpus = f" + {self.gpu_count} x {self.gpu}" if self.gpu else ""
        return f"{self.machine_type}{gpus}"


@dataclass(frozen=True)
class MachineType:
    """A machine type; `gpu_count` are its own GPUs (0 for N1, where GPUs are attached)."""

    name: str
    vcpus: int
    memory_gb: float
    gpu_count: int = 0
    local_ssd_gb: int = 0
    gpu_fraction: str = ""
    provisioning: tuple[str, ...] = ()
    """The provisioning models that it can be had as; empty: all."""

    @property
    def custom(self) -> bool:
        """True for a custom type (`custom-8-30720`), which has rates of its own."""
        return "custom-" in self.name

    @property
    def series(self) -> str:
        """The machine series: `n1` for `n1-standard-8`."""
        return self.name.split("-", 1)[0]


@dataclass(frozen=True)
class N1Limit:
    """The largest N1 machine that may carry `gpu_count` GPUs; some zones allow less."""

    gpu_count: int
    max_vcpus: int
    max_memory_gb: float
    exceptions: Mapping[str, tuple[int, float]]

    def for_zone(self, zone: str) -> tuple[int, float]:
        """Return the limit (vCPUs, GB) in `zone`; the general limit for ""."""
        return self.exceptions.get(zone, (self.max_vcpus, self.max_memory_gb))


@dataclass(frozen=True)
class GpuType:
    """One accelerator type, and the machine types and disks that it can be combined with."""

    accelerator: str
    series: str
    arch: str
    counts: tuple[int, ...]
    machine_types: tuple[MachineType, ...]
    n1_limits: tuple[N1Limit, ...]
    memory_gb: int
    boot_disk_types: tuple[str, ...]
    cos_supported: bool
    cos_min_milestone: int | None
    cos_basis: str
    cos_avoid_milestones: tuple[int, ...] = ()
    """Milestones of Container-Optimized OS with known problems on this GPU."""
    min_driver: int = 0
    """Oldest driver branch that supports it (535 of R535); 0: unknown."""
    max_driver: int = 0
    """Newest driver branch that supports it; 0: unknown."""

    @property
    def bundled(self) -> bool:
        """True when the GPU is part of its machine types, False when it is attached to N1."""
        return not self.n1_limits


def _gpu_type(row: Mapping[str, Any]) -> GpuType:
    return GpuType(
        accelerator=row["accelerator"],
        series=row["series"],
        arch=row["arch"],
        counts=tuple(row["counts"]),
        machine_types=tuple(_machine_type(entry) for entry in row["machine_types"] or ()),
        n1_limits=tuple(_n1_limit(entry) for entry in row["n1_limits"] or ()),
        memory_gb=row["gpu_memory_gb"],
        boot_disk_types=tuple(row["boot_disk_types"]),
        cos_supported=row["cos_support"]["supported"],
        cos_min_milestone=row["cos_support"]["min_milestone"],
        cos_basis=row["cos_support"]["basis"],
        cos_avoid_milestones=tuple(row["cos_support"].get("avoid_milestones", ())),
        min_driver=row.get("driver_branches", {}).get("min", 0),
        max_driver=row.get("driver_branches", {}).get("max", 0),
    )


def _machine_type(row: Mapping[str, Any]) -> MachineType:
    return MachineType(
        name=row["name"],
        vcpus=row["vcpus"],
        memory_gb=row["memory_gb"],
        gpu_count=row["gpu_count"],
        local_ssd_gb=0 if row.get("local_ssd_optional") else row["local_ssd_gb"] or 0,
        gpu_fraction=row.get("gpu_fraction", ""),
        provisioning=tuple(row.get("provisioning", ())),
    )


def _n1_limit(row: Mapping[str, Any]) -> N1Limit:
    exceptions = {
        zone: (entry["max_vcpus"], entry["max_memory_gb"])
        for entry in row.get("exceptions", ())
        for zone in entry["zones"]
    }
    return N1Limit(row["gpu_count"], row["max_vcpus"], row["max_memory_gb"], exceptions)


@cache
def gpu_types() -> Mapping[str, GpuType]:
    """Return every GPU type of the packaged table by its API name."""
    table = resources.files("provision.cloud.market").joinpath("data/gpu_machines.json")
    rows = json.loads(table.read_text(encoding="utf-8"))
    return {gpu.accelerator: gpu for gpu in map(_gpu_type, rows)}


@cache
def bundled_machine_types() -> Mapping[str, tuple[GpuType, MachineType]]:
    """Return name → (GPU type, machine type) for the machine types with GPUs of their own."""
    return {
        machine.name: (gpu, machine)
        for gpu in gpu_types().values()
        for machine in gpu.machine_types
    }


@cache
def _short_names() -> Mapping[str, str]:
    names: dict[str, str] = {}
    for name in gpu_types():
        short = name.removeprefix("nvidia-").removeprefix("tesla-")
        names[short] = name
        names.setdefault(re.sub(r"-\d+gb$", "", short), name)
    names["a100"] = names["a100-40gb"] = "nvidia-tesla-a100"
    return names


_NOT_OFFERED = {
    "gh200": "it is not among Compute Engine's GPU types (page of 2026-04-14), and its host is "
    "Arm: COS installs GPU drivers on x86 alone"
}


def gpu_type(name: str) -> GpuType:
    """Return the GPU type of an API name (`nvidia-l4`) or a short name (`l4`, `h100`).

    Raises `SettingsError` for an unknown type; it lists the known ones.
    """
    key = name.strip().lower()
    known = gpu_types()
    short = key.removeprefix("nvidia-")
    found = known.get(key) or known.get(_short_names().get(short, ""))
    if found is not None:
        return found
    if short in _NOT_OFFERED:
        raise unusable_gpu(name, _NOT_OFFERED[short])
    if key.endswith("-vws"):
        raise SettingsError(
            f"{name} cannot be used here",
            where="gpu",
            why="it is a virtual workstation: the same GPU with a licence for graphics",
            fix=f"set gpu: {gpu_type(key.removesuffix('-vws')).accelerator}",
        )
    raise SettingsError(
        f"unknown GPU type {name!r}",
        where="gpu",
        why=f"known types: {', '.join(sorted(known))}",
        fix="gcloud compute accelerator-types list",
    )


def unusable_gpu(gpu: str, why: str) -> SettingsError:
    """Return the error for a GPU type that Container-Optimized OS does not support."""
    return SettingsError(
        f"{gpu} cannot be used here",
        where="gpu",
        why=why,
        fix="choose an x86 GPU type, for example gpu: nvidia-l4",
    )


def parse_n1(name: str) -> MachineType | None:
    """Return an N1 machine type by its name; None for another name.

    Forms: predefined (`n1-standard-8`) and custom (`custom-8-30720`, `n1-custom-8-30720-ext`, with
    the memory in MB).
    """
    custom = re.fullmatch(r"(?:n1-)?custom-(\d+)-(\d+)(?:-ext)?", name)
    if custom:
        vcpus, memory_mb = int(custom[1]), int(custom[2])
        valid_vcpus = 1 <= vcpus <= 96 and (vcpus == 1 or vcpus % 2 == 0)
        valid_memory = memory_mb > 0 and memory_mb % 256 == 0
        return MachineType(name, vcpus, memory_mb / 1024) if valid_vcpus and valid_memory else None
    predefined = re.fullmatch(r"n1-(standard|highmem|highcpu)-(\d+)", name)
    if predefined and int(predefined[2]) in _N1_SIZES[predefined[1]]:
        return _n1_predefined(predefined[1], int(predefined[2]))
    return None


def _n1_predefined(kind: str, vcpus: int) -> MachineType:
    return MachineType(f"n1-{kind}-{vcpus}", vcpus, vcpus * _N1_MEMORY_GB_PER_VCPU[kind])


def n1_predefined() -> Sequence[MachineType]:
    """Return all predefined N1 types."""
    return [_n1_predefined(kind, vcpus) for kind, sizes in _N1_SIZES.items() for vcpus in sizes]


def n1_default(gpu: GpuType, count: int) -> str:
    """Return the smallest comfortable N1 standard type that may carry `count` of the GPU."""
    limit = next(limit for limit in gpu.n1_limits if limit.gpu_count == count)
    least = min(COMFORTABLE_VCPUS * count, limit.max_vcpus // 2)
    return f"n1-standard-{min(size for size in _N1_SIZES['standard'] if size >= least)}"


def machine_type(name: str) -> MachineType | None:
    """Return a machine type of the packaged table, or an N1 type; None for any other."""
    bundled = bundled_machine_types().get(name)
    return bundled[1] if bundled else parse_n1(name)
