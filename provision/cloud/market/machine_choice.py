"""The defaults for a VM: its machine type and the type of its boot disk. Pure."""

from __future__ import annotations

from provision.cloud.market.catalog import COMFORTABLE_VCPUS, gpu_type, n1_default
from provision.cloud.market.shape_rules import check_count

_HYPERDISK_PREFIXES = ("a4-", "a4x-", "a3-ultragpu-", "g4-", "n4-", "c4-", "c4a-", "m4-", "h3-")


def default_disk_type(machine_type: str) -> str:
    """Return the boot disk type: Hyperdisk where the family takes nothing else, or balanced PD."""
    return "hyperdisk-balanced" if machine_type.startswith(_HYPERDISK_PREFIXES) else "pd-balanced"


def choose_machine_type(
    gpu: str | None, count: int, requested: str | None, dataflow: str | None = None
) -> str:
    """Return `requested`, or the `dataflow` job's machine type, or the smallest comfortable one.

    Raises `SettingsError` for an unknown GPU type, or a count that it is not offered in.
    """
    if requested or dataflow:
        return str(requested or dataflow)
    if gpu is None:
        return "n1-standard-8"
    found = gpu_type(gpu)
    check_count(found, count)
    if not found.bundled:
        return n1_default(found, count)
    fitting = sorted(
        (m for m in found.machine_types if m.gpu_count == count and not m.gpu_fraction),
        key=lambda m: m.vcpus,
    )
    comfortable = [machine for machine in fitting if machine.vcpus >= COMFORTABLE_VCPUS]
    return (comfortable or fitting)[0].name
