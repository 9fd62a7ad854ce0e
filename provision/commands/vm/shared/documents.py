"""VMs and static hosts as `--json` prints them."""

from __future__ import annotations

from typing import Any

from provision.cloud.lifecycle.cost import cost_usd
from provision.cloud.lifecycle.vm_times import seconds_since, ttl_left_s
from provision.cloud.market.prices import PriceList
from provision.core.model import Vm
from provision.project.project import Project


def vm_document(vm: Vm, prices: PriceList | None = None) -> dict[str, Any]:
    """Return a VM for `--json`; ages and times left in seconds, costs in US dollars."""
    return {
        "name": vm.name,
        "zone": vm.zone,
        "status": vm.status,
        "machine_type": vm.machine_type,
        "gpu": vm.gpu,
        "address": vm.address,
        "instance_id": vm.instance_id,
        "age_s": seconds_since(vm.created, vm.ahead_s),
        "cost_usd": cost_usd(vm, prices),
        "ttl_left_s": ttl_left_s(vm),
    }


def static_host_document(project: Project, name: str) -> dict[str, Any]:
    """Return a host of the settings under the keys of a VM."""
    entry = project.settings.hosts[name]
    return {
        "name": name,
        "zone": None,
        "status": "STATIC",
        "machine_type": None,
        "gpu": project.settings.gpu,
        "address": entry.address,
        "instance_id": None,
    }
