"""What is about to be asked of the cloud, in words and in dollars, before it is asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from provision.cloud.catalog import Shape, default_disk_type
from provision.cloud.placement import region_of
from provision.cloud.prices import Price, PriceList, disk_per_hour, price_per_hour, usd
from provision.model import VmSpec

_ZONES_SHOWN = 4
_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def plan_lines(spec: VmSpec, zones: Sequence[str], prices: PriceList) -> list[str]:
    """Lines for people: the VM, where it may go, what it costs there. `zones` is in the order of asking, not empty."""
    model = {"STANDARD": "", "SPOT": " as Spot", "FLEX_START": " as flex-start"}.get(spec.provisioning_model, " from a reservation")
    disk = f"{spec.disk_gb} GB {default_disk_type(spec.machine_type)}"
    end = "stopped" if spec.termination_action == "STOP" else "deleted"
    ttl = f"{end} after {span(spec.ttl_s)}" if spec.ttl_s is not None else "no time to live"
    more = f" and {len(zones) - _ZONES_SHOWN} more" if len(zones) > _ZONES_SHOWN else ""
    return [
        f"plan:  {spec.name}, {Shape.of(spec)}{model}, {disk}, {spec.image}, {ttl}",
        f"zones: {', '.join(zones[:_ZONES_SHOWN])}{more}",
        price_line(spec, zones[0], prices),
    ]


def price_line(spec: VmSpec, zone: str, prices: PriceList) -> str:
    """What the VM costs an hour in `zone`, its disk included where that is listed, and over its time to live where it has one."""
    where = region_of(zone)
    machine = price_per_hour(Shape.of(spec), zone, spec.provisioning_model, prices)
    if machine is None:
        return f"price: unknown: {where} has none for it in the list of {prices.as_of}"
    disk = disk_per_hour(spec.machine_type, spec.disk_gb, zone, prices)
    price = machine if disk is None else Price(machine.usd_per_hour + disk.usd_per_hour, machine.as_of)
    over = f", {usd(price.over(spec.ttl_s))} in {span(spec.ttl_s)}" if spec.ttl_s is not None else ""
    holds = "without disk" if disk is None else "with its disk"
    return f"price: about {usd(price.usd_per_hour)} an hour{over}, {holds} ({where}, list of {price.as_of})"


def span(seconds: int) -> str:
    """A time as the setting `ttl` writes it: `8h`, `1d12h`, `90m` as `1h30m`."""
    text, rest = "", seconds
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"
