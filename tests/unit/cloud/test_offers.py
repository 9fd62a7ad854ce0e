"""Offers: machine types of the API joined with the packaged table, prices and quotas."""

from __future__ import annotations

import pytest

from provision.cloud.market.catalog import MachineType, gpu_type, gpu_types, parse_n1
from provision.cloud.market.offers import (
    ListedMachineType,
    Offer,
    list_offers,
    machine_type_patterns,
    n1_types_to_show,
    packaged_machine_types,
)
from provision.cloud.market.prices import packaged_prices as prices
from provision.cloud.market.quota import Quota, Quotas, Room

ZONE = "us-central1-a"
L4, T4, P100, GB200, H100, G4 = (
    gpu_type(name) for name in ("l4", "t4", "p100", "gb200", "h100", "rtx-pro-6000")
)
EVERYWHERE = {ZONE: frozenset(gpu_types()), "us-east1-c": frozenset(gpu_types())}


def listed(
    name: str,
    gpu: str | None = None,
    count: int = 0,
    *,
    zone: str = ZONE,
    vcpus: int = 8,
    memory_gb: float = 32.0,
) -> ListedMachineType:
    n1 = parse_n1(name)
    machine = n1 or MachineType(name, vcpus, memory_gb, count)
    return ListedMachineType(zone, machine, gpu)


def shown(found: list[Offer]) -> list[tuple[str, int, str]]:
    return [(offer.shape.machine_type, offer.shape.gpu_count, offer.zone) for offer in found]


def test_machine_type_patterns_cover_gpu_series_and_n1_names() -> None:
    assert machine_type_patterns([L4, T4], ["n1-standard-8", "n1-standard-8"]) == [
        "g2-.*",
        "n1-standard-8",
    ]
    assert n1_types_to_show([T4], [None, "n1-highmem-4", "g2-standard-8", "n1-standard-8"]) == [
        "n1-standard-8",
        "n1-standard-16",
        "n1-standard-32",
        "n1-highmem-4",
    ]


def test_offer_needs_machine_type_and_gpu_in_the_zone() -> None:
    machines = [
        listed("g2-standard-8", "nvidia-l4", 1),
        listed("g2-standard-8", "nvidia-l4", 1, zone="us-east1-c"),
    ]
    found = list_offers(
        [L4],
        {ZONE: frozenset({"nvidia-l4"}), "us-east1-c": frozenset({"nvidia-tesla-t4"})},
        machines,
        prices(),
        None,
    )
    assert shown(found) == [("g2-standard-8", 1, ZONE)]
    assert found[0].refused == ""
    assert found[0].gpu_memory_gb == 24
    assert found[0].on_demand is not None
    assert found[0].quota is None


def test_n1_machine_is_offered_with_every_allowed_gpu_count() -> None:
    found = list_offers(
        [T4],
        EVERYWHERE,
        [listed("n1-standard-64"), listed("n1-standard-8"), listed("n1-standard-96")],
        prices(),
        None,
    )
    carried = {
        machine: {count for name, count, _zone in shown(found) if name == machine}
        for machine, _count, _zone in shown(found)
    }
    assert carried == {"n1-standard-8": {1, 2, 4}, "n1-standard-64": {4}, "n1-standard-96": {4}}


def test_zone_with_lower_n1_limit_has_fewer_offers() -> None:
    machines = [listed("n1-standard-96", zone=zone) for zone in (ZONE, "us-east1-c")]
    assert shown(list_offers([P100], EVERYWHERE, machines, prices(), None)) == [
        ("n1-standard-96", 4, ZONE)
    ]


def test_offers_are_sorted_by_price_with_unknown_prices_last() -> None:
    machines = [
        listed("a4-highgpu-8g", "nvidia-b200", 8),
        listed("g2-standard-8", "nvidia-l4", 1),
        listed("n1-standard-8"),
        listed("g2-standard-4", "nvidia-l4", 1, vcpus=4, memory_gb=16),
    ]
    found = list_offers([gpu_type("b200"), L4], EVERYWHERE, machines, prices(), None)
    assert [name for name, _count, _zone in shown(found)] == [
        "g2-standard-4",
        "g2-standard-8",
        "a4-highgpu-8g",
    ]


@pytest.mark.parametrize(
    ("machine", "gpu", "why"),
    [
        ("g4-standard-6", G4, "1/8 of a GPU"),
        ("a4x-highgpu-4g", GB200, "Arm"),
        ("g2-standard-999", L4, "does not know the machine type"),
    ],
)
def test_refused_offer_has_a_reason(machine: str, gpu: object, why: str) -> None:
    kind = next(each for each in (G4, GB200, L4) if each is gpu)
    count = 4 if machine.startswith("a4x") else 1
    found = list_offers(
        [kind], EVERYWHERE, [listed(machine, kind.accelerator, count)], prices(), None
    )
    assert why in found[0].refused


def test_spot_only_offer_has_no_on_demand_price() -> None:
    found = list_offers(
        [H100], EVERYWHERE, [listed("a3-highgpu-1g", "nvidia-h100-80gb", 1)], prices(), None
    )
    assert (found[0].on_demand, found[0].provisioning, found[0].refused) == (
        None,
        ("SPOT", "FLEX_START"),
        "",
    )
    assert found[0].spot is not None


def test_offer_shows_gpu_quota_unless_vcpus_are_short() -> None:
    here = {
        metric: Quota(metric, limit, 0)
        for metric, limit in (("NVIDIA_T4_GPUS", 4.0), ("CPUS", 64.0))
    }
    have = Quotas({"GPUS_ALL_REGIONS": Quota("GPUS_ALL_REGIONS", 2.0, 0.0)}, {"us-central1": here})
    found = list_offers(
        [T4], EVERYWHERE, [listed("n1-standard-8"), listed("n1-standard-96")], prices(), have
    )
    reported = {(offer.shape.machine_type, offer.shape.gpu_count): offer.quota for offer in found}
    one = reported["n1-standard-8", 1]
    assert one is not None
    assert (one.metric, one.room) == ("GPUS_ALL_REGIONS", Room.OK)
    large = reported["n1-standard-96", 4]
    assert large is not None
    assert large.room is Room.SHORT


def test_packaged_machine_types_are_listed_in_every_zone() -> None:
    where, machines = packaged_machine_types([L4, T4], ["n1-standard-8", "no-such-type"], [ZONE])
    found = list_offers([L4, T4], where, machines, prices(), None)
    assert {offer.shape.machine_type for offer in found} == {
        machine.name for machine in L4.machine_types
    } | {"n1-standard-8"}
