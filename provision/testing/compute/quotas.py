"""The quotas of the emulated projects: limits, usage, and the limit that an insert would exceed.

Metrics are those of the API's enum. On-demand H100 and newer have none there (Compute Engine,
"Allocation quotas": they live in Cloud Quotas as GPUS-PER-GPU-FAMILY); only GPUS_ALL_REGIONS counts
them. Spot VMs draw on PREEMPTIBLE_ metrics where those were granted, else on the ordinary ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.cloud.api.resources import last_segment
from provision.cloud.market.zone_order import region_of
from provision.testing.compute.errors import Json, OperationFailure
from provision.testing.compute.instance_resource import gpu_of

UNLIMITED = 1e9
GLOBAL = {
    "GPUS_ALL_REGIONS": 64.0,
    "CPUS_ALL_REGIONS": 2400.0,
    "NETWORKS": 15.0,
    "SNAPSHOTS": 5000.0,
}
"""Limits of a project that was granted GPUs; in a new project GPUS_ALL_REGIONS is 0."""
_GPU_METRICS = {
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-p4": "NVIDIA_P4_GPUS",
    "nvidia-tesla-p100": "NVIDIA_P100_GPUS",
    "nvidia-tesla-v100": "NVIDIA_V100_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
}
_PREEMPTIBLE = {
    **{gpu: f"PREEMPTIBLE_{metric}" for gpu, metric in _GPU_METRICS.items()},
    "nvidia-h100-80gb": "PREEMPTIBLE_NVIDIA_H100_GPUS",
}
_DISK_METRICS = {
    "pd-standard": "DISKS_TOTAL_GB",
    "pd-balanced": "SSD_TOTAL_GB",
    "pd-ssd": "SSD_TOTAL_GB",
    "hyperdisk-balanced": "HDB_TOTAL_GB",
}
REGIONAL = {
    "CPUS": 1200.0,
    "PREEMPTIBLE_CPUS": 0.0,
    "INSTANCES": 6000.0,
    "IN_USE_ADDRESSES": 575.0,
    "DISKS_TOTAL_GB": 102400.0,
    "SSD_TOTAL_GB": 102400.0,
    "HDB_TOTAL_GB": 102400.0,
    **dict.fromkeys(_GPU_METRICS.values(), 16.0),
    **dict.fromkeys(_PREEMPTIBLE.values(), 16.0),
}
"""Limits of each region."""

Usage = dict[str, float]


@dataclass
class Quotas:
    """Limits of every project of the emulator. `set` changes one; `lift` removes all."""

    _global: Usage = field(default_factory=lambda: dict(GLOBAL))
    _regional: Usage = field(default_factory=lambda: dict(REGIONAL))
    _of_region: dict[str, Usage] = field(default_factory=dict)

    def set(self, metric: str, limit: float, region: str | None = None) -> None:
        """Set a limit: of the project for a global metric, else of `region`, or of every region.

        Raises `ValueError` for an unknown metric.
        """
        if metric in self._global:
            self._global[metric] = limit
        elif metric not in self._regional:
            known = ", ".join(sorted({*self._global, *self._regional}))
            raise ValueError(f"no quota metric of the emulator: {metric} (known: {known})")
        elif region is None:
            self._regional[metric] = limit
            for limits in self._of_region.values():
                limits.pop(metric, None)
        else:
            self._of_region.setdefault(region, {})[metric] = limit

    def lift(self) -> None:
        """Remove every limit, for tests of many VMs."""
        for metric in (*self._global, *self._regional):
            self.set(metric, UNLIMITED)

    def limits(self, region: str | None = None) -> Usage:
        """Metric → limit: of a region, or of the project."""
        return (
            dict(self._global)
            if region is None
            else {**self._regional, **self._of_region.get(region, {})}
        )

    def resources(self, usage: Mapping[str, float], region: str | None = None) -> list[Json]:
        """The `quotas` of a region, or of the project."""
        return [
            {"metric": metric, "limit": limit, "usage": usage.get(metric, 0.0)}
            for metric, limit in self.limits(region).items()
        ]

    def usage_of_instance(self, resource: Mapping[str, Any], vcpus: int) -> Usage:
        """What a running instance uses, by metric."""
        gpu, count = gpu_of(resource)
        region = region_of(last_segment(resource["zone"]))
        spot = resource["scheduling"]["provisioningModel"] == "SPOT"
        usage = {"INSTANCES": 1.0, "CPUS_ALL_REGIONS": float(vcpus)}
        usage[self._granted("PREEMPTIBLE_CPUS", "CPUS", region, preemptible=spot)] = float(vcpus)
        if any("accessConfigs" in nic for nic in resource["networkInterfaces"]):
            usage["IN_USE_ADDRESSES"] = 1.0
        if gpu is not None:
            usage["GPUS_ALL_REGIONS"] = float(count)
            metric = self._granted(
                _PREEMPTIBLE.get(gpu, ""), _GPU_METRICS.get(gpu, ""), region, preemptible=spot
            )
            usage.update({metric: float(count)} if metric else {})
        return usage

    def _granted(
        self, preemptible_metric: str, metric: str, region: str, *, preemptible: bool
    ) -> str:
        return (
            preemptible_metric
            if preemptible and self.limits(region).get(preemptible_metric)
            else metric
        )

    def exceeded(
        self,
        wanted: Mapping[str, float],
        used: Mapping[str, float],
        used_in_region: Mapping[str, float],
        region: str,
    ) -> str | None:
        """The first metric that would exceed its limit, or None."""
        for where, taken in ((None, used), (region, used_in_region)):
            limits = self.limits(where)
            for metric, amount in wanted.items():
                if metric in limits and taken.get(metric, 0.0) + amount > limits[metric]:
                    return metric
        return None

    def refusal(self, metric: str, region: str) -> OperationFailure:
        """The error of an operation that would exceed `metric`."""
        scope = None if metric in self._global else region
        return quota_failure(metric, self.limits(scope)[metric], region)


def usage_of_disk(resource: Mapping[str, Any]) -> Usage:
    """What a disk uses, by metric, attached or not."""
    metric = _DISK_METRICS.get(last_segment(resource["type"]))
    return {metric: float(resource["sizeGb"])} if metric else {}


def quota_failure(metric: str, limit: float, region: str) -> OperationFailure:
    """403 QUOTA_EXCEEDED with its `quotaInfo`, in Compute Engine's words."""
    is_global = metric in GLOBAL
    info: Json = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": f"{metric.replace('_', '-')}-per-project" + ("" if is_global else "-region"),
        "limit": limit,
        "dimensions": {"region": "global" if is_global else region},
    }
    scope = "Globally" if is_global else f"in region {region}"
    message = f"Quota '{metric}' exceeded.  Limit: {limit} {scope}."
    return OperationFailure(
        code="QUOTA_EXCEEDED", message=message, http_status=403, details=({"quotaInfo": info},)
    )


def total(usages: Iterable[Mapping[str, float]]) -> Usage:
    """The sum of several usages."""
    found: Usage = {}
    for usage in usages:
        for metric, value in usage.items():
            found[metric] = found.get(metric, 0.0) + value
    return found
