"""Waiting for a VM whose status becomes another by itself: above all a flex-start VM, which is PENDING until it has capacity.

Source: Compute Engine, "About Flex-start VMs": the VM starts if capacity comes while the request is
valid (90 seconds to two hours); otherwise there is no VM afterwards. Whoever stops waiting leaves
the request in force.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from provision.cloud.api.ports import ComputeCloud
from provision.cloud.lifecycle.context import Means
from provision.cloud.market.placement import refused
from provision.cloud.refusal import WAITED_IN_VAIN, Refusal
from provision.core import durations
from provision.core.errors import CloudError
from provision.core.model import Vm

WAITING = "PENDING"
"""Status of a VM that has no capacity yet."""
ENDING = frozenset({"STOPPING", "PENDING_STOP"})
"""Status words of a VM that is about to be stopped; Compute Engine refuses to start one that is."""
PASSING = ENDING | {WAITING, "PROVISIONING", "STAGING", "SUSPENDING", "REPAIRING", "DEPROVISIONING"}
"""Status words that become others by themselves (Compute Engine, "Instance life cycle")."""
SETTLES_WITHIN_S = 600.0
SETTLES_LOOK_S = 2.0
LOOK_S = 5.0
"""Between two looks at a VM that waits."""
TOLD_EVERY_S = 60.0
GRACE_S = 120.0
"""So long after the request's time the cloud should have given the VM or removed it; then it is
taken for refused."""


def awaited(means: Means, vm: Vm, wait_s: int, enough: Callable[[], bool] = lambda: False) -> Vm:
    """The VM once it waits no longer for capacity, or as it is when `enough()` says so; how long it waits is told.

    Raises CloudRefused (WAITED_IN_VAIN) when the time was over: the VM is gone then, or must be
    removed.
    """
    waited_s = 0.0
    if vm.status == WAITING:
        means.note(
            f"{vm.zone}: {vm.name} waits for capacity (flex-start), up to {durations.exact(wait_s)}"
        )
    while vm.status == WAITING and not enough():
        if waited_s >= wait_s + GRACE_S:
            raise _in_vain(
                means, vm, f"no capacity within {durations.exact(wait_s)}: the request is withdrawn"
            )
        means.sleep(LOOK_S)
        waited_s += LOOK_S
        try:
            found = means.cloud.get(vm.name, vm.zone)
        except CloudError as error:
            means.note(f"{vm.zone}: {error.what}, so it is looked at again: {error.why}")
            continue
        if found is None:
            raise _in_vain(
                means,
                vm,
                f"no capacity within {durations.exact(wait_s)}: the cloud removed the request",
            )
        vm = found
        if vm.status == WAITING and waited_s % TOLD_EVERY_S == 0:
            means.note(
                f"{vm.zone}: no capacity after {durations.exact(int(waited_s))} of {durations.exact(wait_s)}"
            )
    return vm


def settled(
    cloud: ComputeCloud,
    vm: Vm,
    passing: Collection[str],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Vm:
    """The VM once its status is none of `passing`, or as it is after ten minutes. Raises CloudError when it is gone."""
    waited_s = 0.0
    while vm.status in passing and waited_s < SETTLES_WITHIN_S:
        sleep(SETTLES_LOOK_S)
        waited_s += SETTLES_LOOK_S
        found = cloud.get(vm.name, vm.zone)
        if found is None:
            raise CloudError(
                "the VM is gone",
                where=f"{vm.zone}/{vm.name}",
                why=f"it was {vm.status} a moment ago",
            )
        vm = found
    return vm


def _in_vain(means: Means, vm: Vm, message: str) -> CloudError:
    refusal = Refusal(code=WAITED_IN_VAIN, message=message)
    return refused(
        "the VM was not created", refusal, where=f"{vm.zone}/{vm.name}", project=means.cloud.project
    )
