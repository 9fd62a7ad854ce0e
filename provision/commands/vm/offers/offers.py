"""`vm.offers`: the GPUs and machines that zones offer, with prices and quotas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from provision.cloud.api import queries
from provision.cloud.market import catalog
from provision.cloud.market import offers as market
from provision.cloud.market.catalog import GpuType
from provision.cloud.market.machine_choice import choose_machine_type
from provision.cloud.market.offers import Offer
from provision.cloud.market.prices import Price
from provision.cloud.market.quota import Quotas, QuotaVerdict
from provision.cloud.market.shape_rules import unsupported_reason
from provision.commands.shared.result import TaskResult
from provision.commands.vm.offers.table import offers_text
from provision.core.errors import CloudError
from provision.core.model import Note
from provision.project.project import Project


def vm_offers(project: Project, gpu: str | None, region: str | None = None) -> TaskResult:
    """Return the offers, or those in zones whose name begins with `region`.

    With `gpu` every machine type that has it; otherwise one machine for each type of GPU. When the
    cloud does not answer, the offers of the packaged table for the zones of the settings, and a
    note. Raises `SettingsError` for an unknown GPU and an unreadable price list.
    """
    prices = project.price_list
    gpus = [catalog.gpu_type(gpu)] if gpu else list(catalog.gpu_types().values())
    found = _fetch_offers(project, gpus)
    shown = [
        offer
        for offer in (found.offers if gpu else _default_offers(found.offers, gpus))
        if offer.zone.startswith(region or "")
    ]
    refused = {
        gpu_type.accelerator: reason
        for gpu_type in gpus
        if (reason := unsupported_reason(gpu_type))
    }
    document = {
        "offers": [_document(offer) for offer in shown],
        "refused": refused,
        "prices_as_of": prices.as_of,
        "live": not found.failure,
    }
    if found.failure:
        document["why"] = found.failure
    return TaskResult(document, text=offers_text(shown, refused, prices, region or ""))


@dataclass(frozen=True)
class _Offers:
    """All offers; `failure` is the reason why they are those of the packaged table."""

    offers: Sequence[Offer]
    failure: str = ""


def _fetch_offers(project: Project, gpus: Sequence[GpuType]) -> _Offers:
    """The offers of the cloud, or of the packaged table when it does not answer."""
    settings, prices = project.settings, project.price_list
    n1 = market.n1_types_to_show(gpus, (settings.machine_type, settings.dataflow.machine_type))
    client = None
    try:
        client = project.connect_client()
        zones, quotas = queries.list_accelerators(client), _fetch_quotas(project)
        machines = queries.list_machine_types(client, market.machine_type_patterns(gpus, n1))
    except CloudError as error:
        failure = f"{error.what}: {error.why}"
        project.emit(
            Note(
                f"{failure}\nso this is the packaged table, for the zones of the settings; "
                "whether they have it is not known"
            )
        )
        zones, machines = market.packaged_machine_types(gpus, n1, settings.zones)
        return _Offers(market.list_offers(gpus, zones, machines, prices, None), failure)
    finally:
        if client is not None:
            client.close()
    return _Offers(market.list_offers(gpus, zones, machines, prices, quotas))


def _fetch_quotas(project: Project) -> Quotas | None:
    """The quotas; None when they cannot be read, since offers are useful without them."""
    client = project.connect_client()
    try:
        return queries.fetch_quotas(client)
    except CloudError as error:
        project.emit(Note(f"{error.what}: {error.why}"))
        return None
    finally:
        client.close()


def _default_offers(offers: Iterable[Offer], gpus: Iterable[GpuType]) -> list[Offer]:
    """For each type of GPU the machine that `vm.create` chooses for the smallest count."""
    counts = {
        (gpu.accelerator, choose_machine_type(gpu.accelerator, gpu.counts[0], None)): gpu.counts[0]
        for gpu in gpus
    }
    return [
        offer
        for offer in offers
        if counts.get((str(offer.shape.gpu), offer.shape.machine_type)) == offer.shape.gpu_count
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
