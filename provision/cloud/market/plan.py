"""What is about to be asked of the cloud, in words and in dollars, before it is asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from provision.cloud.market.catalog import Shape, default_disk_type
from provision.cloud.market.placement import region_of
from provision.cloud.market.prices import Price, PriceList, disk_per_hour, price_per_hour, usd
from provision.core import durations
from provision.core.model import VmSpec

_SHOWN = 4


def plan_lines(specs: Sequence[VmSpec], zones: Sequence[str], prices: PriceList) -> list[str]:
    """Lines for people: the VMs of one shape, where they may go, what they cost there.

    Neither is empty; `zones` is in the order of asking.
    """
    spec, count = specs[0], len(specs)
    model = {"STANDARD": "", "SPOT": " as Spot", "FLEX_START": " as flex-start"}.get(
        spec.provisioning_model, " from a reservation"
    )
    disk = f"{spec.disk_gb} GB {default_disk_type(spec.machine_type)}"
    end = "stopped" if spec.termination_action == "STOP" else "deleted"
    ttl = (
        f"{end} after {durations.exact(spec.ttl_s)}"
        if spec.ttl_s is not None
        else "no time to live"
    )
    what = f"{Shape.of(spec)}{model}, {disk}, {spec.image}, {ttl}"
    names = [each.name for each in specs]
    plan = (
        [f"plan:  {spec.name}, {what}"]
        if count == 1
        else [f"plan:  {count} VMs: {_shown(names)}", f"each:  {what}"]
    )
    return [*plan, f"zones: {_shown(zones)}", *_price_lines(spec, zones[0], prices, count)]


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _price_lines(spec: VmSpec, zone: str, prices: PriceList, count: int) -> list[str]:
    price = _price(spec, zone, prices)
    if count == 1 or price is None:
        return [price_line(spec, zone, prices)]
    together = Price(price.usd_per_hour * count, price.as_of)
    return [
        f"price: about {usd(price.usd_per_hour)} an hour each, {_basis(spec, zone, price, prices)}",
        f"       together {_over(together, spec.ttl_s)}",
    ]


def price_line(spec: VmSpec, zone: str, prices: PriceList) -> str:
    """What the VM costs an hour in `zone`, its disk included where that is listed, and over its time to live where it has one."""
    price = _price(spec, zone, prices)
    if price is None:
        return f"price: unknown: {region_of(zone)} has none for it in the list of {prices.as_of}"
    return f"price: about {_over(price, spec.ttl_s)}, {_basis(spec, zone, price, prices)}"


def _basis(spec: VmSpec, zone: str, price: Price, prices: PriceList) -> str:
    unlisted = disk_per_hour(spec.machine_type, spec.disk_gb, zone, prices) is None
    holds = "its disk unknown" if unlisted else "with its disk"
    return f"{holds} ({region_of(zone)}, list of {price.as_of})"


def _price(spec: VmSpec, zone: str, prices: PriceList) -> Price | None:
    machine = price_per_hour(Shape.of(spec), zone, spec.provisioning_model, prices)
    disk = disk_per_hour(spec.machine_type, spec.disk_gb, zone, prices)
    if machine is None or disk is None:
        return machine
    return Price(machine.usd_per_hour + disk.usd_per_hour, min(machine.as_of, disk.as_of))


def _over(price: Price, ttl_s: int | None) -> str:
    over = f", {usd(price.over(ttl_s))} in {durations.exact(ttl_s)}" if ttl_s is not None else ""
    return f"{usd(price.usd_per_hour)} an hour{over}"
