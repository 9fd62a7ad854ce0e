"""What could be had where: the live list of GPUs and machine types, joined with the packaged table, prices and quotas. Pure.

The API says which accelerator and machine type is in which zone; the packaged table says what the
API does not: memory of the GPU, limits of N1, what Container-Optimized OS can drive. Neither says
whether a zone has capacity at this moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from provision.cloud.market import catalog
from provision.cloud.market.catalog import GpuType, MachineType, Shape
from provision.cloud.market.placement import region_of
from provision.cloud.market.prices import Price, PriceList, price_per_hour
from provision.cloud.market.quota import Quotas, Room, Verdict, judge, worst
from provision.core.errors import SettingsError

_ANY_DISK_GB = 200
"""Any boot disk that is large enough: an offer is no disk."""


@dataclass(frozen=True)
class Listed:
    """A machine type as the API lists it in one zone; `gpu` is the accelerator that it brings, if any."""

    zone: str
    machine: MachineType
    gpu: str | None = None
    arch: str = ""


@dataclass(frozen=True)
class Offer:
    """One shape in one zone. `refused` says why this toolkit would not create it; prices are None where the list has none."""

    shape: Shape
    zone: str
    vcpus: int
    memory_gb: float
    gpu_memory_gb: int
    on_demand: Price | None
    spot: Price | None
    quota: Verdict | None
    provisioning: tuple[str, ...] = ()
    """Provisioning models it is limited to; empty: any."""
    refused: str = ""

    @property
    def region(self) -> str:
        """The zone's region."""
        return region_of(self.zone)


def names_wanted(gpus: Iterable[GpuType], n1: Iterable[str]) -> list[str]:
    """Patterns (RE2) of the machine types to ask the API for: the series that bring a GPU, and the N1 types by name."""
    found = dict.fromkeys(f"{gpu.series}-.*" for gpu in gpus if gpu.bundled)
    return [*found, *dict.fromkeys(n1)]


def n1_types(gpus: Iterable[GpuType], more: Iterable[str | None]) -> list[str]:
    """The N1 types worth showing: the default for each count of each GPU that is attached, and `more` (those of the settings)."""
    defaults = [
        catalog.machine_for(gpu.accelerator, count, None)
        for gpu in gpus
        if not gpu.bundled
        for count in gpu.counts
    ]
    return list(
        dict.fromkeys([*defaults, *(name for name in more if name and catalog.parse_n1(name))])
    )


def packaged(
    gpus: Iterable[GpuType], n1: Iterable[str], zones: Sequence[str]
) -> tuple[dict[str, frozenset[str]], list[Listed]]:
    """What the API would have listed, from the packaged table, as if each of `zones` had everything: the offline fallback."""
    types = list(gpus)
    machines = [
        *((machine, gpu.accelerator, gpu.arch) for gpu in types for machine in gpu.machine_types),
        *(
            (machine, None, "x86_64")
            for name in n1
            if (machine := catalog.parse_n1(name)) is not None
        ),
    ]
    everything = frozenset(gpu.accelerator for gpu in types)
    listed = [Listed(zone, machine, gpu, arch) for zone in zones for machine, gpu, arch in machines]
    return dict.fromkeys(zones, everything), listed


def offers(
    gpus: Sequence[GpuType],
    where: Mapping[str, frozenset[str]],
    machines: Iterable[Listed],
    prices: PriceList,
    quotas: Quotas | None,
) -> list[Offer]:
    """Every shape of `gpus` in every zone that lists both its GPU and its machine type; the cheapest known price first."""
    made = [
        _offer(gpu, count, live, prices, quotas)
        for live in machines
        for gpu, count in _carried(gpus, live)
        if gpu.accelerator in where.get(live.zone, ())
    ]
    return sorted(made, key=_order)


def _carried(gpus: Sequence[GpuType], live: Listed) -> Iterator[tuple[GpuType, int]]:
    """The GPUs that the machine type brings, or those that may be attached to it."""
    for gpu in gpus:
        if gpu.bundled and live.gpu == gpu.accelerator:
            yield gpu, live.machine.gpu_count
        elif not gpu.bundled and live.gpu is None and live.machine.series == "n1":
            limits = ((limit.gpu_count, limit.for_zone(live.zone)) for limit in gpu.n1_limits)
            yield from (
                (gpu, count)
                for count, (vcpus, memory_gb) in limits
                if _fits(live.machine, vcpus, memory_gb)
            )


def _fits(machine: MachineType, vcpus: int, memory_gb: float) -> bool:
    return machine.vcpus <= vcpus and machine.memory_gb <= memory_gb


def _offer(
    gpu: GpuType, count: int, live: Listed, prices: PriceList, quotas: Quotas | None
) -> Offer:
    shape = Shape(live.machine.name, gpu.accelerator, count)
    known = catalog.machine(live.machine.name)
    models = known.provisioning if known else ()
    return Offer(
        shape=shape,
        zone=live.zone,
        vcpus=live.machine.vcpus,
        memory_gb=live.machine.memory_gb,
        gpu_memory_gb=gpu.memory_gb,
        on_demand=None
        if models and "STANDARD" not in models
        else price_per_hour(shape, live.zone, "STANDARD", prices),
        spot=price_per_hour(shape, live.zone, "SPOT", prices),
        quota=None if quotas is None else _gpu_room(quotas, shape, region_of(live.zone), models),
        provisioning=models,
        refused=_refused(shape, live, known),
    )


def _gpu_room(quotas: Quotas, shape: Shape, region: str, models: tuple[str, ...]) -> Verdict | None:
    verdicts = judge(quotas, shape, region, provisioning=models[0] if models else "STANDARD")
    return worst(
        verdict
        for verdict in verdicts
        if "CPUS" not in verdict.metric or verdict.room is Room.SHORT
    )


def _refused(shape: Shape, live: Listed, known: MachineType | None) -> str:
    """Why the shape would be refused; empty when it would not."""
    if known is None:
        return "this version does not know the machine type"
    model = known.provisioning[0] if known.provisioning else "STANDARD"
    try:
        catalog.validate_shape(
            shape.gpu,
            shape.gpu_count,
            shape.machine_type,
            _ANY_DISK_GB,
            zone=live.zone,
            provisioning=model,
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
