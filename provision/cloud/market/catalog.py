"""GPU types and the machine types that carry them, from the packaged table. Pure.

Source of the table: Compute Engine, "GPU machine types" (page of 2026-04-14), NVIDIA's CUDA GPU
pages (compute capability) and Container-Optimized OS, "Running GPU instances"; each row of
data/gpu_machines.json names its own.
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

MIN_GPU_DISK_GB = 50
"""Driver, CUDA libraries and one GPU image need this much on the boot disk."""
MIN_DISK_GB = 10
"""Size of the Container-Optimized OS image."""
COMFORTABLE_VCPUS = 8
"""A default machine has at least this many where the family offers it: one SDK process per vCPU
shares the GPU."""

_N1_MEMORY_GB_PER_VCPU = {"standard": 3.75, "highmem": 6.5, "highcpu": 0.9}
_N1_SIZES = {
    "standard": (1, 2, 4, 8, 16, 32, 64, 96),
    "highmem": (2, 4, 8, 16, 32, 64, 96),
    "highcpu": (2, 4, 8, 16, 32, 64, 96),
}
_SHARED_CORE = ("f1-micro", "g1-small")
_HYPERDISK_PREFIXES = ("a4-", "a4x-", "a3-ultragpu-", "g4-", "n4-", "c4-", "c4a-", "m4-", "h3-")


class _Shaped(Protocol):
    """Whatever has the three words of a shape: a VM, or what is asked for."""

    @property
    def machine_type(self) -> str: ...
    @property
    def gpu(self) -> str | None: ...
    @property
    def gpu_count(self) -> int: ...


@dataclass(frozen=True)
class Shape:
    """A machine type and the GPUs on it, attached or its own."""

    machine_type: str
    gpu: str | None = None
    gpu_count: int = 0

    @classmethod
    def of(cls, thing: _Shaped) -> Shape:
        """That of a VM or of what is asked for."""
        return cls(thing.machine_type, thing.gpu, thing.gpu_count)

    def __str__(self) -> str:
        return (
            f"{self.machine_type} + {self.gpu_count} x {self.gpu}"
            if self.gpu
            else self.machine_type
        )


@dataclass(frozen=True)
class MachineType:
    """A machine type; `gpu_count` is what it brings itself (0 for N1, where GPUs are attached)."""

    name: str
    vcpus: int
    memory_gb: float
    gpu_count: int = 0
    local_ssd_gb: int = 0
    gpu_fraction: str = ""
    provisioning: tuple[str, ...] = ()
    """Provisioning models it is limited to; empty: any."""

    @property
    def custom(self) -> bool:
        """True for a type of one's own numbers (`custom-8-30720`), which has rates of its own."""
        return "custom-" in self.name

    @property
    def series(self) -> str:
        """`n1` of `n1-standard-8`."""
        return self.name.split("-", 1)[0]


@dataclass(frozen=True)
class N1Limit:
    """The largest N1 machine that may carry `gpu_count` GPUs; some zones allow less."""

    gpu_count: int
    max_vcpus: int
    max_memory_gb: float
    exceptions: Mapping[str, tuple[int, float]]

    def for_zone(self, zone: str) -> tuple[int, float]:
        """(vCPUs, GB) in `zone`; the general limit for an empty or ordinary zone."""
        return self.exceptions.get(zone, (self.max_vcpus, self.max_memory_gb))


@dataclass(frozen=True)
class GpuType:
    """One accelerator type and what it can be had with."""

    accelerator: str
    series: str
    arch: str
    counts: tuple[int, ...]
    machine_types: tuple[MachineType, ...]
    n1_limits: tuple[N1Limit, ...]
    memory_gb: int
    compute_capability: str
    boot_disk_types: tuple[str, ...]
    cos_supported: bool
    cos_min_milestone: int | None
    cos_basis: str
    cos_avoid_milestones: tuple[int, ...] = ()
    """Milestones of Container-Optimized OS with known trouble."""
    min_driver: int = 0
    """Oldest driver branch that drives it (535 of R535); 0: none is known."""
    max_driver: int = 0
    """Newest driver branch that drives it; 0: none is known."""

    @property
    def bundled(self) -> bool:
        """True when the machine type brings the GPU and none is attached."""
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
        compute_capability=row["compute_capability"],
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
    """Every GPU type of the packaged table by its API name."""
    text = (
        resources.files("provision.cloud.market")
        .joinpath("data/gpu_machines.json")
        .read_text(encoding="utf-8")
    )
    return {gpu.accelerator: gpu for gpu in map(_gpu_type, json.loads(text))}


@cache
def bundled_machine_types() -> Mapping[str, tuple[GpuType, MachineType]]:
    """Machine types that bring GPUs, by name."""
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


_NOT_TO_BE_HAD = {
    "gh200": "it is not among Compute Engine's GPU types (page of 2026-04-14), and its host is Arm: COS installs GPU drivers on x86 alone"
}


def gpu_type(name: str) -> GpuType:
    """The GPU type of an API name (`nvidia-l4`) or a short one (`l4`, `h100`); SettingsError names the known ones."""
    key = name.strip().lower()
    known = gpu_types()
    short = key.removeprefix("nvidia-")
    found = known.get(key) or known.get(_short_names().get(short, ""))
    if found is None and short in _NOT_TO_BE_HAD:
        raise _unusable(name, _NOT_TO_BE_HAD[short])
    if found is None and key.endswith("-vws"):
        plain = gpu_type(key.removesuffix("-vws")).accelerator
        why = "it is a virtual workstation: the same GPU with a licence for graphics"
        raise SettingsError(
            f"{name} cannot be used here", where="gpu", why=why, fix=f"set gpu: {plain}"
        )
    if found is None:
        allowed = ", ".join(sorted(known))
        raise SettingsError(
            f"unknown GPU type {name!r}",
            where="gpu",
            why=f"known types: {allowed}",
            fix="gcloud compute accelerator-types list",
        )
    return found


def parse_n1(name: str) -> MachineType | None:
    """An N1 type, predefined (`n1-standard-8`) or custom (`custom-8-30720`, `n1-custom-8-30720-ext`, MB); else None."""
    custom = re.fullmatch(r"(?:n1-)?custom-(\d+)-(\d+)(?:-ext)?", name)
    if custom:
        vcpus, memory_mb = int(custom[1]), int(custom[2])
        valid = (
            (vcpus == 1 or vcpus % 2 == 0)
            and 1 <= vcpus <= 96
            and memory_mb > 0
            and memory_mb % 256 == 0
        )
        return MachineType(name, vcpus, memory_mb / 1024) if valid else None
    predefined = re.fullmatch(r"n1-(standard|highmem|highcpu)-(\d+)", name)
    if predefined and int(predefined[2]) in _N1_SIZES[predefined[1]]:
        vcpus = int(predefined[2])
        return MachineType(name, vcpus, vcpus * _N1_MEMORY_GB_PER_VCPU[predefined[1]])
    return None


def machine(name: str) -> MachineType | None:
    """A machine type of the packaged table, or an N1 type; None for any other."""
    bundled = bundled_machine_types().get(name)
    return bundled[1] if bundled else parse_n1(name)


def n1_predefined() -> Sequence[MachineType]:
    """All predefined N1 types."""
    return [
        MachineType(f"n1-{kind}-{size}", size, size * _N1_MEMORY_GB_PER_VCPU[kind])
        for kind, sizes in _N1_SIZES.items()
        for size in sizes
    ]


def default_disk_type(machine_type: str) -> str:
    """The boot disk type for a machine type: Hyperdisk where the family takes nothing else, balanced PD elsewhere."""
    return "hyperdisk-balanced" if machine_type.startswith(_HYPERDISK_PREFIXES) else "pd-balanced"


def machine_for(gpu: str | None, count: int, requested: str | None, job: str | None = None) -> str:
    """The machine type to ask for: `requested`, or that of the Dataflow `job` this VM stands in for, or the smallest comfortable one."""
    if requested or job:
        return str(requested or job)
    if gpu is None:
        return "n1-standard-8"
    found = gpu_type(gpu)
    _check_count(found, count)
    if not found.bundled:
        return _n1_default(found, count)
    fitting = sorted(
        (m for m in found.machine_types if m.gpu_count == count and not m.gpu_fraction),
        key=lambda m: m.vcpus,
    )
    comfortable = [machine for machine in fitting if machine.vcpus >= COMFORTABLE_VCPUS]
    return (comfortable or fitting)[0].name


def _n1_default(gpu: GpuType, count: int) -> str:
    limit = next(limit for limit in gpu.n1_limits if limit.gpu_count == count)
    vcpus = min(
        size
        for size in _N1_SIZES["standard"]
        if size >= min(COMFORTABLE_VCPUS * count, limit.max_vcpus // 2)
    )
    return f"n1-standard-{vcpus}"


def validate_shape(
    gpu: str | None,
    count: int,
    machine_type: str,
    disk_gb: int,
    *,
    zone: str = "",
    provisioning: str = "STANDARD",
) -> None:
    """Refuse what Compute Engine or Container-Optimized OS would refuse later; SettingsError says what is allowed."""
    if gpu is None:
        if count:
            raise SettingsError(
                f"{count} GPUs of no type",
                where="gpu_count",
                why="gpu is not set",
                fix="set gpu: nvidia-l4, or gpu_count: 0",
            )
        bundled = bundled_machine_types().get(machine_type)
        if bundled:
            why = f"{machine_type} brings {bundled[1].gpu_count} x {bundled[0].accelerator}"
            raise SettingsError(
                f"machine type {machine_type} without a GPU",
                where="machine_type",
                why=why,
                fix=f"set gpu: {bundled[0].accelerator}",
            )
        _check_disk(disk_gb, MIN_DISK_GB, "the Container-Optimized OS image is 10 GB")
        return
    found = gpu_type(gpu)
    check_supported(gpu)
    _check_count(found, count)
    if found.bundled:
        _check_bundled(found, count, machine_type, provisioning)
    else:
        _check_n1(found, count, machine_type, zone)
    _check_disk(
        disk_gb, MIN_GPU_DISK_GB, "driver, CUDA libraries and one GPU image do not fit into less"
    )


def driver_branch(driver: str) -> int | None:
    """The branch of `R535` or `535.183.01`; None for `default` and `latest`, which the image decides."""
    found = re.match(r"R?(\d{3})(?:\.|\Z)", driver)
    return int(found[1]) if found else None


def check_driver(gpu: str | None, driver: str) -> None:
    """Refuse a driver that is too old for the GPU; SettingsError names the setting."""
    branch = driver_branch(driver)
    least = gpu_type(gpu).min_driver if gpu else 0
    if branch is not None and branch < least:
        why = f"{gpu_type(str(gpu)).accelerator} needs a driver of branch R{least} or newer"
        raise SettingsError(
            f"the driver {driver} is too old for the GPU",
            where="driver",
            why=why,
            fix="set driver: default",
        )


def unusable_because(gpu: GpuType) -> str:
    """Why no VM with this GPU is made here; empty where one is."""
    return "" if gpu.arch == "x86_64" and gpu.cos_supported else gpu.cos_basis


def check_supported(gpu: str | None) -> None:
    """Refuse a GPU that cannot be used here, whatever the count and the machine; SettingsError says why."""
    if gpu is not None and (why := unusable_because(gpu_type(gpu))):
        raise _unusable(gpu_type(gpu).accelerator, why)


def _unusable(gpu: str, why: str) -> SettingsError:
    return SettingsError(
        f"{gpu} cannot be used here",
        where="gpu",
        why=why,
        fix="choose an x86 GPU type, for example gpu: nvidia-l4",
    )


def _check_count(gpu: GpuType, count: int) -> None:
    if count not in gpu.counts:
        allowed = ", ".join(map(str, gpu.counts))
        raise SettingsError(
            f"{count} x {gpu.accelerator} is not offered",
            where="gpu_count",
            why=f"allowed: {allowed}",
            fix=f"set gpu_count: {gpu.counts[0]}",
        )


def _check_bundled(gpu: GpuType, count: int, machine_type: str, provisioning: str) -> None:
    offered = [
        machine
        for machine in gpu.machine_types
        if machine.gpu_count == count and not machine.gpu_fraction
    ]
    chosen = next((machine for machine in gpu.machine_types if machine.name == machine_type), None)
    if chosen is not None and chosen.gpu_fraction:
        why = f"it carries {chosen.gpu_fraction} of a GPU (a vGPU slice); driver support on Container-Optimized OS is not established"
        raise SettingsError(
            f"machine type {machine_type} is refused",
            where="machine_type",
            why=why,
            fix=f"set machine_type: {offered[0].name}",
        )
    if chosen not in offered:
        why = f"{count} x {gpu.accelerator} comes with: " + ", ".join(
            machine.name for machine in offered
        )
        raise SettingsError(
            f"machine type {machine_type} does not fit the GPU",
            where="machine_type",
            why=why,
            fix=f"set machine_type: {offered[0].name}",
        )
    if chosen is not None and chosen.provisioning and provisioning not in chosen.provisioning:
        why = "it can be had only as: " + ", ".join(chosen.provisioning)
        whole = next((m for m in gpu.machine_types if not m.provisioning), None)
        fix = (
            f"set machine_type: {whole.name} and gpu_count: {whole.gpu_count}"
            if whole
            else "set gpu: nvidia-l4"
        )
        raise SettingsError(
            f"machine type {machine_type} cannot be had as {provisioning}",
            where="machine_type",
            why=why,
            fix=fix,
        )


def _check_n1(gpu: GpuType, count: int, machine_type: str, zone: str) -> None:
    machine = parse_n1(machine_type)
    limit = next(limit for limit in gpu.n1_limits if limit.gpu_count == count)
    max_vcpus, max_memory_gb = limit.for_zone(zone)
    allowed = f"{count} x {gpu.accelerator} is attached to an N1 machine of at most {max_vcpus} vCPUs and {max_memory_gb:g} GB"
    fix = f"set machine_type: {_n1_default(gpu, count)}"
    if machine is None:
        shared = " (shared-core types take no GPU)" if machine_type in _SHARED_CORE else ""
        raise SettingsError(
            f"machine type {machine_type} does not fit the GPU",
            where="machine_type",
            why=allowed + shared,
            fix=fix,
        )
    if machine.vcpus > max_vcpus or machine.memory_gb > max_memory_gb:
        size = f"{machine_type} has {machine.vcpus} vCPUs and {machine.memory_gb:g} GB; "
        raise SettingsError(
            f"machine type {machine_type} is too large for the GPU",
            where="machine_type",
            why=size + allowed,
            fix=fix,
        )


def _check_disk(disk_gb: int, least_gb: int, why: str) -> None:
    if disk_gb < least_gb:
        raise SettingsError(
            f"a boot disk of {disk_gb} GB is too small",
            where="disk_gb",
            why=f"{why}; at least {least_gb} GB",
            fix="set disk_gb: 200",
        )
