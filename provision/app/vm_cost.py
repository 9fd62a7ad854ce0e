"""What a VM costs: for each hour, since when, until now, and by the end of its time. Estimates, from list prices."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from provision.cloud.create import HALTED
from provision.model import Vm

HOUR_S = 3600.0


@dataclass(frozen=True)
class Rate:
    """US dollars an hour; None where no price is known."""

    machine: float | None
    """vCPUs, memory and GPUs: billed while it runs."""
    disk: float | None
    """Its disks: billed from its making to its deletion."""


def rate_of(vm: Vm) -> Rate:
    """What the VM costs an hour, as the price list of the package has it."""
    del vm
    return Rate(None, None)


def seconds_since(timestamp: str) -> int | None:
    """Whole seconds since an RFC 3339 time; None for none."""
    moment = _moment(timestamp)
    return None if moment is None else max(0, int((datetime.now(UTC) - moment).total_seconds()))


def seconds_until(timestamp: str) -> int | None:
    """Whole seconds until an RFC 3339 time; None for none."""
    moment = _moment(timestamp)
    return None if moment is None else max(0, int((moment - datetime.now(UTC)).total_seconds()))


def _moment(timestamp: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(timestamp)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def ran_s(vm: Vm) -> int | None:
    """Seconds of its present run, or of its last one: the API remembers one start and one stop."""
    since = seconds_since(vm.started or vm.created)
    if vm.status not in HALTED:
        return since
    stopped = seconds_since(vm.stopped)
    return None if since is None or stopped is None else max(0, since - stopped)


def cost_usd(vm: Vm) -> float | None:
    """What its present or last run has cost, and its disk since it was made; None where a price or a time is not known."""
    rate, run_s, age_s = rate_of(vm), ran_s(vm), seconds_since(vm.created)
    if rate.machine is None or rate.disk is None or run_s is None or age_s is None:
        return None
    return round((rate.machine * run_s + rate.disk * age_s) / HOUR_S, 4)
