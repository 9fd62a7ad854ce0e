"""`vm.offers`: which GPU and machine could be had where, at what price, and whether the quota has room for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from provision.cloud.api import queries
from provision.cloud.market import catalog, offers
from provision.cloud.market.catalog import GpuType
from provision.cloud.market.machine_choice import choose_machine_type
from provision.cloud.market.offers import Offer
from provision.cloud.market.prices import Price, PriceList, format_usd
from provision.cloud.market.quota import Quotas, QuotaVerdict, Room
from provision.cloud.market.shape_rules import unsupported_reason
from provision.commands.shared.result import TaskResult
from provision.core.errors import CloudError
from provision.core.model import Note
from provision.project.project import Project
from provision.report.table import format_table

_HEAD = ("machine type", "GPU", "vCPU", "GB", "GPU GB", "where", "$/h", "Spot", "left")


def vm_offers(project: Project, gpu: str | None, region: str | None = None) -> TaskResult:
    """What could be had where, or where a zone's name begins with `region`.

    With `gpu`, every machine type that carries it; without, one machine for each type of GPU.

    Where the cloud does not answer, what the packaged table knows of the zones of the settings, and
    a note that says so.
    """
    prices = project.price_list
    gpus = [catalog.gpu_type(gpu)] if gpu else list(catalog.gpu_types().values())
    settings = project.settings
    n1 = offers.n1_types_to_show(gpus, (settings.machine_type, settings.dataflow.machine_type))
    why, quotas = "", None
    try:
        client = project.connect_client()
        try:
            where, quotas = queries.list_accelerators(client), _quotas(project)
            machines = queries.list_machine_types(client, offers.machine_type_patterns(gpus, n1))
        finally:
            client.close()
    except CloudError as error:
        why = f"{error.what}: {error.why}"
        project.emit(
            Note(
                f"{why}\nso this is the packaged table, for the zones of the settings; whether they have it is not known"
            )
        )
        where, machines = offers.packaged_machine_types(gpus, n1, settings.zones)
    found = offers.list_offers(gpus, where, machines, prices, quotas)
    shown = [
        offer
        for offer in (found if gpu else _defaults(found, gpus))
        if offer.zone.startswith(region or "")
    ]
    refused = {each.accelerator: because for each in gpus if (because := unsupported_reason(each))}
    document = {
        "offers": [_document(offer) for offer in shown],
        "refused": refused,
        "prices_as_of": prices.as_of,
        "live": not why,
    }
    return TaskResult(
        document | ({"why": why} if why else {}), text=_text(shown, refused, prices, region or "")
    )


def _quotas(project: Project) -> Quotas | None:
    """The quotas, or None where they may not be read: an offer is worth showing without them."""
    client = project.connect_client()
    try:
        return queries.fetch_quotas(client)
    except CloudError as error:
        project.emit(Note(f"{error.what}: {error.why}"))
        return None
    finally:
        client.close()


def _defaults(found: Iterable[Offer], gpus: Iterable[GpuType]) -> list[Offer]:
    """Of each type of GPU the machine that would be chosen for the smallest count."""
    chosen = {
        (gpu.accelerator, choose_machine_type(gpu.accelerator, gpu.counts[0], None)): gpu.counts[0]
        for gpu in gpus
    }
    return [
        offer
        for offer in found
        if chosen.get((str(offer.shape.gpu), offer.shape.machine_type)) == offer.shape.gpu_count
    ]


def _document(offer: Offer) -> dict[str, Any]:
    return {
        "zone": offer.zone,
        "machine_type": offer.shape.machine_type,
        "gpu": offer.shape.gpu,
        "gpu_count": offer.shape.gpu_count,
        "vcpus": offer.vcpus,
        "memory_gb": offer.memory_gb,
        "gpu_memory_gb": offer.gpu_memory_gb,
        "usd_per_hour": _rounded(offer.on_demand),
        "usd_per_hour_spot": _rounded(offer.spot),
        "prices_as_of": next(
            (price.as_of for price in (offer.on_demand, offer.spot) if price), None
        ),
        "only_as": list(offer.provisioning),
        "quota": None if offer.quota is None else _quota_document(offer.quota),
        "refused": offer.refused or None,
    }


def _quota_document(verdict: QuotaVerdict) -> dict[str, Any]:
    left = verdict.quota.left if verdict.quota else None
    return {
        "metric": verdict.metric,
        "room": verdict.room.value,
        "left": left,
        "needed": verdict.needed,
        "why": str(verdict),
    }


def _rounded(price: Price | None) -> float | None:
    return None if price is None else round(price.usd_per_hour, 4)


# --- for people -----------------------------------------------------------------------------------


def _text(found: list[Offer], refused: Mapping[str, str], prices: PriceList, region: str) -> str:
    usable = [offer for offer in found if not offer.refused]
    refusals = _refusals(offer for offer in found if offer.shape.gpu not in refused)
    refusals += [f"not {gpu}: {why}" for gpu, why in refused.items()]
    if not usable:
        where = f" in zones whose name begins with {region}" if region else ""
        return "\n".join([f"nothing is offered{where}", *refusals])
    rows = [_row(list(same)) for _key, same in groupby(sorted(usable, key=_place), key=_line)]
    dates = sorted(
        {price.as_of for offer in usable for price in (offer.on_demand, offer.spot) if price}
        or {prices.as_of}
    )
    foot = [
        f"prices: an estimate, US dollars an hour by the list of {' and '.join(dates)}, machine and GPUs alone"
    ]
    if any(_not_on_demand(offer) for offer in usable):
        foot.append("no: not to be had on demand, only as Spot, flex-start or a reservation")
    foot.append(
        "left: GPUs by quota, not by capacity; ? cannot be told; one in () is less than the machine needs"
    )
    return "\n".join([format_table([_HEAD, *rows], right=(2, 3, 4, 6, 7, 8)), "", *foot, *refusals])


def _price_key(offer: Offer) -> float:
    price = offer.on_demand or offer.spot
    return price.usd_per_hour if price else float("inf")


def _line(offer: Offer) -> tuple[float, str, str, int, str]:
    """What zones have in common that share a line: the price comes first, so that lines stay in its order."""
    return (
        _price_key(offer),
        str(offer.shape.gpu),
        offer.shape.machine_type,
        offer.shape.gpu_count,
        offer.region,
    )


def _place(offer: Offer) -> tuple[tuple[float, str, str, int, str], str]:
    return (_line(offer), offer.zone)


def _row(same: list[Offer]) -> tuple[str, ...]:
    first = same[0]
    letters = ",".join(offer.zone.rpartition("-")[2] for offer in same)
    return (
        first.shape.machine_type,
        f"{first.shape.gpu_count} x {str(first.shape.gpu).removeprefix('nvidia-').removeprefix('tesla-')}",
        str(first.vcpus),
        f"{first.memory_gb:g}",
        str(first.gpu_memory_gb * first.shape.gpu_count),
        f"{first.region}-{letters}",
        "no" if _not_on_demand(first) else _money(first.on_demand),
        _money(first.spot),
        _left(first.quota),
    )


def _not_on_demand(offer: Offer) -> bool:
    return bool(offer.provisioning) and "STANDARD" not in offer.provisioning


def _money(price: Price | None) -> str:
    return "unknown" if price is None else format_usd(price.usd_per_hour).removeprefix("$")


def _left(verdict: QuotaVerdict | None) -> str:
    if verdict is None or verdict.quota is None:
        return "?"
    number = f"{verdict.quota.left:g}"
    return (
        f"({number})" if verdict.room is Room.SHORT else number if verdict.room is Room.OK else "?"
    )


def _refusals(found: Iterable[Offer]) -> list[str]:
    """One line for each machine type that is listed but would be refused."""
    reasons = {offer.shape.machine_type: offer.refused for offer in found if offer.refused}
    return [f"not {name}: {why}" for name, why in sorted(reasons.items())]
