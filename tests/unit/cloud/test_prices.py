"""Prices by the packaged list, with numbers from Google's pages; None where it has no rate."""

from __future__ import annotations

import json

import pytest

from provision.cloud.market.catalog import Shape, bundled_machine_types, gpu_types
from provision.cloud.market.prices import (
    PriceList,
    disk_per_hour,
    format_usd,
    packaged_prices,
    price_per_hour,
)
from provision.core.errors import SettingsError

L4 = Shape("g2-standard-8", "nvidia-l4", 1)
T4 = Shape("n1-standard-8", "nvidia-tesla-t4", 1)


@pytest.mark.parametrize(
    ("shape", "zone", "provisioning", "dollars"),
    [
        # Each is a sum of SKUs of the Cloud Billing Catalog: 8 x N1 vCPU + 30 GB, + T4.
        (T4, "us-central1-a", "STANDARD", 8 * 0.031611 + 30 * 0.004237 + 0.35),
        (
            Shape("n1-standard-8", "t4", 1),
            "us-central1-a",
            "STANDARD",
            8 * 0.031611 + 30 * 0.004237 + 0.35,
        ),
        (
            Shape("n1-standard-64", "nvidia-tesla-v100", 8),
            "us-central1-a",
            "STANDARD",
            64 * 0.031611 + 240 * 0.004237 + 8 * 2.48,
        ),
        (Shape("n1-highmem-2"), "us-central1-a", "STANDARD", 2 * 0.031611 + 13 * 0.004237),
        # Totals that are published for the whole machine.
        (Shape("g2-standard-4", "nvidia-l4", 1), "us-central1-a", "STANDARD", 0.706832276),
        (Shape("a2-ultragpu-1g", "nvidia-a100-80gb", 1), "us-central1-c", "STANDARD", 5.06879789),
        (Shape("a2-highgpu-8g", "nvidia-tesla-a100", 8), "us-central1-c", "STANDARD", 8 * 3.673385),
        (
            Shape("a2-megagpu-16g", "nvidia-tesla-a100", 16),
            "us-central1-c",
            "STANDARD",
            96 * 0.031611 + 1360 * 0.004237 + 16 * 2.933908,
        ),
        (Shape("a3-highgpu-4g", "nvidia-h100-80gb", 4), "us-central1-a", "SPOT", 4 * 4.42446871),
        (T4, "us-central1-f", "SPOT", 8 * 0.00882 + 30 * 0.00113 + 0.175),
    ],
)
def test_price_of_a_machine(shape: Shape, zone: str, provisioning: str, dollars: float) -> None:
    price = price_per_hour(shape, zone, provisioning)
    assert price is not None
    assert price.usd_per_hour == pytest.approx(dollars, rel=2e-4)
    assert price.as_of == packaged_prices().as_of


@pytest.mark.parametrize(
    ("shape", "zone", "provisioning"),
    [
        (L4, "mars-north1-a", "STANDARD"),
        (L4, "us-central1-a", "FLEX_START"),
        (Shape("a4-highgpu-8g", "nvidia-b200", 8), "us-central1-a", "STANDARD"),
        (Shape("a3-highgpu-1g", "nvidia-h100-80gb", 1), "europe-west3-a", "SPOT"),
        (Shape("n1-standard-8", "nvidia-tesla-v100", 1), "asia-south1-a", "STANDARD"),
        (Shape("custom-8-30720", "nvidia-tesla-t4", 1), "us-central1-a", "STANDARD"),
        (Shape("e2-standard-4"), "us-central1-a", "STANDARD"),
    ],
)
def test_price_is_none_when_a_rate_is_missing(shape: Shape, zone: str, provisioning: str) -> None:
    assert price_per_hour(shape, zone, provisioning) is None


@pytest.mark.parametrize(
    ("shape", "zone", "provisioning", "dollars", "as_of"),
    [
        (
            Shape("a3-ultragpu-8g", "nvidia-h200-141gb", 8),
            "us-central1-b",
            "SPOT",
            8 * 6.2607,
            "2026-10-13",
        ),
        (
            Shape("g4-standard-96", "nvidia-rtx-pro-6000", 2),
            "us-central1-b",
            "STANDARD",
            9.0002,
            "2025-10-22",
        ),
    ],
)
def test_price_has_the_date_of_a_dated_rate(
    shape: Shape, zone: str, provisioning: str, dollars: float, as_of: str
) -> None:
    price = price_per_hour(shape, zone, provisioning)
    assert price is not None
    assert (round(price.usd_per_hour, 4), price.as_of) == (round(dollars, 4), as_of)


def test_price_has_the_date_of_its_oldest_rate() -> None:
    rates = {"n1-vcpu": [1, 1], "n1-gb": [1, 1], "nvidia-tesla-t4": [1, 1]}
    data = {
        "as_of": "2026-10-01",
        "dates": {"nvidia-tesla-t4": "2025-01-31"},
        "regions": {"us-central1": rates},
    }
    own = PriceList.from_text(json.dumps(data), "prices.json")
    dated = [
        price_per_hour(shape, "us-central1-a", prices=own) for shape in (T4, Shape("n1-standard-8"))
    ]
    assert [price.as_of for price in dated if price] == ["2025-01-31", "2026-10-01"]


def test_every_dated_name_is_in_the_packaged_list() -> None:
    names = {name for rates in packaged_prices().regions.values() for name in rates}
    assert set(packaged_prices().dates) <= names


def test_packaged_spot_rates_are_below_on_demand() -> None:
    dearer = [
        (region, name)
        for region, rates in packaged_prices().regions.items()
        for name, (full, spot) in rates.items()
        if full and spot and spot > full
    ]
    assert dearer == []


def test_every_name_of_the_packaged_list_is_known() -> None:
    """A misspelt name would be a price that is never found."""
    families = {name.rsplit("-", 1)[0] for name in bundled_machine_types()} | set(
        bundled_machine_types()
    )
    known = set(gpu_types()) | families | {"n1-vcpu", "n1-gb", "g2-vcpu", "pd-balanced-gb"}
    assert {name for rates in packaged_prices().regions.values() for name in rates} <= known


def test_own_price_list_can_price_whole_machines() -> None:
    text = json.dumps(
        {
            "as_of": "2026-10-01",
            "regions": {"us-central1": {"g2-standard-8": [0.7, None], "n1-standard-8": [0.3, 0.1]}},
        }
    )
    own = PriceList.from_text(text, "prices.json")
    price = price_per_hour(L4, "us-central1-a", prices=own)
    assert price is not None
    assert (price.usd_per_hour, price.as_of) == (0.7, "2026-10-01")
    assert price_per_hour(L4, "us-central1-a", "SPOT", own) is None
    assert price_per_hour(T4, "us-central1-a", prices=own) is None, (
        "the price of the machine alone is not the price with a GPU"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "it is [], not a mapping"),
        ('{"regions": {}}', "'as_of' is missing"),
        ('{"as_of": "today", "regions": {}}', "not a date such as"),
        (
            '{"as_of": "2026-01-31", "dates": {"n1-gb": "May"}, "regions": {}}',
            "'May' is not a date such as",
        ),
        (
            '{"as_of": "2026-01-31", "regions": {"us-central1": {"n1-gb": 0.1}}}',
            "not [on demand, Spot]",
        ),
        (
            '{"as_of": "2026-01-31", "regions": {"us-central1": {"n1-gb": [-1, null]}}}',
            "not [on demand, Spot]",
        ),
        (
            '{"as_of": "2026-01-31", "regions": {"us-central1": {"n1-gb": [true, null]}}}',
            "not [on demand, Spot]",
        ),
        (
            '{"as_of": "2026-01-31", "regions": {"us-central1": {"n1-gb": [1e400, null]}}}',
            "n1-gb is [inf, None], not [on demand, Spot]",
        ),
        (
            '{"as_of": "2026-01-31", "regions": {"us-central1": {"n1-gb": [NaN, null]}}}',
            "n1-gb is [nan, None], not [on demand, Spot]",
        ),
        (
            '{"as_of": "2026-01-31", "regions": {"us-central1": {"n1-gb": [1'
            + "0" * 400
            + ", null]}}}",
            "not [on demand, Spot]",
        ),
        ('{"as_of": "2026-99-99", "regions": {}}', "'2026-99-99' is not a date such as"),
        ('{"as_of": "20260131", "regions": {}}', "'20260131' is not a date such as"),
        ("[" * 100_000, "nested too deeply"),
        ("null", "it is null, not a mapping"),
        ('{"as_of": "2026-01-31", "dates": [], "regions": {}}', "dates is [], not a mapping"),
        ('{"as_of": "2026-01-31", "regions": null}', "regions is null, not a mapping"),
        (
            '{"as_of": "2026-01-31", "regions": {"us-central1": null}}',
            "us-central1 is null, not a mapping",
        ),
    ],
)
def test_invalid_price_list_raises_settings_error(text: str, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        PriceList.from_text(text, "mine.json")
    assert (caught.value.what, caught.value.where) == ("the file is not a price list", "mine.json")
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "$0.00"), (0.004, "$0.004"), (0.854, "$0.85"), (88.49, "$88.49")]
)
def test_format_usd(amount: float, text: str) -> None:
    assert format_usd(amount) == text


def test_disk_price_per_hour() -> None:
    disk = disk_per_hour("g2-standard-8", 200, "us-central1-a")
    assert disk is not None
    assert disk.over(730 * 3600) == pytest.approx(20.0, rel=1e-3), "0.10 dollars a GB and month"
    assert disk_per_hour("a4-highgpu-8g", 200, "us-central1-a") is None, (
        "Hyperdisk is not in the list"
    )
    assert disk_per_hour("g2-standard-8", 200, "mars-north1-a") is None
    assert all("pd-balanced-gb" in rates for rates in packaged_prices().regions.values())
