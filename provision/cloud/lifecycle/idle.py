"""Which stopped VMs are to be deleted: those that are stopped for longer than they themselves say. Pure.

Nothing in Compute Engine deletes a VM because it is stopped (Compute Engine, "Stop a VM": until it
is deleted, its disks bill), and a stopped VM cannot delete itself: somebody has to come by and
look.
"""

from __future__ import annotations

from datetime import UTC, datetime

from provision.cloud.api import body
from provision.cloud.lifecycle.context import HALTED
from provision.core import durations
from provision.core.model import Vm
from provision.settings.validators import idle_seconds


def limit_s(vm: Vm) -> int | None:
    """How long the VM may be stopped, as its label says; None where it says nothing, or nothing that is understood."""
    try:
        return idle_seconds(vm.labels.get(body.IDLE_DELETE_LABEL, "none"))
    except ValueError:
        return None


def stopped_s(vm: Vm, now: datetime) -> int | None:
    """Seconds for which it has been stopped; None while it is not, and where the cloud does not say since when."""
    since = moment(vm.stopped) if vm.status in HALTED else None
    return None if since is None else int((now - since).total_seconds())


def overdue(vm: Vm, now: datetime) -> str | None:
    """Why the VM is to be deleted; None where it is not.

    A VM that was started after it was stopped, as far as its timestamps go, is none that was
    stopped for long.
    """
    limit, halted_s = limit_s(vm), stopped_s(vm, now)
    if limit is None or halted_s is None or halted_s < limit:
        return None
    started, stopped = moment(vm.started), moment(vm.stopped)
    if started is not None and stopped is not None and started > stopped:
        return None
    return f"stopped for {_rough(halted_s)}, idle_delete is {vm.labels[body.IDLE_DELETE_LABEL]}"


def moment(timestamp: str) -> datetime | None:
    """An RFC 3339 time of the API; None for none."""
    try:
        found = datetime.fromisoformat(timestamp)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _rough(seconds: int) -> str:
    """A time of which minutes no longer matter after a day."""
    return durations.exact(seconds - seconds % (3600 if seconds >= 86_400 else 60))
