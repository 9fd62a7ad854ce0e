"""Waits for a VM whose status changes by itself: a flex-start VM is PENDING until it has capacity.

Source: Compute Engine, "About Flex-start VMs": the VM starts if there is capacity while the request
is valid (90 seconds to two hours); otherwise the request is removed. A client that stops waiting
does not withdraw the request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.vm_states import PENDING
from provision.cloud.refusal import CAPACITY_WAIT_EXPIRED, Refusal
from provision.cloud.refusal_table import refusal_error
from provision.core.durations import exact
from provision.core.errors import CloudError
from provision.core.model import Vm

STATE_CHANGE_LIMIT_S = 600.0
STATE_CHANGE_POLL_S = 2.0
CAPACITY_POLL_S = 5.0
CAPACITY_NOTE_EVERY_S = 60.0
GRACE_S = 120.0
"""Time after the end of the request in which the cloud starts or removes the VM; after that the
request counts as refused."""


def wait_for_capacity(
    context: CloudContext, vm: Vm, wait_s: int, is_enough: Callable[[], bool] = lambda: False
) -> Vm:
    """Return the VM once it is no longer PENDING, or as soon as `is_enough()`; report the wait.

    Raises `CloudRefused` with the code CAPACITY_WAIT_EXPIRED when `wait_s` is over: the VM is gone,
    or the caller deletes it.
    """
    waited_s, limit = 0.0, exact(wait_s)
    if vm.status == PENDING:
        context.note(f"{vm.zone}: {vm.name} waits for capacity (flex-start), up to {limit}")
    while vm.status == PENDING and not is_enough():
        if waited_s >= wait_s + GRACE_S:
            raise _no_capacity(context, vm, f"within {limit}: the request is withdrawn")
        context.sleep(CAPACITY_POLL_S)
        waited_s += CAPACITY_POLL_S
        try:
            current = context.cloud.get(vm.name, vm.zone)
        except CloudError as error:
            context.note(f"{vm.zone}: {error.what}, so it is looked at again: {error.why}")
            continue
        if current is None:
            raise _no_capacity(context, vm, f"within {limit}: the cloud removed the request")
        vm = current
        if vm.status == PENDING and waited_s % CAPACITY_NOTE_EVERY_S == 0:
            context.note(f"{vm.zone}: no capacity after {exact(int(waited_s))} of {limit}")
    return vm


def wait_while(
    cloud: ComputeCloud,
    vm: Vm,
    states: Collection[str],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Vm:
    """Return the VM once its status is not in `states`, or its last state after ten minutes.

    Raises `CloudError` when the VM is gone.
    """
    waited_s = 0.0
    while vm.status in states and waited_s < STATE_CHANGE_LIMIT_S:
        sleep(STATE_CHANGE_POLL_S)
        waited_s += STATE_CHANGE_POLL_S
        vm = fetch_again(cloud, vm)
    return vm


def fetch_again(cloud: ComputeCloud, vm: Vm) -> Vm:
    """Return the VM as it is now. Raises `CloudError` when it is gone."""
    current = cloud.get(vm.name, vm.zone)
    if current is None:
        raise CloudError(
            "the VM is gone",
            where=f"{vm.zone}/{vm.name}",
            why=f"it was {vm.status} a moment ago",
        )
    return current


def _no_capacity(context: CloudContext, vm: Vm, details: str) -> CloudError:
    return refusal_error(
        "the VM was not created",
        Refusal(code=CAPACITY_WAIT_EXPIRED, message=f"no capacity {details}"),
        where=f"{vm.zone}/{vm.name}",
        project=context.cloud.project,
    )
