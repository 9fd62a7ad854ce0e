"""What a VM costs: for each hour, since when, until now, and by the end of its time. Estimates, from list prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from provision.cloud.api import body
from provision.cloud.lifecycle import idle
from provision.cloud.lifecycle.create import HALTED
from provision.cloud.lifecycle.idle import moment
from provision.cloud.lifecycle.waiting import WAITING
from provision.cloud.market.catalog import Shape
from provision.cloud.market.prices import PriceList, disk_per_hour, price_per_hour
from provision.core.errors import SettingsError
from provision.core.model import Vm

HOUR_S = 3600.0


@dataclass(frozen=True)
class Rate:
    """US dollars an hour; None where no price is known."""

    machine: float | None
    """vCPUs, memory and GPUs: billed while it runs."""
    disk: float | None
    """Its disks: billed from its making to its deletion."""


def rate_of(vm: Vm, prices: PriceList | None = None) -> Rate:
    """What the VM costs an hour, by a price list; the packaged one unless another is given."""
    shape = Shape(vm.machine_type, vm.gpu, vm.gpu_count)
    try:
        machine = price_per_hour(shape, vm.zone, vm.provisioning_model, prices)
    except SettingsError:  # a GPU that the catalogue does not know has no price either
        machine = None
    disk = disk_per_hour(vm.machine_type, vm.disk_gb, vm.zone, prices)
    return Rate(
        None if machine is None else machine.usd_per_hour,
        None if disk is None else disk.usd_per_hour,
    )


def cloud_time(ahead_s: float = 0.0) -> datetime:
    """Now, by a cloud's clock that is so far ahead of this machine's, which may be wrong by hours."""
    return datetime.now(UTC) + timedelta(seconds=ahead_s)


def seconds_since(timestamp: str, ahead_s: float = 0.0) -> int | None:
    """Whole seconds since an RFC 3339 time of a cloud whose clock is `ahead_s`; None for none."""
    then = moment(timestamp)
    return None if then is None else max(0, int((cloud_time(ahead_s) - then).total_seconds()))


def seconds_until(timestamp: str, ahead_s: float = 0.0) -> int | None:
    """Whole seconds until an RFC 3339 time of a cloud whose clock is `ahead_s`; None for none."""
    then = moment(timestamp)
    return None if then is None else max(0, int((then - cloud_time(ahead_s)).total_seconds()))


def ran_s(vm: Vm) -> int | None:
    """Seconds of its present run, or of its last one: the API remembers one start and one stop. One that waits has not run."""
    if vm.status == WAITING:
        return 0
    if vm.status not in HALTED:
        return seconds_since(vm.started or vm.created, vm.ahead_s)
    started, stopped = moment(vm.started or vm.created), moment(vm.stopped)
    return (
        None
        if started is None or stopped is None
        else max(0, int((stopped - started).total_seconds()))
    )


def overdue(vms: Sequence[Vm]) -> list[tuple[Vm, str]]:
    """Those that are stopped for longer than they say they may be, with the reason."""
    return [
        (vm, why) for vm in vms if (why := idle.overdue(vm, cloud_time(vm.ahead_s))) is not None
    ]


def misread(vms: Sequence[Vm]) -> list[Vm]:
    """Those whose label says something of being deleted that nobody understands: nothing deletes them."""
    return [
        vm
        for vm in vms
        if vm.labels.get(body.IDLE_DELETE_LABEL, "none") != "none" and idle.limit_s(vm) is None
    ]


def unasked(vms: Sequence[Vm], idle_delete_s: int | None) -> list[Vm]:
    """Those that are stopped for longer than the setting `idle_delete`, and say nothing of it themselves: nothing deletes them."""
    halted = [
        (vm, idle.stopped_s(vm, cloud_time(vm.ahead_s)))
        for vm in vms
        if body.IDLE_DELETE_LABEL not in vm.labels
    ]
    return [
        vm
        for vm, age_s in halted
        if age_s is not None and idle_delete_s is not None and age_s >= idle_delete_s
    ]


def cost_usd(vm: Vm, prices: PriceList | None = None) -> float | None:
    """What its present or last run has cost, and its disk since it was made; None where a price or a time is not known."""
    rate, run_s, age_s = rate_of(vm, prices), ran_s(vm), seconds_since(vm.created, vm.ahead_s)
    if rate.machine is None or rate.disk is None or run_s is None or age_s is None:
        return None
    return round((rate.machine * run_s + rate.disk * age_s) / HOUR_S, 4)
