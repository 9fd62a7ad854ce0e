"""What is offered where: the API's lists joined with the packaged table, prices and quotas. Pure.

The API lists which accelerator and machine type is in which zone; the packaged table adds what the
API does not: memory of the GPU, limits of N1, what Container-Optimized OS supports. Neither shows
whether a zone has capacity at this moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from provision.cloud.market import catalog
from provision.cloud.market.catalog import GpuType, MachineType, Shape
from provision.cloud.market.machine_choice import choose_machine_type
from provision.cloud.market.prices import Price, PriceList, price_per_hour
from provision.cloud.market.quota import Quotas, QuotaVerdict, Room, judge_quotas
from provision.cloud.market.quota_room import worst_verdict
from provision.cloud.market.shape_rules import check_shape
from provision.cloud.market.zone_order import region_of
from provision.core.errors import SettingsError

_ANY_DISK_GB = 200
"""A boot disk that is large enough for every check: an offer has no disk."""


@dataclass(frozen=True)
class ListedMachineType:
    """A machine type as the API lists it in one zone; `gpu` is the accelerator of the type."""

    zone: str
    machine: MachineType
    gpu: str | None = None
    arch: str = ""


@dataclass(frozen=True)
class Offer:
    """One shape in one zone; prices are None where the list has none."""

    shape: Shape
    zone: str
    vcpus: int
    memory_gb: float
    gpu_memory_gb: int
    on_demand: Price | None
    spot: Price | None
    quota: QuotaVerdict | None
    provisioning: tuple[str, ...] = ()
    """The provisioning models that it can be had as; empty: all."""
    refused: str = ""
    """Why this package does not create it; "" when it does."""

    @property
    def region(self) -> str:
        """The zone's region."""
        return region_of(self.zone)


def machine_type_patterns(gpus: Iterable[GpuType], n1: Iterable[str]) -> list[str]:
    """Return patterns (RE2) for the API: the series with GPUs of their own, and the N1 types."""
    series = dict.fromkeys(f"{gpu.series}-.*" for gpu in gpus if gpu.bundled)
    return [*series, *dict.fromkeys(n1)]


def n1_types_to_show(gpus: Iterable[GpuType], more: Iterable[str | None]) -> list[str]:
    """Return the default N1 type for each count of each attached GPU, and those of `more`."""
    defaults = [
        choose_machine_type(gpu.accelerator, count, None)
        for gpu in gpus
        if not gpu.bundled
        for count in gpu.counts
    ]
    others = [name for name in more if name and catalog.parse_n1(name)]
    return list(dict.fromkeys([*defaults, *others]))


def packaged_machine_types(
    gpus: Iterable[GpuType], n1: Iterable[str], zones: Sequence[str]
) -> tuple[dict[str, frozenset[str]], list[ListedMachineType]]:
    """Return accelerators and machine types from the packaged table, for use without the API.

    Every zone gets all of them.
    """
    types = list(gpus)
    bundled = [(m, gpu.accelerator, gpu.arch) for gpu in types for m in gpu.machine_types]
    attached = [(m, None, "x86_64") for m in map(catalog.parse_n1, n1) if m is not None]
    accelerators = frozenset(gpu.accelerator for gpu in types)
    listed = [
        ListedMachineType(zone, machine, gpu, arch)
        for zone in zones
        for machine, gpu, arch in (*bundled, *attached)
    ]
    return dict.fromkeys(zones, accelerators), listed


def list_offers(
    gpus: Sequence[GpuType],
    accelerators: Mapping[str, frozenset[str]],
    machines: Iterable[ListedMachineType],
    prices: PriceList,
    quotas: Quotas | None,
) -> list[Offer]:
    """Return every shape of `gpus` in every zone that lists GPU and machine type; cheapest first.

    `accelerators` are the accelerator types by zone.
    """
    offers = [
        _offer(gpu, count, listed, prices, quotas)
        for listed in machines
        for gpu, count in _gpus_on(gpus, listed)
        if gpu.accelerator in accelerators.get(listed.zone, ())
    ]
    return sorted(offers, key=_order)


def _gpus_on(gpus: Sequence[GpuType], listed: ListedMachineType) -> Iterator[tuple[GpuType, int]]:
    """Yield the machine type's own GPUs, or those that can be attached to it."""
    for gpu in gpus:
        if gpu.bundled and listed.gpu == gpu.accelerator:
            yield gpu, listed.machine.gpu_count
        elif not gpu.bundled and listed.gpu is None and listed.machine.series == "n1":
            for limit in gpu.n1_limits:
                vcpus, memory_gb = limit.for_zone(listed.zone)
                if listed.machine.vcpus <= vcpus and listed.machine.memory_gb <= memory_gb:
                    yield gpu, limit.gpu_count


def _offer(
    gpu: GpuType,
    count: int,
    listed: ListedMachineType,
    prices: PriceList,
    quotas: Quotas | None,
) -> Offer:
    shape, zone = Shape(listed.machine.name, gpu.accelerator, count), listed.zone
    known = catalog.machine_type(listed.machine.name)
    models = known.provisioning if known else ()
    on_demand = not models or "STANDARD" in models
    return Offer(
        shape=shape,
        zone=zone,
        vcpus=listed.machine.vcpus,
        memory_gb=listed.machine.memory_gb,
        gpu_memory_gb=gpu.memory_gb,
        on_demand=price_per_hour(shape, zone, "STANDARD", prices) if on_demand else None,
        spot=price_per_hour(shape, zone, "SPOT", prices),
        quota=None if quotas is None else _quota(quotas, shape, region_of(zone), models),
        provisioning=models,
        refused=_refused(shape, zone, known),
    )


def _quota(
    quotas: Quotas, shape: Shape, region: str, models: tuple[str, ...]
) -> QuotaVerdict | None:
    """Return the worst verdict on GPUs, or on vCPUs where those are short."""
    model = models[0] if models else "STANDARD"
    verdicts = judge_quotas(quotas, shape, region, provisioning=model)
    return worst_verdict(
        verdict
        for verdict in verdicts
        if "CPUS" not in verdict.metric or verdict.room is Room.SHORT
    )


def _refused(shape: Shape, zone: str, known: MachineType | None) -> str:
    """Return why the shape would be refused; "" when it would not."""
    if known is None:
        return "this version does not know the machine type"
    try:
        check_shape(
            shape.gpu,
            shape.gpu_count,
            shape.machine_type,
            _ANY_DISK_GB,
            zone=zone,
            provisioning=known.provisioning[0] if known.provisioning else "STANDARD",
        )
    except SettingsError as error:
        return error.why
    return ""


def _order(offer: Offer) -> tuple[bool, bool, float, str, str, str]:
    price = offer.on_demand or offer.spot
    return (
        bool(offer.refused),
        price is None,
        price.usd_per_hour if price else 0.0,
        str(offer.shape.gpu),
        offer.shape.machine_type,
        offer.zone,
    )
