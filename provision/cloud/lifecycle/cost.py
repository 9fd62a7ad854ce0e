"""The cost of a VM: an hour, and until now. Estimates from list prices."""

from __future__ import annotations

from dataclasses import dataclass

from provision.cloud.lifecycle.vm_times import ran_s, seconds_since
from provision.cloud.market.catalog import Shape
from provision.cloud.market.prices import PriceList, disk_per_hour, price_per_hour
from provision.core.errors import SettingsError
from provision.core.model import Vm

HOUR_S = 3600.0


@dataclass(frozen=True)
class HourlyRate:
    """US dollars an hour; None where the price is unknown."""

    machine: float | None
    """vCPUs, memory and GPUs: billed while the VM runs."""
    disk: float | None
    """The disks: billed from creation to deletion."""


def hourly_rate(vm: Vm, prices: PriceList | None = None) -> HourlyRate:
    """Return the VM's rate by a price list; by the packaged one unless another is given."""
    shape = Shape(vm.machine_type, vm.gpu, vm.gpu_count)
    try:
        machine = price_per_hour(shape, vm.zone, vm.provisioning_model, prices)
    except SettingsError:  # a GPU that the catalogue does not have has no price either
        machine = None
    disk = disk_per_hour(vm.machine_type, vm.disk_gb, vm.zone, prices)
    return HourlyRate(
        None if machine is None else machine.usd_per_hour,
        None if disk is None else disk.usd_per_hour,
    )


def cost_usd(vm: Vm, prices: PriceList | None = None) -> float | None:
    """Return the cost of its present or last run, and of its disk since its creation.

    None where a price or a time is unknown.
    """
    rate, run_s, age_s = hourly_rate(vm, prices), ran_s(vm), seconds_since(vm.created, vm.ahead_s)
    if rate.machine is None or rate.disk is None or run_s is None or age_s is None:
        return None
    return round((rate.machine * run_s + rate.disk * age_s) / HOUR_S, 4)
