"""Offers as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from provision.cloud.market.offers import Offer
from provision.cloud.market.prices import Price, PriceList, format_usd
from provision.cloud.market.quota import QuotaVerdict, Room
from provision.report.table import format_table

_HEAD = ("machine type", "GPU", "vCPU", "GB", "GPU GB", "where", "$/h", "Spot", "left")


def offers_text(
    offers: Sequence[Offer], refused: Mapping[str, str], prices: PriceList, region: str
) -> str:
    """Return the usable offers as a table, cheapest first, with the reasons against the others.

    `refused` are the GPUs that the toolkit does not support, each with the reason.
    """
    usable = [offer for offer in offers if not offer.refused]
    refusals = _refusals(offer for offer in offers if offer.shape.gpu not in refused)
    refusals += [f"not {gpu}: {why}" for gpu, why in refused.items()]
    if not usable:
        where = f" in zones whose name begins with {region}" if region else ""
        return "\n".join([f"nothing is offered{where}", *refusals])
    ordered = sorted(usable, key=lambda offer: (_line_key(offer), offer.zone))
    rows = [_row(list(zones)) for _key, zones in groupby(ordered, key=_line_key)]
    table = format_table([_HEAD, *rows], right=(2, 3, 4, 6, 7, 8))
    return "\n".join([table, "", *_legend(usable, prices), *refusals])


def _line_key(offer: Offer) -> tuple[float, str, str, int, str]:
    """Equal for zones that share a line; begins with the price, by which the lines are sorted."""
    price = offer.on_demand or offer.spot
    return (
        price.usd_per_hour if price else float("inf"),
        str(offer.shape.gpu),
        offer.shape.machine_type,
        offer.shape.gpu_count,
        offer.region,
    )


def _row(zones: Sequence[Offer]) -> tuple[str, ...]:
    """The line of one offer in several zones of a region."""
    first = zones[0]
    gpu = str(first.shape.gpu).removeprefix("nvidia-").removeprefix("tesla-")
    letters = ",".join(offer.zone.rpartition("-")[2] for offer in zones)
    return (
        first.shape.machine_type,
        f"{first.shape.gpu_count} x {gpu}",
        str(first.vcpus),
        f"{first.memory_gb:g}",
        str(first.gpu_memory_gb * first.shape.gpu_count),
        f"{first.region}-{letters}",
        "no" if _is_not_on_demand(first) else _price_cell(first.on_demand),
        _price_cell(first.spot),
        _quota_cell(first.quota),
    )


def _is_not_on_demand(offer: Offer) -> bool:
    return bool(offer.provisioning) and "STANDARD" not in offer.provisioning


def _price_cell(price: Price | None) -> str:
    return "unknown" if price is None else format_usd(price.usd_per_hour).removeprefix("$")


def _quota_cell(verdict: QuotaVerdict | None) -> str:
    if verdict is None or verdict.quota is None:
        return "?"
    left = f"{verdict.quota.left:g}"
    return {Room.SHORT: f"({left})", Room.OK: left}.get(verdict.room, "?")


def _legend(offers: Sequence[Offer], prices: PriceList) -> list[str]:
    """The basis of the prices, and the meaning of the table's signs."""
    dates = sorted(
        {price.as_of for offer in offers for price in (offer.on_demand, offer.spot) if price}
        or {prices.as_of}
    )
    lines = [
        f"prices: estimates in US dollars an hour, by the list of {' and '.join(dates)}",
        "        machine and GPUs alone, without disk, traffic and taxes",
    ]
    if any(_is_not_on_demand(offer) for offer in offers):
        lines.append("no: not available on demand, only as Spot, flex-start or a reservation")
    return [
        *lines,
        "left: GPUs that the quota still allows; capacity is known only when a VM is made",
        "      ? unknown; (N) is too few for the machine",
    ]


def _refusals(offers: Iterable[Offer]) -> list[str]:
    """One line for each machine type that is listed but would be refused."""
    reasons = {offer.shape.machine_type: offer.refused for offer in offers if offer.refused}
    return [f"not {name}: {why}" for name, why in sorted(reasons.items())]
