"""Whether the quotas of a project have room for a machine: a verdict for each metric, before anything is asked for. Pure.

Sources: Compute Engine API v1, `Quota.metric` (which metrics there are), and "Allocation quotas".
On-demand H100 and newer have no metric there; they live in Cloud Quotas by GPU family, which this
program does not read: it cannot tell. Spot VMs draw on the PREEMPTIBLE_ metric once one was
granted, else on the ordinary one. Short is said only of what is surely short: a machine that
Compute Engine would have given must not be refused here.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from provision.cloud.market import catalog
from provision.cloud.market.catalog import Shape
from provision.cloud.market.placement import region_of
from provision.cloud.refusal import QuotaRefused, Refusal
from provision.core.model import Vm, VmSpec

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
"""What a boot disk draws on, by the types that we give (`catalog.default_disk_type`)."""
_NOTHING: Mapping[str, float] = {}
_REGIONS_NAMED = 4


class Room(enum.StrEnum):
    """Whether a quota has room."""

    OK = "ok"
    SHORT = "short"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Quota:
    """One metric of a project or of a region: its limit, and what is in use of it."""

    metric: str
    limit: float
    usage: float

    @property
    def left(self) -> float:
        """What may still be asked for."""
        return max(0.0, self.limit - self.usage)


@dataclass(frozen=True)
class Quotas:
    """The quotas of a project by metric, and those of its regions."""

    project: Mapping[str, Quota] = field(default_factory=dict)
    regions: Mapping[str, Mapping[str, Quota]] = field(default_factory=dict)


def by_metric(rows: Iterable[Mapping[str, Any]]) -> dict[str, Quota]:
    """The `quotas` of a `projects` or `regions` resource; a limit or a usage of 0 may be left out there."""
    return {
        row["metric"]: Quota(row["metric"], float(row.get("limit", 0)), float(row.get("usage", 0)))
        for row in rows
        if row.get("metric")
    }


@dataclass(frozen=True)
class Verdict:
    """What one metric says. `region` is empty for a quota of the whole project; `why` says why nothing can be told."""

    metric: str
    room: Room
    needed: float
    region: str = ""
    quota: Quota | None = None
    why: str = ""

    def __str__(self) -> str:
        """The numbers: `needs 4 of NVIDIA_L4_GPUS in us-central1, 2 left (limit 8, in use 6)`."""
        metric = (
            f"{self.metric} in {self.region}" if self.region else f"{self.metric} over all regions"
        )
        why = f" ({self.why})" if self.why else ""
        if self.quota is None:
            return f"{metric}{why}"
        left = f"{self.quota.left:g} left (limit {self.quota.limit:g}, in use {self.quota.usage:g})"
        return f"needs {self.needed:g} of {metric}, {left}{why}"


def beside(spec: VmSpec) -> dict[str, float]:
    """Metric → what a VM draws of it beside its machine: gigabytes of its boot disk, and an address."""
    needs = {_DISK_METRICS[catalog.default_disk_type(spec.machine_type)]: float(spec.disk_gb)}
    return {**needs, "IN_USE_ADDRESSES": 1.0} if spec.external_ip else needs


def judge(
    quotas: Quotas,
    shape: Shape,
    region: str,
    *,
    count: int = 1,
    provisioning: str = "STANDARD",
    more: Mapping[str, float] = _NOTHING,
) -> tuple[Verdict, ...]:
    """A verdict for each metric that `count` such machines in `region` draw on; GPUs first.

    `more` is what each draws of other metrics of the region (`beside`); those that the answer does
    not hold are left out.
    """
    verdicts: list[Verdict] = []
    if shape.gpu and shape.gpu_count:
        gpu = catalog.gpu_type(shape.gpu).accelerator
        verdicts += [
            _regional_gpus(quotas, gpu, float(shape.gpu_count * count), region, provisioning),
            _global_gpus(quotas, float(shape.gpu_count * count), provisioning),
        ]
    machine = catalog.machine(shape.machine_type)
    if machine is not None:
        verdicts += _cpus(
            quotas, machine.series, float(machine.vcpus * count), region, provisioning
        )
    here = quotas.regions.get(region, {})
    verdicts += [
        _compare(metric, here[metric], each * count, region)
        for metric, each in more.items()
        if metric in here
    ]
    return tuple(verdicts)


def _regional_gpus(
    quotas: Quotas, gpu: str, needed: float, region: str, provisioning: str
) -> Verdict:
    here = quotas.regions.get(region, {})
    ordinary = GPU_METRICS.get(gpu, "")
    spot = f"PREEMPTIBLE_{ordinary}" if ordinary else _SPOT_ONLY_METRICS.get(gpu, "")
    if provisioning not in {"STANDARD", "SPOT"}:
        why = f"which quota a {provisioning} machine draws on is not known here"
        return Verdict(ordinary or gpu, Room.UNKNOWN, needed, region, why=why)
    granted = provisioning == "SPOT" and spot in here and here[spot].limit > 0
    metric = spot if granted else ordinary
    if not metric:
        return Verdict(
            gpu,
            Room.UNKNOWN,
            needed,
            region,
            why="Compute Engine shows no quota metric for it; Cloud Quotas has it by GPU family",
        )
    return _compare(metric, here.get(metric), needed, region)


def _global_gpus(quotas: Quotas, needed: float, provisioning: str) -> Verdict:
    found = _compare("GPUS_ALL_REGIONS", quotas.project.get("GPUS_ALL_REGIONS"), needed, "")
    return (
        found
        if provisioning == "STANDARD"
        else _never_sure(found, f"whether it counts {provisioning} machines is not known here")
    )


def _cpus(
    quotas: Quotas, series: str, needed: float, region: str, provisioning: str
) -> list[Verdict]:
    here = quotas.regions.get(region, {})
    own = _CPU_METRICS.get(series, "CPUS")
    metric = own if own in here else "CPUS"
    if provisioning == "SPOT" and "PREEMPTIBLE_CPUS" in here and here["PREEMPTIBLE_CPUS"].limit > 0:
        metric = "PREEMPTIBLE_CPUS"
    regional = _compare(metric, here.get(metric), needed, region)
    everywhere = _compare("CPUS_ALL_REGIONS", quotas.project.get("CPUS_ALL_REGIONS"), needed, "")
    if metric != _CPU_METRICS.get(series) or provisioning != "STANDARD":
        why = f"whether it counts {series} machines as {provisioning} is not known here"
        regional, everywhere = _never_sure(regional, why), _never_sure(everywhere, why)
    return [regional, everywhere] if everywhere.quota is not None else [regional]


def _compare(metric: str, quota: Quota | None, needed: float, region: str) -> Verdict:
    if quota is None:
        return Verdict(
            metric, Room.UNKNOWN, needed, region, why="the answer does not hold this metric"
        )
    return Verdict(metric, Room.OK if quota.left >= needed else Room.SHORT, needed, region, quota)


def _never_sure(verdict: Verdict, why: str) -> Verdict:
    """The same, but a lack of room is no proof."""
    if verdict.room is not Room.SHORT:
        return verdict
    return Verdict(verdict.metric, Room.UNKNOWN, verdict.needed, verdict.region, verdict.quota, why)


def to_start(quotas: Quotas, vms: Iterable[Vm]) -> tuple[Verdict, ...]:
    """A verdict for each quota of GPUs that stopped VMs draw on together once they run: a stopped VM uses none.

    Quotas that the answer does not hold are left out, and so is that over all regions for machines
    of which it is not known whether it counts them.
    """
    needs: dict[tuple[str, str], float] = {}
    for vm in vms:
        if not vm.gpu:
            continue
        count, model = float(vm.gpu_count), vm.provisioning_model
        found = [_regional_gpus(quotas, vm.gpu, count, region_of(vm.zone), model)]
        found += [_global_gpus(quotas, count, model)] if model == "STANDARD" else []
        for verdict in found:
            if verdict.quota is not None:
                key = verdict.region, verdict.metric
                needs[key] = needs.get(key, 0.0) + count
    return tuple(
        _compare(metric, _held(quotas, region)[metric], needed, region)
        for (region, metric), needed in needs.items()
    )


def with_started(quotas: Quotas, starts: Iterable[Verdict]) -> Quotas:
    """The quotas once what `to_start` judged has been started."""
    project, regions = (
        dict(quotas.project),
        {region: dict(metrics) for region, metrics in quotas.regions.items()},
    )
    for verdict in starts:
        metrics = regions[verdict.region] if verdict.region else project
        before = metrics[verdict.metric]
        metrics[verdict.metric] = replace(before, usage=before.usage + verdict.needed)
    return Quotas(project, regions)


def _held(quotas: Quotas, region: str) -> Mapping[str, Quota]:
    return quotas.regions[region] if region else quotas.project


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The one to tell when only one can be told: what is short, else what cannot be told, else the least room; None of none."""
    order = [Room.SHORT, Room.UNKNOWN, Room.OK]
    return min(
        verdicts,
        key=lambda verdict: (
            order.index(verdict.room),
            verdict.quota.left if verdict.quota else 0.0,
        ),
        default=None,
    )


def short_of(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Those that are surely short."""
    return tuple(verdict for verdict in verdicts if verdict.room is Room.SHORT)


def short_zones(quotas: Quotas, shape: Shape, zones: Iterable[str], **how: Any) -> dict[str, str]:
    """The zones in whose region a quota is surely short, each with the numbers; `how` is what `judge` takes."""
    short = {
        zone: short_of(judge(quotas, shape, region_of(zone), **how))
        for zone in dict.fromkeys(zones)
    }
    return {zone: "; ".join(map(str, verdicts)) for zone, verdicts in short.items() if verdicts}


def room_for(
    quotas: Quotas, shape: Shape, regions: Iterable[str], *, count: int, **how: Any
) -> tuple[dict[str, int], int]:
    """Of `count` such machines, how many have room in each region, and over all of them; what cannot be told counts as room.

    `how` is what `judge` takes.
    """

    def most(region: str, *, shared: bool) -> int:
        """The largest number for which nothing is short; with `shared`, of the quotas of the whole project alone."""

        def is_short(number: int) -> bool:
            short = short_of(judge(quotas, shape, region, count=number, **how))
            return any(shared <= (not verdict.region) for verdict in short)

        return bisect.bisect_left(range(1, count + 1), x=True, key=is_short)

    rooms = {region: most(region, shared=False) for region in dict.fromkeys(regions)}
    return rooms, min([sum(rooms.values()), *(most(region, shared=True) for region in rooms)])


def untold(
    quotas: Quotas,
    shape: Shape,
    zones: Iterable[str],
    *,
    count: int = 1,
    provisioning: str = "STANDARD",
) -> list[str]:
    """A line for the regions of `zones` whose quota of GPUs cannot be told, which is not the same as enough; one for each reason."""
    if not shape.gpu:
        return []
    firsts = [
        judge(quotas, shape, region, count=count, provisioning=provisioning)[0]
        for region in dict.fromkeys(map(region_of, zones))
    ]
    return [
        f"quota: cannot tell: {line}"
        for line in alike(verdict for verdict in firsts if verdict.room is Room.UNKNOWN)
    ]


def alike(verdicts: Iterable[Verdict]) -> list[str]:
    """The verdicts as lines, those that differ in their region alone as one."""
    regions: dict[tuple[str, str, Quota | None], list[Verdict]] = {}
    for verdict in verdicts:
        regions.setdefault((verdict.metric, verdict.why, verdict.quota), []).append(verdict)
    lines = []
    for same in regions.values():
        shown = ", ".join(verdict.region for verdict in same[:_REGIONS_NAMED])
        more = f" and {len(same) - _REGIONS_NAMED} more" if len(same) > _REGIONS_NAMED else ""
        lines.append(str(replace(same[0], region=shown + more)))
    return lines


def no_room(
    shape: Shape, short: Mapping[str, str], project: str, *, count: int = 1, room: int = 0
) -> QuotaRefused:
    """The error when `count` machines have no place, but `room` of them: every region's numbers, and where to ask for more."""
    some = [f"there is room for {room} of {count}"] if room else []
    return QuotaRefused(
        f"the quota has no room for {shape}"
        if count == 1
        else f"the quota has no room for {count} VMs of {shape}",
        refusal=Refusal(code="", message="\n".join([*dict.fromkeys(short.values()), *some])),
        where=", ".join(dict.fromkeys(map(region_of, short))),
        fix=ask_for_more(project),
    )


def no_room_to_start(short: Iterable[Verdict], count: int, project: str) -> QuotaRefused:
    """The error when `count` stopped VMs cannot all run."""
    verdicts = list(short)
    return QuotaRefused(
        f"the quota has no room for {count} VMs that are to be started",
        refusal=Refusal(code="", message="\n".join(map(str, verdicts))),
        where=", ".join(dict.fromkeys(verdict.region or "all regions" for verdict in verdicts)),
        fix=f"start fewer of them, or {ask_for_more(project)}",
    )


def ask_for_more(project: str) -> str:
    """Where quotas are raised."""
    return (
        f"open https://console.cloud.google.com/iam-admin/quotas?project={project} and ask for more"
    )
