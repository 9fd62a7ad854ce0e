"""Which combinations of GPU, machine type, disk and driver are possible. Pure.

Source: Compute Engine, "GPU machine types" and "Create an N1 VM that has attached GPUs";
Container-Optimized OS, "Running GPU instances".
"""

from __future__ import annotations

import re

from provision.cloud.market.catalog import (
    GpuType,
    MachineType,
    bundled_machine_types,
    gpu_type,
    n1_default,
    parse_n1,
    unusable_gpu,
)
from provision.core.errors import SettingsError

MIN_GPU_DISK_GB = 50
"""Driver, CUDA libraries and one GPU image need this much on the boot disk."""
MIN_DISK_GB = 10
"""Size of the Container-Optimized OS image."""
_SHARED_CORE = ("f1-micro", "g1-small")


def check_shape(
    gpu: str | None,
    count: int,
    machine_type: str,
    disk_gb: int,
    *,
    zone: str = "",
    provisioning: str = "STANDARD",
) -> None:
    """Raise `SettingsError` for what Compute Engine or COS would refuse, with what is allowed.

    With `zone`, its own limits apply. `provisioning` is the API's provisioning model.
    """
    if gpu is None:
        _check_without_gpu(count, machine_type)
        _check_disk(disk_gb, MIN_DISK_GB, "the Container-Optimized OS image is 10 GB")
        return
    found = gpu_type(gpu)
    check_supported(gpu)
    check_count(found, count)
    if found.bundled:
        _check_bundled(found, count, machine_type, provisioning)
    else:
        _check_n1(found, count, machine_type, zone)
    _check_disk(
        disk_gb, MIN_GPU_DISK_GB, "driver, CUDA libraries and one GPU image do not fit into less"
    )


def driver_branch(driver: str) -> int | None:
    """Return 535 for `R535` or `535.183.01`; None for `default` and `latest`."""
    found = re.match(r"R?(\d{3})(?:\.|\Z)", driver)
    return int(found[1]) if found else None


def check_driver(gpu: str | None, driver: str) -> None:
    """Raise `SettingsError` for a driver that is too old for the GPU."""
    branch = driver_branch(driver)
    least = gpu_type(gpu).min_driver if gpu else 0
    if branch is not None and branch < least:
        accelerator = gpu_type(str(gpu)).accelerator
        raise SettingsError(
            f"the driver {driver} is too old for the GPU",
            where="driver",
            why=f"{accelerator} needs a driver of branch R{least} or newer",
            fix="set driver: default",
        )


def unsupported_reason(gpu: GpuType) -> str:
    """Return why a VM with this GPU cannot be made here; "" where it can."""
    return "" if gpu.arch == "x86_64" and gpu.cos_supported else gpu.cos_basis


def check_supported(gpu: str | None) -> None:
    """Raise `SettingsError` for a GPU type that is unknown, or that cannot be used here."""
    if gpu is not None and (why := unsupported_reason(gpu_type(gpu))):
        raise unusable_gpu(gpu_type(gpu).accelerator, why)


def check_count(gpu: GpuType, count: int) -> None:
    """Raise `SettingsError` for a number of GPUs that the type is not offered in."""
    if count not in gpu.counts:
        raise SettingsError(
            f"{count} x {gpu.accelerator} is not offered",
            where="gpu_count",
            why=f"allowed: {', '.join(map(str, gpu.counts))}",
            fix=f"set gpu_count: {gpu.counts[0]}",
        )


def _check_without_gpu(count: int, machine_type: str) -> None:
    if count:
        raise SettingsError(
            f"{count} GPUs of no type",
            where="gpu_count",
            why="gpu is not set",
            fix="set gpu: nvidia-l4, or gpu_count: 0",
        )
    bundled = bundled_machine_types().get(machine_type)
    if bundled:
        raise SettingsError(
            f"machine type {machine_type} without a GPU",
            where="machine_type",
            why=f"{machine_type} brings {bundled[1].gpu_count} x {bundled[0].accelerator}",
            fix=f"set gpu: {bundled[0].accelerator}",
        )


def _check_bundled(gpu: GpuType, count: int, machine_type: str, provisioning: str) -> None:
    offered = [
        machine
        for machine in gpu.machine_types
        if machine.gpu_count == count and not machine.gpu_fraction
    ]
    fix = f"set machine_type: {offered[0].name}"
    chosen = next((machine for machine in gpu.machine_types if machine.name == machine_type), None)
    if chosen is not None and chosen.gpu_fraction:
        raise SettingsError(
            f"machine type {machine_type} is refused",
            where="machine_type",
            why=f"it carries {chosen.gpu_fraction} of a GPU (a vGPU slice); "
            "driver support on Container-Optimized OS is not established",
            fix=fix,
        )
    if chosen is None or chosen not in offered:
        names = ", ".join(machine.name for machine in offered)
        raise SettingsError(
            f"machine type {machine_type} does not fit the GPU",
            where="machine_type",
            why=f"{count} x {gpu.accelerator} comes with: {names}",
            fix=fix,
        )
    _check_provisioning(gpu, chosen, provisioning)


def _check_provisioning(gpu: GpuType, machine: MachineType, provisioning: str) -> None:
    if not machine.provisioning or provisioning in machine.provisioning:
        return
    other = next((m for m in gpu.machine_types if not m.provisioning), None)
    raise SettingsError(
        f"machine type {machine.name} cannot be had as {provisioning}",
        where="machine_type",
        why="it can be had only as: " + ", ".join(machine.provisioning),
        fix=f"set machine_type: {other.name} and gpu_count: {other.gpu_count}"
        if other
        else "set gpu: nvidia-l4",
    )


def _check_n1(gpu: GpuType, count: int, machine_type: str, zone: str) -> None:
    machine = parse_n1(machine_type)
    limit = next(limit for limit in gpu.n1_limits if limit.gpu_count == count)
    max_vcpus, max_memory_gb = limit.for_zone(zone)
    allowed = (
        f"{count} x {gpu.accelerator} is attached to an N1 machine of "
        f"at most {max_vcpus} vCPUs and {max_memory_gb:g} GB"
    )
    fix = f"set machine_type: {n1_default(gpu, count)}"
    if machine is None:
        shared = " (shared-core types take no GPU)" if machine_type in _SHARED_CORE else ""
        raise SettingsError(
            f"machine type {machine_type} does not fit the GPU",
            where="machine_type",
            why=allowed + shared,
            fix=fix,
        )
    if machine.vcpus > max_vcpus or machine.memory_gb > max_memory_gb:
        size = f"{machine_type} has {machine.vcpus} vCPUs and {machine.memory_gb:g} GB"
        raise SettingsError(
            f"machine type {machine_type} is too large for the GPU",
            where="machine_type",
            why=f"{size}; {allowed}",
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
