"""What a machine costs an hour, by a price list with a date. Pure.

An estimate: traffic, licences and taxes are not in it. The packaged list, data/prices.json, names
the sources of its numbers, and the dates of those that are older or newer. Compute Engine bills
vCPUs, memory and GPUs separately, by region and by the second (Compute Engine, "VM instance
pricing", "GPU pricing"); Spot prices may change once a day ("Spot VMs pricing"). What the list does
not contain has no price here: nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from importlib import resources
from typing import Any

from provision.cloud.market import catalog
from provision.cloud.market.catalog import Shape
from provision.cloud.market.machine_choice import default_disk_type
from provision.cloud.market.zone_order import region_of
from provision.core.errors import SettingsError

_MODELS = ("STANDARD", "SPOT")
"""Provisioning models of the list, in the order of its pairs; the discount of flex-start is not
published as a rate."""
_MOST_USD = 1e6
"""A higher rate is a mistake."""
_SHOWN_CHARACTERS = 40
_EXAMPLE = '{"as_of": "2026-01-31", "regions": {"us-central1": {"g2-standard-8": [0.85, 0.34]}}}'

Rates = tuple[float | None, float | None]
"""On demand and Spot, in US dollars an hour."""


@dataclass(frozen=True)
class Price:
    """US dollars an hour while the machine runs, and the date of the oldest rate in the sum."""

    usd_per_hour: float
    as_of: str

    def over(self, seconds: float) -> float:
        """Return US dollars for so many seconds."""
        return self.usd_per_hour * seconds / 3600


@dataclass(frozen=True)
class PriceList:
    """Rates by region and by name; data/prices.json explains the names."""

    as_of: str
    regions: Mapping[str, Mapping[str, Rates]]
    dates: Mapping[str, str] = field(default_factory=dict)
    """Name → the date of its rates, where that is not `as_of`."""

    @classmethod
    def from_text(cls, text: str, where: str) -> PriceList:
        """Parse a list in the form of data/prices.json, read from `where`.

        Raises `SettingsError` with the reason for an invalid list.
        """
        try:
            data = _mapping("it", json.loads(text))
            as_of, regions = _date(data["as_of"]), _mapping("regions", data["regions"])
            dates = _mapping("dates", data.get("dates", {}))
            return cls(
                as_of,
                {region: _rates(region, rates) for region, rates in regions.items()},
                {name: _date(day) for name, day in dates.items()},
            )
        except (ValueError, KeyError, RecursionError) as error:
            why = {KeyError: f"{error} is missing", RecursionError: "it is nested too deeply"}
            raise SettingsError(
                "the file is not a price list",
                where=where,
                why=why.get(type(error), str(error)),
                fix=f"begin with {_EXAMPLE}",
            ) from error

    def rate(self, region: str, name: str, provisioning: str) -> float | None:
        """Return one rate in US dollars an hour; None when the list does not contain it."""
        pair = self.regions.get(region, {}).get(name)
        if pair is None or provisioning not in _MODELS:
            return None
        return pair[_MODELS.index(provisioning)]


def _mapping(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        shown = json.dumps(value)[:_SHOWN_CHARACTERS]
        raise ValueError(f"{name} is {shown}, not a mapping")  # noqa: TRY004 - of a file, not a caller
    return value


def _date(text: object) -> str:
    try:
        if isinstance(text, str) and date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not a date such as 2026-01-31")


def _rates(region: str, rates: object) -> dict[str, Rates]:
    return {name: _pair(name, pair) for name, pair in _mapping(region, rates).items()}


def _pair(name: str, pair: object) -> Rates:
    if not isinstance(pair, list) or len(pair) != 2 or not all(_is_rate(rate) for rate in pair):
        raise ValueError(f"{name} is {pair!r}, not [on demand, Spot] in US dollars an hour")
    return pair[0], pair[1]


def _is_rate(rate: object) -> bool:
    if rate is None:
        return True
    return isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate <= _MOST_USD


@cache
def packaged_prices() -> PriceList:
    """Return the packaged list."""
    path = resources.files("provision.cloud.market").joinpath("data/prices.json")
    return PriceList.from_text(path.read_text(encoding="utf-8"), "data/prices.json")


def price_per_hour(
    shape: Shape, zone: str, provisioning: str = "STANDARD", prices: PriceList | None = None
) -> Price | None:
    """Return what the machine costs in `zone`; None when the list lacks one of its parts."""
    prices = prices or packaged_prices()
    dates: set[str] = set()

    def rate(name: str) -> float | None:
        found = prices.rate(region_of(zone), name, provisioning)
        if found is not None:
            dates.add(prices.dates.get(name, prices.as_of))
        return found

    usd = _sum_of_parts(shape, rate)
    return None if usd is None else Price(usd, min(dates, default=prices.as_of))


def disk_per_hour(
    machine_type: str, disk_gb: float, zone: str, prices: PriceList | None = None
) -> Price | None:
    """Return what disks of `disk_gb` cost, whether the VM runs or not; None when not listed.

    Their type is the default for the machine type.
    """
    prices, name = prices or packaged_prices(), f"{default_disk_type(machine_type)}-gb"
    rate = prices.rate(region_of(zone), name, "STANDARD")
    return None if rate is None else Price(rate * disk_gb, prices.dates.get(name, prices.as_of))


def _sum_of_parts(shape: Shape, rate: Callable[[str], float | None]) -> float | None:
    bundled = catalog.bundled_machine_types().get(shape.machine_type)
    machine_usd = rate(shape.machine_type)
    if bundled is not None:
        gpu, machine = bundled
        if machine_usd is not None:
            return machine_usd
        if machine.series == "g2":
            vcpus, gpus = (
                (rate("g2-vcpu"), machine.vcpus),
                (rate(gpu.accelerator), machine.gpu_count),
            )
            return _sum(vcpus, gpus)
        return _sum((rate(re.sub(r"-\d+g$", "", machine.name)), machine.gpu_count))
    n1 = catalog.parse_n1(shape.machine_type)
    if machine_usd is None and n1 is not None and not n1.custom:
        machine_usd = _sum((rate("n1-vcpu"), n1.vcpus), (rate("n1-gb"), n1.memory_gb))
    gpu_name = catalog.gpu_type(shape.gpu).accelerator if shape.gpu else ""
    gpu_usd = rate(gpu_name) if shape.gpu_count else 0.0
    return _sum((machine_usd, 1), (gpu_usd, shape.gpu_count))


def _sum(*parts: tuple[float | None, float]) -> float | None:
    """Return the sum of rate times amount; None when a rate is unknown."""
    total = 0.0
    for rate, amount in parts:
        if rate is None:
            return None
        total += rate * amount
    return total


def format_usd(amount: float) -> str:
    """Return an amount for people: `$0.85`, `$12.40`; below ten cents `$0.004`."""
    return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.3f}"
