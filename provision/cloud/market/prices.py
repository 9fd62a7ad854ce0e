"""What a machine costs an hour, by a price list with a date. An estimate: disks, traffic, licences and taxes are not in it. Pure.

The packaged list, data/prices.json, names where its numbers come from, and the dates of those that
are of another one. Compute Engine bills vCPUs, memory and GPUs apart, by region and by the second
(Compute Engine, "VM instance pricing", "GPU pricing"); Spot prices may change once a day ("Spot VMs
pricing"). What the list does not hold has no price here: nothing is guessed.
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
from provision.cloud.market.placement import region_of
from provision.core.errors import SettingsError

_MODELS = ("STANDARD", "SPOT")
"""Provisioning models that the list knows, in the order of its pairs; the discount of flex-start is
not published as a rate."""
_MOST_USD = 1e6
"""A rate above it is a slip, and sums of it would be no numbers."""
_SHOWN = 40
"""Letters that are shown of what is no mapping."""


@dataclass(frozen=True)
class Price:
    """US dollars an hour for a machine with its GPUs while it runs, and the date of the oldest rate in it."""

    usd_per_hour: float
    as_of: str

    def over(self, seconds: float) -> float:
        """US dollars for so many seconds."""
        return self.usd_per_hour * seconds / 3600


@dataclass(frozen=True)
class PriceList:
    """Rates by region: `[on demand, Spot]` in US dollars an hour, under the names that data/prices.json explains."""

    as_of: str
    regions: Mapping[str, Mapping[str, tuple[float | None, float | None]]]
    dates: Mapping[str, str] = field(default_factory=dict)
    """Name → the date of its rates, where that is not `as_of`."""

    @classmethod
    def from_text(cls, text: str, where: str) -> PriceList:
        """Read a list in the form of data/prices.json. Raises SettingsError naming what is wrong in `where`."""
        try:
            data = _mapping("it", json.loads(text))
            as_of, dates = (
                _date(data["as_of"]),
                {
                    name: _date(day)
                    for name, day in _mapping("dates", data.get("dates", {})).items()
                },
            )
            regions = {
                region: {name: _pair(name, pair) for name, pair in _mapping(region, rates).items()}
                for region, rates in _mapping("regions", data["regions"]).items()
            }
        except (ValueError, KeyError, RecursionError) as error:
            why = {KeyError: f"{error} is missing", RecursionError: "it is nested too deeply"}.get(
                type(error), str(error)
            )
            fix = 'begin with {"as_of": "2026-01-31", "regions": {"us-central1": {"g2-standard-8": [0.85, 0.34]}}}'
            raise SettingsError(
                "the file is no price list", where=where, why=why, fix=fix
            ) from error
        return cls(as_of, regions, dates)

    def rate(self, region: str, name: str, provisioning: str) -> float | None:
        """One rate in US dollars an hour; None when the list does not hold it."""
        pair = self.regions.get(region, {}).get(name)
        return (
            pair[_MODELS.index(provisioning)]
            if pair is not None and provisioning in _MODELS
            else None
        )


def _mapping(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {json.dumps(value)[:_SHOWN]}, not a mapping")  # noqa: TRY004 - of a file, not of a caller
    return value


def _date(text: object) -> str:
    try:
        if isinstance(text, str) and date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise ValueError(f"{text!r} is no date such as 2026-01-31")


def _pair(name: str, pair: object) -> tuple[float | None, float | None]:
    if not isinstance(pair, list) or len(pair) != 2 or not all(_is_rate(rate) for rate in pair):
        raise ValueError(f"{name} is {pair!r}, not [on demand, Spot] in US dollars an hour")
    return pair[0], pair[1]


def _is_rate(rate: object) -> bool:
    return rate is None or (
        isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate <= _MOST_USD
    )


@cache
def packaged() -> PriceList:
    """The list that comes with the package."""
    path = resources.files("provision.cloud.market").joinpath("data/prices.json")
    return PriceList.from_text(path.read_text(encoding="utf-8"), "data/prices.json")


def price_per_hour(
    shape: Shape, zone: str, provisioning: str = "STANDARD", prices: PriceList | None = None
) -> Price | None:
    """What the machine costs in `zone` as STANDARD or SPOT; None when the list lacks one of its parts."""
    prices = prices or packaged()
    dates: set[str] = set()

    def rate(name: str) -> float | None:
        found = prices.rate(region_of(zone), name, provisioning)
        if found is not None:
            dates.add(prices.dates.get(name, prices.as_of))
        return found

    usd = _usd(shape, rate)
    return None if usd is None else Price(usd, min(dates, default=prices.as_of))


def disk_per_hour(
    machine_type: str, disk_gb: float, zone: str, prices: PriceList | None = None
) -> Price | None:
    """What its disks of `disk_gb` in all cost, running or not, of the type that we give this machine type; None when it is not listed."""
    prices, name = prices or packaged(), f"{catalog.default_disk_type(machine_type)}-gb"
    rate = prices.rate(region_of(zone), name, "STANDARD")
    return None if rate is None else Price(rate * disk_gb, prices.dates.get(name, prices.as_of))


def _usd(shape: Shape, rate: Callable[[str], float | None]) -> float | None:
    bundled = catalog.bundled_machine_types().get(shape.machine_type)
    machine = rate(shape.machine_type)
    if bundled is not None:
        gpu, kind = bundled
        if machine is not None:
            return machine
        if kind.series == "g2":
            return _sum((rate("g2-vcpu"), kind.vcpus), (rate(gpu.accelerator), kind.gpu_count))
        return _sum((rate(re.sub(r"-\d+g$", "", kind.name)), kind.gpu_count))
    n1 = catalog.parse_n1(shape.machine_type)
    if machine is None and n1 is not None and not n1.custom:
        machine = _sum((rate("n1-vcpu"), n1.vcpus), (rate("n1-gb"), n1.memory_gb))
    gpu_name = catalog.gpu_type(shape.gpu).accelerator if shape.gpu else ""
    return _sum((machine, 1), (rate(gpu_name) if shape.gpu_count else 0.0, shape.gpu_count))


def _sum(*parts: tuple[float | None, float]) -> float | None:
    """Each rate times how much of it; None when one is not known."""
    total = 0.0
    for rate, amount in parts:
        if rate is None:
            return None
        total += rate * amount
    return total


def usd(amount: float) -> str:
    """An amount for people: `$0.85`, `$12.40`; `$0.004` where cents would say nothing."""
    return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.3f}"
