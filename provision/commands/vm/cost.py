"""The bill so far: what runs, since when, what it has cost, and what it will cost by the end of its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from provision.cloud.lifecycle.create import HALTED
from provision.cloud.lifecycle.idle import moment
from provision.cloud.lifecycle.waiting import WAITING
from provision.cloud.market.prices import PriceList
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.documents import (
    aligned,
    say_overdue,
    span_or_dash,
    ttl_left_s,
    usd,
)
from provision.commands.vm.shared.rates import HOUR_S, cost_usd, ran_s, rate_of
from provision.core.model import Vm
from provision.project.owned_vms import list_vms_from_cloud
from provision.project.project import Project


def vm_cost(project: Project) -> TaskResult:
    """Every VM that this project made: what it costs an hour, has cost, and will have cost when its time ends. Estimates."""
    cloud, prices = project.connect_cloud(), project.price_list
    found = list_vms_from_cloud(project, cloud).vms
    say_overdue(project, found)
    bill = summed(found, prices)
    return TaskResult(bill, text=_text(bill) if bill["vms"] else "no VMs")


def summed(vms: Sequence[Vm], prices: PriceList) -> dict[str, Any]:
    """Each VM's bill, and the sums."""
    rows = [_row(vm, prices) for vm in vms]
    total = {
        key: _sum([row[key] for row in rows])
        for key in ("usd_per_hour", "cost_usd", "cost_by_ttl_usd")
    }
    return {"vms": rows, "total": total, "prices_as_of": prices.as_of}


def _row(vm: Vm, prices: PriceList) -> dict[str, Any]:
    """A VM's bill. One that is stopped, or waits for capacity, costs its disk; one without a time limit has no end to sum up to."""
    rate, cost, left_s = rate_of(vm, prices), cost_usd(vm, prices), ttl_left_s(vm)
    halted = vm.status in {*HALTED, WAITING}
    hourly = rate.disk if halted else _sum([rate.machine, rate.disk])
    by_ttl = (
        cost + hourly * left_s / HOUR_S
        if cost is not None and hourly is not None and left_s is not None
        else None
    )
    return {
        "name": vm.name,
        "zone": vm.zone,
        "status": vm.status,
        "since": (vm.stopped if halted else vm.started) or vm.created,
        "ran_s": ran_s(vm),
        "usd_per_hour": None if hourly is None else round(hourly, 4),
        "cost_usd": cost,
        "ttl_left_s": left_s,
        "cost_by_ttl_usd": None if by_ttl is None else round(by_ttl, 4),
    }


def _sum(amounts: list[float | None]) -> float | None:
    """The sum; None when one is not known, since a sum that leaves something out is no sum."""
    known = [amount for amount in amounts if amount is not None]
    return round(sum(known), 4) if len(known) == len(amounts) else None


def _text(bill: Mapping[str, Any]) -> str:
    vms, total = bill["vms"], bill["total"]
    head = ("name", "status", "since (UTC)", "ran", "an hour", "so far", "ttl left", "by then")
    rows = [
        (
            vm["name"],
            vm["status"],
            _minute(vm["since"]),
            span_or_dash(vm["ran_s"]),
            usd(vm["usd_per_hour"]),
            usd(vm["cost_usd"]),
            span_or_dash(vm["ttl_left_s"]),
            _by_then(vm["cost_by_ttl_usd"], ends=vm["ttl_left_s"] is not None),
        )
        for vm in vms
    ]
    ends = all(vm["ttl_left_s"] is not None for vm in vms)
    end = (
        "total",
        "",
        "",
        "",
        usd(total["usd_per_hour"]),
        usd(total["cost_usd"]),
        "",
        _by_then(total["cost_by_ttl_usd"], ends=ends),
    )
    table = aligned([head, *rows, *([end] if len(vms) > 1 else [])], right=(3, 4, 5, 6, 7))
    basis = f"estimates by the price list of {bill['prices_as_of']}, without traffic and taxes:"
    return f"{table}\n{basis}\nthe present run or the last one, and the disk since it was made"


def _by_then(amount: float | None, *, ends: bool) -> str:
    """What has no end in time has no sum by then; that is not the same as an unknown price."""
    return usd(amount) if ends else "-"


def _minute(timestamp: str) -> str:
    """A time of the API, which writes it with an offset of its own."""
    found = moment(timestamp)
    return "-" if found is None else f"{found.astimezone(UTC):%Y-%m-%d %H:%M}"
