"""The lines of the plan: VMs, zones and prices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provision.cloud.market.plan import plan_lines
from provision.cloud.market.prices import packaged_prices
from provision.core import durations
from tests.specs import vm_spec

SPEC = vm_spec(labels={})


def test_plan_shows_zones_and_price() -> None:
    assert plan_lines([SPEC], ["us-central1-a", "us-east1-b"], packaged_prices()) == [
        (
            "plan:  dev, g2-standard-8 + 1 x nvidia-l4, 200 GB pd-balanced, cos-125-lts, "
            "stopped after 8h"
        ),
        "zones: us-central1-a, us-east1-b",
        "price: about $0.88 an hour, $7.05 in 8h, with its disk (us-central1, list of 2025-03-06)",
    ]


def test_plan_shows_spot_deletion_and_unknown_price() -> None:
    spot = replace(SPEC, provisioning_model="SPOT", ttl_s=5400, termination_action="DELETE")
    plan, _zones, price = plan_lines([spot], ["us-central1-a"], packaged_prices())
    assert "nvidia-l4 as Spot, " in plan
    assert plan.endswith("deleted after 1h30m")
    assert price.startswith("price: about $0.37 an hour, $0.55 in 1h30m, with its disk")
    plan, _zones, price = plan_lines(
        [replace(SPEC, ttl_s=None)], ["mars-north1-a"], packaged_prices()
    )
    assert plan.endswith("no time to live")
    assert price == "price: unknown: mars-north1 has none for it in the list of 2025-03-06"


def test_plan_shows_four_zones_and_the_number_of_others() -> None:
    zones = [f"us-central{number}-a" for number in range(9)]
    assert (
        plan_lines([SPEC], zones, packaged_prices())[1]
        == "zones: us-central0-a, us-central1-a, us-central2-a, us-central3-a and 5 more"
    )


def test_plan_of_several_vms_shows_price_of_each_and_of_all() -> None:
    specs = [replace(SPEC, name=f"dev-{number}") for number in range(1, 7)]
    assert plan_lines(specs[:3], ["us-central1-a"], packaged_prices()) == [
        "plan:  3 VMs: dev-1, dev-2, dev-3",
        "each:  g2-standard-8 + 1 x nvidia-l4, 200 GB pd-balanced, cos-125-lts, stopped after 8h",
        "zones: us-central1-a",
        "price: about $0.88 an hour each, with its disk (us-central1, list of 2025-03-06)",
        "       together $2.64 an hour, $21.14 in 8h",
    ]
    endless = [replace(spec, ttl_s=None) for spec in specs]
    assert (
        plan_lines(endless, ["us-central1-a"], packaged_prices())[0]
        == "plan:  6 VMs: dev-1, dev-2, dev-3, dev-4 and 2 more"
    )
    assert (
        plan_lines(endless, ["us-central1-a"], packaged_prices())[-1]
        == "       together $5.29 an hour"
    )
    assert (
        plan_lines(specs, ["mars-north1-a"], packaged_prices())[-1]
        == "price: unknown: mars-north1 has none for it in the list of 2025-03-06"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (90, "1m30s"), (28_800, "8h"), (129_600, "1d12h")]
)
def test_a_span(seconds: int, text: str) -> None:
    assert durations.exact(seconds) == text
