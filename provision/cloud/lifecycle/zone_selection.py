"""Which zones a search asks: those that offer the GPU, take the shape, and have quota.

The order is that of the setting `zones` (`cloud/market/zone_order.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.zone_search import Attempt, ZoneSearch
from provision.cloud.market.catalog import Shape
from provision.cloud.market.plan import plan_lines
from provision.cloud.market.quota import Quotas, other_needs
from provision.cloud.market.quota_room import (
    judge_starts,
    no_room_error,
    no_room_to_start_error,
    quotas_after_starts,
    room_by_region,
    short_verdicts,
    undetermined_lines,
    zones_short_of_quota,
)
from provision.cloud.market.shape_rules import check_shape
from provision.cloud.market.zone_order import Candidates, region_of, zones_in_order
from provision.cloud.refusal_table import RefusalKind
from provision.core.errors import CloudError, SettingsError
from provision.core.model import Vm, VmSpec


def plan_search(
    context: CloudContext,
    specs: Sequence[VmSpec],
    places: Sequence[str],
    *,
    new: int,
    starting: Sequence[Vm] = (),
) -> ZoneSearch:
    """Return the search for VMs of one shape, with plan and price noted; no VM is asked for.

    `new` of them are certainly to be made, and the stopped VMs `starting` are to run again: the
    quotas must have room for all of these. Raises `QuotaRefused` where they have not.
    """
    search = _offering_zones(context.cloud, specs[0], places)
    if search.candidates.zones:
        _drop_zones_without_quota(context, specs[0], search, new, starting)
        for line in plan_lines(specs, search.candidates.zones, context.prices):
            context.note(line)
    return search


def _offering_zones(cloud: ComputeCloud, spec: VmSpec, places: Sequence[str]) -> ZoneSearch:
    """Return a search over the zones that offer the GPU and take the shape; others are tried."""
    plan = zones_in_order(places, cloud.zones_offering(spec.gpu) if places else ())
    unknown: Sequence[str] = plan.lacking
    if plan.lacking and spec.gpu:
        unknown = zones_in_order(plan.lacking, cloud.zones_offering(None)).lacking
    reasons = {
        place: "there is no such zone or region"
        if place in unknown
        else f"no {spec.gpu} is offered there"
        for place in plan.lacking
    }
    too_small = {zone: _shape_problem(spec, zone) for zone in plan.zones}
    reasons |= {zone: problem for zone, problem in too_small.items() if problem}
    tried = [
        Attempt(place, RefusalKind.NOT_OFFERED.value, reason) for place, reason in reasons.items()
    ]
    return ZoneSearch(Candidates.of(zone for zone in plan.zones if not too_small[zone]), tried)


def _shape_problem(spec: VmSpec, zone: str) -> str:
    """Return why the zone does not take the shape (some allow less memory); "" when it does."""
    try:
        check_shape(
            spec.gpu,
            spec.gpu_count,
            spec.machine_type,
            spec.disk_gb,
            zone=zone,
            provisioning=spec.provisioning_model,
        )
    except SettingsError as error:
        return error.why
    return ""


# --- quotas ---------------------------------------------------------------------------------------


def check_start_quotas(cloud: ComputeCloud, vms: Sequence[Vm], note: Callable[[str], None]) -> None:
    """Raise `QuotaRefused` when the quotas of GPUs are certainly short for starting the VMs.

    One request, and none for a single VM: its start would be refused in the same words. Unreadable
    quotas are noted and stop nothing.
    """
    with_gpu = [vm for vm in vms if vm.gpu]
    if len(with_gpu) > 1:
        quotas = _fetch_quotas(cloud, [vm.zone for vm in with_gpu], note, regional=True)
        if quotas is not None:
            _check_starts(cloud, quotas, with_gpu)


def _fetch_quotas(
    cloud: ComputeCloud,
    zones: Iterable[str],
    note: Callable[[str], None],
    *,
    regional: bool = False,
) -> Quotas | None:
    """Return the quotas of the zones' regions; None, with a note, when they cannot be read."""
    regions = dict.fromkeys(map(region_of, zones))
    try:
        return cloud.quotas([*regions], regional=regional)
    except CloudError as error:
        note(f"{error.what}, so they are not checked: {error.why}")
        return None


def _check_starts(cloud: ComputeCloud, quotas: Quotas, vms: Sequence[Vm]) -> Quotas:
    """Return the quotas as they are once the VMs run. Raises `QuotaRefused` without room."""
    starts = judge_starts(quotas, vms)
    if short := short_verdicts(starts):
        raise no_room_to_start_error(short, len(vms), cloud.project)
    return quotas_after_starts(quotas, starts)


def _drop_zones_without_quota(
    context: CloudContext, spec: VmSpec, search: ZoneSearch, new: int, starting: Sequence[Vm]
) -> None:
    """Move the candidates without quota to the tried zones, and limit the search's rooms.

    Raises `QuotaRefused` without room for all. Unreadable quotas stop nothing.
    """
    cloud, zones, shape = context.cloud, search.candidates.zones, Shape.of(spec)
    quotas = _fetch_quotas(cloud, (*zones, *(vm.zone for vm in starting)), context.note)
    if quotas is None:
        return
    quotas = _check_starts(cloud, quotas, starting)
    model = spec.provisioning_model
    needs: dict[str, Any] = {"provisioning": model, "more": other_needs(spec)}
    short = zones_short_of_quota(quotas, shape, zones, count=new, **needs)
    regions = [region_of(zone) for zone in zones]
    rooms, room = room_by_region(quotas, shape, regions, count=new, **needs)
    if room < new:
        raise no_room_error(shape, short, cloud.project, count=new, room=room)
    others = [zone for zone in zones if zone not in short]
    unknown = undetermined_lines(quotas, shape, others, count=new, provisioning=model)
    for line in (*_short_lines(short, rooms, new), *unknown):
        context.note(line)
    full = {zone: why for zone, why in short.items() if not rooms[region_of(zone)]}
    search.tried += [Attempt(zone, RefusalKind.QUOTA.value, why) for zone, why in full.items()]
    search.candidates = Candidates.of(zone for zone in zones if zone not in full)
    searches = max(new, 1)
    at_most = room_by_region(quotas, shape, regions, count=searches * len(zones), **needs)
    search.rooms = _room_per_search(*at_most, searches)


def _short_lines(short: Mapping[str, str], rooms: Mapping[str, int], new: int) -> list[str]:
    """Return a line for each region that has no room, or not for all `new` VMs."""
    lines = []
    for region, why in {region_of(zone): why for zone, why in short.items()}.items():
        some = f"room for {rooms[region]} of {new}: " if rooms[region] else ""
        lines.append(f"{region}: {RefusalKind.QUOTA.value}: {some}{why}")
    return lines


def _room_per_search(
    by_region: Mapping[str, int], everywhere: int, searches: int
) -> dict[str, int]:
    """Return how many VMs each of several searches at once may ask for, by region.

    The key "" stands for all regions together.
    """
    rooms = {**by_region, "": everywhere}
    return {region: max(1, most // searches) for region, most in rooms.items()}
