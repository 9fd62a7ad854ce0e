"""Whether the zones of the settings offer the GPU and the machine type. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provision.cloud.market.catalog import Shape
from provision.cloud.market.zone_order import ZonePlan, region_of, zones_in_order
from provision.report.checks import Check, Verdict

_ZONES_SHOWN = 6


def zone_check(
    shape: Shape,
    places: Sequence[str],
    with_gpu: Sequence[str],
    with_machine: Iterable[str],
    *,
    known: Sequence[str] = (),
) -> tuple[Check, tuple[str, ...]]:
    """Return the check, and the zones that offer both, in the order of asking.

    `with_gpu` and `with_machine` are the zones that list the GPU and the machine type; `known` are
    all existing zones, to recognise misspelt places (not checked without it).
    """
    plan = zones_in_order(places, with_gpu)
    with_both = frozenset(with_machine)
    fitting = tuple(zone for zone in plan.zones if zone in with_both)
    lacking = _lacking(shape, plan, with_both, known)
    nearest = _nearest([zone for zone in with_gpu if zone in with_both], places)
    fix = f"set provision.zones to some of: {_shown(nearest)}"
    why = "; ".join(lacking)
    if not fitting:
        what = f"no zone of the settings offers {shape}"
        return Check("zones", Verdict.FAIL, what, why, fix), ()
    what = (
        f"{shape} is offered in {', '.join(fitting)}; "
        "that there is capacity is not known before it is asked for"
    )
    if lacking:
        return Check("zones", Verdict.WARN, what, why, fix), fitting
    return Check("zones", Verdict.OK, what), fitting


def _lacking(
    shape: Shape, plan: ZonePlan, with_machine: frozenset[str], known: Sequence[str]
) -> list[str]:
    """Return a reason for each place or zone that does not offer the shape."""
    unknown = zones_in_order(plan.lacking, known).lacking if known else ()
    places = [
        f"there is no zone or region {place}"
        if place in unknown
        else f"{place} does not list {shape.gpu or 'itself'}"
        for place in plan.lacking
    ]
    without_machine = [zone for zone in plan.zones if zone not in with_machine]
    return [*places, *(f"{zone} does not list {shape.machine_type}" for zone in without_machine)]


def _shown(zones: Sequence[str]) -> str:
    shown = ", ".join(zones[:_ZONES_SHOWN]) or "none at present"
    hidden = len(zones) - _ZONES_SHOWN
    return f"{shown} and {hidden} more (invoke vm.offers)" if hidden > 0 else shown


def _nearest(zones: Iterable[str], places: Sequence[str]) -> list[str]:
    """Return the zones: those in the regions of `places`, on their continents, then the others."""
    regions = {name for place in places for name in (place, region_of(place))}
    continents = {place.partition("-")[0] for place in places}

    def distance(zone: str) -> tuple[bool, bool, str]:
        is_far = zone.partition("-")[0] not in continents
        return region_of(zone) not in regions, is_far, zone

    return sorted(zones, key=distance)
