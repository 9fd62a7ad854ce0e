"""`vm.cost`: what VMs cost an hour, have cost, and will cost by the end of their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from provision.cloud.api.resources import parse_timestamp
from provision.cloud.lifecycle.cost import HOUR_S, cost_usd, hourly_rate
from provision.cloud.lifecycle.vm_states import PENDING, STOPPED_STATES
from provision.cloud.lifecycle.vm_times import ran_s, ttl_left_s
from provision.cloud.market.prices import PriceList
from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.idle_notes import note_idle_vms
from provision.core.model import Vm
from provision.project.owned_vms import list_vms_from_cloud
from provision.project.project import Project
from provision.report.table import format_table, span_or_dash, usd_or_unknown


def vm_cost(project: Project) -> TaskResult:
    """Return the costs of every VM of this project. Estimates from list prices."""
    cloud, prices = project.connect_cloud(), project.price_list
    vms = list_vms_from_cloud(project, cloud).vms
    note_idle_vms(project, vms)
    bill = cost_document(vms, prices)
    return TaskResult(bill, text=_text(bill) if bill["vms"] else "no VMs")


def cost_document(vms: Sequence[Vm], prices: PriceList) -> dict[str, Any]:
    """Return the costs of each VM and the sums, in US dollars."""
    rows = [_row(vm, prices) for vm in vms]
    total = {
        key: _sum([row[key] for row in rows])
        for key in ("usd_per_hour", "cost_usd", "cost_by_ttl_usd")
    }
    return {"vms": rows, "total": total, "prices_as_of": prices.as_of}


def _row(vm: Vm, prices: PriceList) -> dict[str, Any]:
    """A VM's costs; the last one is None for a VM without a time limit.

    A VM that is stopped, or waits for capacity, costs its disk.
    """
    rate, cost, left_s = hourly_rate(vm, prices), cost_usd(vm, prices), ttl_left_s(vm)
    halted = vm.status in {*STOPPED_STATES, PENDING}
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


def _sum(amounts: Sequence[float | None]) -> float | None:
    """The sum; None where an amount is unknown, since the rest would be too small a sum."""
    known = [amount for amount in amounts if amount is not None]
    return round(sum(known), 4) if len(known) == len(amounts) else None


def _text(bill: Mapping[str, Any]) -> str:
    vms = bill["vms"]
    head = ("name", "status", "since (UTC)", "ran", "an hour", "so far", "ttl left", "by then")
    rows = [_text_row(vm) for vm in vms]
    if len(vms) > 1:
        rows.append(_total_row(bill))
    table = format_table([head, *rows], right=(3, 4, 5, 6, 7))
    basis = f"estimates by the price list of {bill['prices_as_of']}, without traffic and taxes:"
    return f"{table}\n{basis}\nthe present run or the last one, and the disk since it was created"


def _text_row(vm: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        vm["name"],
        vm["status"],
        _minute(vm["since"]),
        span_or_dash(vm["ran_s"]),
        usd_or_unknown(vm["usd_per_hour"]),
        usd_or_unknown(vm["cost_usd"]),
        span_or_dash(vm["ttl_left_s"]),
        _limit_cost(vm["cost_by_ttl_usd"], has_limit=vm["ttl_left_s"] is not None),
    )


def _total_row(bill: Mapping[str, Any]) -> tuple[str, ...]:
    total = bill["total"]
    has_limit = all(vm["ttl_left_s"] is not None for vm in bill["vms"])
    limit_cost = _limit_cost(total["cost_by_ttl_usd"], has_limit=has_limit)
    hourly, so_far = (usd_or_unknown(total[key]) for key in ("usd_per_hour", "cost_usd"))
    return ("total", "", "", "", hourly, so_far, "", limit_cost)


def _limit_cost(amount: float | None, *, has_limit: bool) -> str:
    """The cost up to the time limit as text: `-` without a limit, `?` for an unknown price."""
    return usd_or_unknown(amount) if has_limit else "-"


def _minute(timestamp: str) -> str:
    """A time of the API, which has its own offset, in UTC."""
    time = parse_timestamp(timestamp)
    return "-" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"
