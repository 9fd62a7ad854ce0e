"""The plan of a creation, in words and dollars, printed before anything is asked for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from provision.cloud.market.catalog import Shape
from provision.cloud.market.machine_choice import default_disk_type
from provision.cloud.market.prices import (
    Price,
    PriceList,
    disk_per_hour,
    format_usd,
    price_per_hour,
)
from provision.cloud.market.zone_order import region_of
from provision.core import durations
from provision.core.model import VmSpec

_SHOWN = 4
_MODELS = {"STANDARD": "", "SPOT": " as Spot", "FLEX_START": " as flex-start"}


def plan_lines(specs: Sequence[VmSpec], zones: Sequence[str], prices: PriceList) -> list[str]:
    """Return lines for people: the VMs of one shape, the zones, and what they cost there.

    Neither list is empty; `zones` is in the order of asking.
    """
    spec, count = specs[0], len(specs)
    model = _MODELS.get(spec.provisioning_model, " from a reservation")
    disk = f"{spec.disk_gb} GB {default_disk_type(spec.machine_type)}"
    what = f"{Shape.of(spec)}{model}, {disk}, {spec.image}, {_end(spec)}"
    if count == 1:
        plan = [f"plan:  {spec.name}, {what}"]
    else:
        names = [each.name for each in specs]
        plan = [f"plan:  {count} VMs: {_shown(names)}", f"each:  {what}"]
    return [*plan, f"zones: {_shown(zones)}", *_price_lines(spec, zones[0], prices, count)]


def _end(spec: VmSpec) -> str:
    if spec.ttl_s is None:
        return "no time to live"
    end = "stopped" if spec.termination_action == "STOP" else "deleted"
    return f"{end} after {durations.exact(spec.ttl_s)}"


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _price_lines(spec: VmSpec, zone: str, prices: PriceList, count: int) -> list[str]:
    price = _price(spec, zone, prices)
    if count == 1 or price is None:
        return [price_line(spec, zone, prices)]
    together = Price(price.usd_per_hour * count, price.as_of)
    each = f"about {format_usd(price.usd_per_hour)} an hour each"
    return [
        f"price: {each}, {_basis(spec, zone, price, prices)}",
        f"       together {_with_total(together, spec.ttl_s)}",
    ]


def price_line(spec: VmSpec, zone: str, prices: PriceList) -> str:
    """Return a line with what the VM and its disk cost an hour, and over its time to live."""
    price = _price(spec, zone, prices)
    if price is None:
        return f"price: unknown: {region_of(zone)} has none for it in the list of {prices.as_of}"
    return f"price: about {_with_total(price, spec.ttl_s)}, {_basis(spec, zone, price, prices)}"


def _basis(spec: VmSpec, zone: str, price: Price, prices: PriceList) -> str:
    disk = disk_per_hour(spec.machine_type, spec.disk_gb, zone, prices)
    included = "its disk unknown" if disk is None else "with its disk"
    return f"{included} ({region_of(zone)}, list of {price.as_of})"


def _price(spec: VmSpec, zone: str, prices: PriceList) -> Price | None:
    machine = price_per_hour(Shape.of(spec), zone, spec.provisioning_model, prices)
    disk = disk_per_hour(spec.machine_type, spec.disk_gb, zone, prices)
    if machine is None or disk is None:
        return machine
    return Price(machine.usd_per_hour + disk.usd_per_hour, min(machine.as_of, disk.as_of))


def _with_total(price: Price, ttl_s: int | None) -> str:
    hourly = f"{format_usd(price.usd_per_hour)} an hour"
    if ttl_s is None:
        return hourly
    return f"{hourly}, {format_usd(price.over(ttl_s))} in {durations.exact(ttl_s)}"
