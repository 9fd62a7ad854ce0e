"""Whether a project's quotas have room for machines: a verdict for each metric. Pure.

Sources: Compute Engine API v1, `Quota.metric` (the list of metrics), and "Allocation quotas".
On-demand H100 and newer have no metric there; they are in Cloud Quotas by GPU family, which this
program does not read. Spot VMs draw on the PREEMPTIBLE_ metric once one was granted, else on the
ordinary one. A verdict is SHORT only where that is certain: nothing that Compute Engine would have
given may be refused here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.cloud.market import catalog
from provision.cloud.market.catalog import Shape
from provision.cloud.market.machine_choice import default_disk_type
from provision.core.model import VmSpec

GPU_METRICS: Mapping[str, str] = {
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-p4": "NVIDIA_P4_GPUS",
    "nvidia-tesla-p100": "NVIDIA_P100_GPUS",
    "nvidia-tesla-v100": "NVIDIA_V100_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
}
_SPOT_ONLY_METRICS = {"nvidia-h100-80gb": "PREEMPTIBLE_NVIDIA_H100_GPUS"}
_CPU_METRICS = {"n1": "CPUS", "a2": "A2_CPUS"}
"""Regional vCPU metrics; other families with GPUs have none of their own in the API's list."""
_DISK_METRICS = {"pd-balanced": "SSD_TOTAL_GB", "hyperdisk-balanced": "HDB_TOTAL_GB"}
"""What a boot disk draws on, by its type (`machine_choice.default_disk_type`)."""
_NOTHING: Mapping[str, float] = {}


class Room(enum.StrEnum):
    """Whether a quota has room."""

    OK = "ok"
    SHORT = "short"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Quota:
    """One metric of a project or of a region: its limit and its usage."""

    metric: str
    limit: float
    usage: float

    @property
    def left(self) -> float:
        """The amount that can still be asked for."""
        return max(0.0, self.limit - self.usage)


@dataclass(frozen=True)
class Quotas:
    """The quotas of a project by metric, and those of its regions."""

    project: Mapping[str, Quota] = field(default_factory=dict)
    regions: Mapping[str, Mapping[str, Quota]] = field(default_factory=dict)

    def of(self, region: str) -> Mapping[str, Quota]:
        """Return the quotas of a region, or those of the project for ""."""
        return self.regions[region] if region else self.project


def quotas_by_metric(rows: Iterable[Mapping[str, Any]]) -> dict[str, Quota]:
    """Return the field `quotas` of a `projects` or `regions` resource; a missing number is 0."""
    return {
        row["metric"]: Quota(row["metric"], float(row.get("limit", 0)), float(row.get("usage", 0)))
        for row in rows
        if row.get("metric")
    }


@dataclass(frozen=True)
class QuotaVerdict:
    """Whether one metric has room for `needed`.

    `region` is "" for a quota of the whole project; `why` is the reason of UNKNOWN.
    """

    metric: str
    room: Room
    needed: float
    region: str = ""
    quota: Quota | None = None
    why: str = ""

    def __str__(self) -> str:
        """`needs 4 of NVIDIA_L4_GPUS in us-central1, 2 left (limit 8, in use 6)`."""
        place = f"in {self.region}" if self.region else "over all regions"
        why = f" ({self.why})" if self.why else ""
        if self.quota is None:
            return f"{self.metric} {place}{why}"
        left = f"{self.quota.left:g} left (limit {self.quota.limit:g}, in use {self.quota.usage:g})"
        return f"needs {self.needed:g} of {self.metric} {place}, {left}{why}"


def other_needs(spec: VmSpec) -> dict[str, float]:
    """Return metric → what a VM needs beside its machine: GB of boot disk, and an address."""
    needs = {_DISK_METRICS[default_disk_type(spec.machine_type)]: float(spec.disk_gb)}
    return {**needs, "IN_USE_ADDRESSES": 1.0} if spec.external_ip else needs


def judge_quotas(
    quotas: Quotas,
    shape: Shape,
    region: str,
    *,
    count: int = 1,
    provisioning: str = "STANDARD",
    more: Mapping[str, float] = _NOTHING,
) -> tuple[QuotaVerdict, ...]:
    """Return a verdict for each metric that `count` such machines draw on; GPUs first.

    `more` is what each needs of other metrics of the region (`other_needs`); those that `quotas`
    lacks are left out.
    """
    verdicts: list[QuotaVerdict] = []
    if shape.gpu and shape.gpu_count:
        gpu, gpus = catalog.gpu_type(shape.gpu).accelerator, float(shape.gpu_count * count)
        verdicts.append(judge_regional_gpus(quotas, gpu, gpus, region, provisioning))
        verdicts.append(judge_all_gpus(quotas, gpus, provisioning))
    machine = catalog.machine_type(shape.machine_type)
    if machine is not None:
        vcpus = float(machine.vcpus * count)
        verdicts += _judge_vcpus(quotas, machine.series, vcpus, region, provisioning)
    in_region = quotas.regions.get(region, {})
    verdicts += [
        compare(metric, in_region[metric], amount * count, region)
        for metric, amount in more.items()
        if metric in in_region
    ]
    return tuple(verdicts)


def judge_regional_gpus(
    quotas: Quotas, accelerator: str, needed: float, region: str, provisioning: str
) -> QuotaVerdict:
    """Return the verdict on a region's quota of one GPU type, by its API name."""
    in_region = quotas.regions.get(region, {})
    ordinary = GPU_METRICS.get(accelerator, "")
    spot = f"PREEMPTIBLE_{ordinary}" if ordinary else _SPOT_ONLY_METRICS.get(accelerator, "")
    if provisioning not in {"STANDARD", "SPOT"}:
        why = f"which quota a {provisioning} machine draws on is not known here"
        return QuotaVerdict(ordinary or accelerator, Room.UNKNOWN, needed, region, why=why)
    granted = provisioning == "SPOT" and spot in in_region and in_region[spot].limit > 0
    metric = spot if granted else ordinary
    if not metric:
        why = "Compute Engine shows no quota metric for it; Cloud Quotas has it by GPU family"
        return QuotaVerdict(accelerator, Room.UNKNOWN, needed, region, why=why)
    return compare(metric, in_region.get(metric), needed, region)


def judge_all_gpus(quotas: Quotas, needed: float, provisioning: str) -> QuotaVerdict:
    """Return the verdict on the project's quota of GPUs over all regions."""
    metric = "GPUS_ALL_REGIONS"
    verdict = compare(metric, quotas.project.get(metric), needed, "")
    if provisioning == "STANDARD":
        return verdict
    return _uncertain(verdict, f"whether it counts {provisioning} machines is not known here")


def _judge_vcpus(
    quotas: Quotas, series: str, needed: float, region: str, provisioning: str
) -> list[QuotaVerdict]:
    in_region = quotas.regions.get(region, {})
    own = _CPU_METRICS.get(series, "CPUS")
    metric = own if own in in_region else "CPUS"
    preemptible = in_region.get("PREEMPTIBLE_CPUS")
    if provisioning == "SPOT" and preemptible is not None and preemptible.limit > 0:
        metric = "PREEMPTIBLE_CPUS"
    regional = compare(metric, in_region.get(metric), needed, region)
    everywhere = compare("CPUS_ALL_REGIONS", quotas.project.get("CPUS_ALL_REGIONS"), needed, "")
    if metric != _CPU_METRICS.get(series) or provisioning != "STANDARD":
        why = f"whether it counts {series} machines as {provisioning} is not known here"
        regional, everywhere = _uncertain(regional, why), _uncertain(everywhere, why)
    return [regional, everywhere] if everywhere.quota is not None else [regional]


def compare(metric: str, quota: Quota | None, needed: float, region: str) -> QuotaVerdict:
    """Return the verdict on one metric; UNKNOWN where the quota is None."""
    if quota is None:
        why = "the answer does not hold this metric"
        return QuotaVerdict(metric, Room.UNKNOWN, needed, region, why=why)
    room = Room.OK if quota.left >= needed else Room.SHORT
    return QuotaVerdict(metric, room, needed, region, quota)


def _uncertain(verdict: QuotaVerdict, why: str) -> QuotaVerdict:
    """Return the verdict with SHORT turned into UNKNOWN."""
    if verdict.room is not Room.SHORT:
        return verdict
    return QuotaVerdict(
        verdict.metric, Room.UNKNOWN, verdict.needed, verdict.region, verdict.quota, why
    )
