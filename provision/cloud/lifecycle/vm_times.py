"""Times of a VM by the cloud's clock: since when it runs, for how long, until when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from provision.cloud.api.resources import parse_timestamp
from provision.cloud.lifecycle.vm_states import PENDING, STOPPED_STATES
from provision.core.model import Vm


def cloud_time(ahead_s: float = 0.0) -> datetime:
    """Return the current time of a cloud whose clock is `ahead_s` ahead of this machine's.

    The clock of this machine may be wrong by hours.
    """
    return datetime.now(UTC) + timedelta(seconds=ahead_s)


def seconds_since(timestamp: str, ahead_s: float = 0.0) -> int | None:
    """Return whole seconds since an RFC 3339 time of the cloud; None where it is empty."""
    then = parse_timestamp(timestamp)
    return None if then is None else max(0, int((cloud_time(ahead_s) - then).total_seconds()))


def seconds_until(timestamp: str, ahead_s: float = 0.0) -> int | None:
    """Return whole seconds until an RFC 3339 time of the cloud; None where it is empty."""
    then = parse_timestamp(timestamp)
    return None if then is None else max(0, int((then - cloud_time(ahead_s)).total_seconds()))


def ran_s(vm: Vm) -> int | None:
    """Return the seconds of its present run, or of its last one; None where a time is unknown.

    The API reports one start and one stop. A VM that waits for capacity has not run.
    """
    if vm.status == PENDING:
        return 0
    if vm.status not in STOPPED_STATES:
        return seconds_since(vm.started or vm.created, vm.ahead_s)
    started, stopped = parse_timestamp(vm.started or vm.created), parse_timestamp(vm.stopped)
    if started is None or stopped is None:
        return None
    return max(0, int((stopped - started).total_seconds()))


def ttl_left_s(vm: Vm) -> int | None:
    """Return the seconds until the cloud stops the VM; None when it does not run or has no limit.

    That is what the API reports, otherwise counted from its last start.
    """
    if vm.status in {*STOPPED_STATES, PENDING}:
        return None
    if (left_s := seconds_until(vm.stops_at, vm.ahead_s)) is not None:
        return left_s
    run_s = seconds_since(vm.started or vm.created, vm.ahead_s)
    return None if vm.ttl_s is None or run_s is None else max(0, vm.ttl_s - run_s)
