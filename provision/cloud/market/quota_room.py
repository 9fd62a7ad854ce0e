"""How many VMs the quotas have room for, which zones they rule out, and the errors. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from provision.cloud.market.catalog import Shape
from provision.cloud.market.quota import (
    Quota,
    Quotas,
    QuotaVerdict,
    Room,
    compare,
    judge_all_gpus,
    judge_quotas,
    judge_regional_gpus,
)
from provision.cloud.market.zone_order import region_of
from provision.cloud.refusal import QuotaRefused, Refusal
from provision.cloud.refusal_table import quota_remedy
from provision.core.model import Vm

_REGIONS_SHOWN = 4


def short_verdicts(verdicts: Iterable[QuotaVerdict]) -> tuple[QuotaVerdict, ...]:
    """Return the verdicts that are certainly short."""
    return tuple(verdict for verdict in verdicts if verdict.room is Room.SHORT)


def worst_verdict(verdicts: Iterable[QuotaVerdict]) -> QuotaVerdict | None:
    """Return the most important one: short, else unknown, else the least room; None for none."""
    order = [Room.SHORT, Room.UNKNOWN, Room.OK]

    def rank(verdict: QuotaVerdict) -> tuple[int, float]:
        return order.index(verdict.room), verdict.quota.left if verdict.quota else 0.0

    return min(verdicts, key=rank, default=None)


def zones_short_of_quota(
    quotas: Quotas, shape: Shape, zones: Iterable[str], **needs: Any
) -> dict[str, str]:
    """Return zone → numbers for the zones whose region is certainly short.

    `needs` are the keyword arguments of `judge_quotas`.
    """
    short = {
        zone: short_verdicts(judge_quotas(quotas, shape, region_of(zone), **needs))
        for zone in dict.fromkeys(zones)
    }
    return {zone: "; ".join(map(str, verdicts)) for zone, verdicts in short.items() if verdicts}


def room_by_region(
    quotas: Quotas, shape: Shape, regions: Iterable[str], *, count: int, **needs: Any
) -> tuple[dict[str, int], int]:
    """Return how many of `count` such machines have room in each region, and in all together.

    An unknown quota counts as room. `needs` are the other keyword arguments of `judge_quotas`.
    """

    def room_in(region: str, *, project_only: bool) -> int:
        """Return the largest number of machines that the quotas (or the project's own) allow."""

        def is_short(number: int) -> bool:
            verdicts = judge_quotas(quotas, shape, region, count=number, **needs)
            return any(
                not (project_only and verdict.region) for verdict in short_verdicts(verdicts)
            )

        return bisect.bisect_left(range(1, count + 1), x=True, key=is_short)

    rooms = {region: room_in(region, project_only=False) for region in dict.fromkeys(regions)}
    in_project = [room_in(region, project_only=True) for region in rooms]
    return rooms, min([sum(rooms.values()), *in_project])


# --- stopped VMs that are to run again ------------------------------------------------------------


def judge_starts(quotas: Quotas, vms: Iterable[Vm]) -> tuple[QuotaVerdict, ...]:
    """Return a verdict for each quota of GPUs that stopped VMs draw on together once they run.

    A stopped VM uses no GPU quota. Metrics that `quotas` lacks are left out, and so is the one
    over all regions for machines that it may not count.
    """
    needs: dict[tuple[str, str], float] = {}
    for vm in vms:
        if not vm.gpu:
            continue
        count, model = float(vm.gpu_count), vm.provisioning_model
        verdicts = [judge_regional_gpus(quotas, vm.gpu, count, region_of(vm.zone), model)]
        verdicts += [judge_all_gpus(quotas, count, model)] if model == "STANDARD" else []
        for verdict in verdicts:
            if verdict.quota is not None:
                key = verdict.region, verdict.metric
                needs[key] = needs.get(key, 0.0) + count
    return tuple(
        compare(metric, quotas.of(region)[metric], needed, region)
        for (region, metric), needed in needs.items()
    )


def quotas_after_starts(quotas: Quotas, starts: Iterable[QuotaVerdict]) -> Quotas:
    """Return the quotas as they are once the VMs of `judge_starts` run."""
    project = dict(quotas.project)
    regions = {region: dict(metrics) for region, metrics in quotas.regions.items()}
    for verdict in starts:
        metrics = regions[verdict.region] if verdict.region else project
        before = metrics[verdict.metric]
        metrics[verdict.metric] = replace(before, usage=before.usage + verdict.needed)
    return Quotas(project, regions)


# --- for people -----------------------------------------------------------------------------------


def undetermined_lines(
    quotas: Quotas,
    shape: Shape,
    zones: Iterable[str],
    *,
    count: int = 1,
    provisioning: str = "STANDARD",
) -> list[str]:
    """Return a warning for each reason why the GPU quota of a region is unknown."""
    if not shape.gpu:
        return []
    gpu_verdicts = [
        judge_quotas(quotas, shape, region, count=count, provisioning=provisioning)[0]
        for region in dict.fromkeys(map(region_of, zones))
    ]
    unknown = [verdict for verdict in gpu_verdicts if verdict.room is Room.UNKNOWN]
    return [f"quota: cannot tell: {line}" for line in merged_lines(unknown)]


def merged_lines(verdicts: Iterable[QuotaVerdict]) -> list[str]:
    """Return the verdicts as lines; those that differ only in the region share one."""
    groups: dict[tuple[str, str, Quota | None], list[QuotaVerdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.metric, verdict.why, verdict.quota), []).append(verdict)
    lines = []
    for group in groups.values():
        shown = ", ".join(verdict.region for verdict in group[:_REGIONS_SHOWN])
        hidden = len(group) - _REGIONS_SHOWN
        more = f" and {hidden} more" if hidden > 0 else ""
        lines.append(str(replace(group[0], region=shown + more)))
    return lines


def no_room_error(
    shape: Shape, short: Mapping[str, str], project: str, *, count: int = 1, room: int = 0
) -> QuotaRefused:
    """Return the error when there is room for `room` of `count` machines; `short` is by zone."""
    some = [f"there is room for {room} of {count}"] if room else []
    machines = str(shape) if count == 1 else f"{count} VMs of {shape}"
    return QuotaRefused(
        f"the quota has no room for {machines}",
        refusal=Refusal(code="", message="\n".join([*dict.fromkeys(short.values()), *some])),
        where=", ".join(dict.fromkeys(map(region_of, short))),
        fix=quota_remedy(project),
    )


def no_room_to_start_error(short: Iterable[QuotaVerdict], count: int, project: str) -> QuotaRefused:
    """Return the error when `count` stopped VMs cannot all run."""
    verdicts = list(short)
    return QuotaRefused(
        f"the quota has no room for {count} VMs that are to be started",
        refusal=Refusal(code="", message="\n".join(map(str, verdicts))),
        where=", ".join(dict.fromkeys(verdict.region or "all regions" for verdict in verdicts)),
        fix=f"start fewer of them, or {quota_remedy(project)}",
    )
