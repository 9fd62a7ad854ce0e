"""Which VMs are to be deleted since they are stopped for longer than their `idle_delete`. Pure.

Compute Engine does not delete a VM because it is stopped: its disks bill until it is deleted
(Compute Engine, "Stop a VM"). `vm.gc` deletes it.
"""

from __future__ import annotations

from datetime import datetime

from provision.cloud.api.labels import IDLE_DELETE_LABEL
from provision.cloud.api.resources import parse_timestamp
from provision.cloud.lifecycle.vm_states import STOPPED_STATES
from provision.core.durations import exact
from provision.core.model import Vm
from provision.settings.validators import idle_seconds


def limit_s(vm: Vm) -> int | None:
    """Return how long the VM may be stopped, by its label; None without a valid label."""
    try:
        return idle_seconds(vm.labels.get(IDLE_DELETE_LABEL, "none"))
    except ValueError:
        return None


def seconds_stopped(vm: Vm, now: datetime) -> int | None:
    """Return how long the VM has been stopped; None when it is not, or since when is unknown."""
    since = parse_timestamp(vm.stopped) if vm.status in STOPPED_STATES else None
    return None if since is None else int((now - since).total_seconds())


def deletion_reason(vm: Vm, now: datetime) -> str | None:
    """Return why the VM is to be deleted; None when it is not.

    A VM whose last start is later than its last stop is not to be deleted.
    """
    limit, stopped_for_s = limit_s(vm), seconds_stopped(vm, now)
    if limit is None or stopped_for_s is None or stopped_for_s < limit:
        return None
    started, stopped = parse_timestamp(vm.started), parse_timestamp(vm.stopped)
    if started is not None and stopped is not None and started > stopped:
        return None
    label = vm.labels[IDLE_DELETE_LABEL]
    return f"stopped for {_without_small_units(stopped_for_s)}, idle_delete is {label}"


def _without_small_units(seconds: int) -> str:
    """Return the time span in whole minutes, from a day on in whole hours."""
    return exact(seconds - seconds % (3600 if seconds >= 86_400 else 60))
