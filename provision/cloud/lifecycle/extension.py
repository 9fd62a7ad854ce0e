"""More time for one run of a VM, and the limit of all its runs put back afterwards.

Compute Engine keeps one limit for every run (`maxRunDuration`) and changes it on a stopped VM only
(Compute Engine API v1, instances.setScheduling). So the usual limit stays on the VM as a label
while a run has another one, with the start that was its last one then: once it was started after
that, the extension is used up, and whoever starts it next takes it back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from provision.cloud.api import body
from provision.cloud.api.ports import ComputeCloud
from provision.cloud.lifecycle.context import new_request_id
from provision.cloud.lifecycle.idle import moment
from provision.cloud.market.scheduling import MAX_TTL_S, MIN_TTL_S
from provision.core import durations
from provision.core.model import Vm

_VALUE = re.compile(r"(?P<usual>\d{1,9})_(?P<started>\d{1,15})\Z", re.ASCII)


@dataclass(frozen=True)
class _Record:
    """What the label says: the limit of all runs, and the start (milliseconds since the epoch) after which the extension is used up."""

    usual_s: int
    started_ms: int

    def __str__(self) -> str:
        return f"{self.usual_s}_{self.started_ms}"


def _record(vm: Vm) -> _Record | None:
    found = _VALUE.match(vm.labels.get(body.EXTENDED_LABEL, ""))
    if found is None or not MIN_TTL_S <= int(found["usual"]) <= MAX_TTL_S:
        return None
    return _Record(int(found["usual"]), int(found["started"]))


def _started_ms(vm: Vm) -> int:
    started = moment(vm.started)
    return 0 if started is None else round(started.timestamp() * 1000)


def _is_used_up(vm: Vm, record: _Record) -> bool:
    return _started_ms(vm) != record.started_ms


def usual_ttl_s(vm: Vm) -> int | None:
    """The limit of the runs that nobody extends, in seconds; None = no limit."""
    record = _record(vm)
    return vm.ttl_s if record is None else record.usual_s


def next_ttl_s(vm: Vm) -> int | None:
    """The limit of the next run, in seconds, as far as it was extended by now; None = no limit."""
    record = _record(vm)
    return record.usual_s if record is not None and _is_used_up(vm, record) else vm.ttl_s


def extend(
    cloud: ComputeCloud, vm: Vm, ttl_s: int, *, new_id: Callable[[], str] = new_request_id
) -> Vm:
    """Give the next run of a stopped VM `ttl_s` seconds, or the present one of a VM that runs, where the cloud allows that.

    The label comes first: a run that is killed in between has changed nothing that is not taken
    back. Of a VM that runs the limit comes first, since that may be refused.
    """
    usual_s = usual_ttl_s(vm)
    if usual_s is None:
        return vm
    runs = vm.status == "RUNNING"
    label = str(_Record(usual_s, 0 if runs else _started_ms(vm)))
    if runs:
        cloud.set_ttl(vm.name, vm.zone, ttl_s, request_id=new_id())
    extended = cloud.set_labels(vm.name, vm.zone, {body.EXTENDED_LABEL: label}, request_id=new_id())
    return extended if runs else cloud.set_ttl(vm.name, vm.zone, ttl_s, request_id=new_id())


def start(
    cloud: ComputeCloud,
    vm: Vm,
    note: Callable[[str], None],
    *,
    new_id: Callable[[], str] = new_request_id,
) -> Vm:
    """Start a stopped VM and wait until it runs; an extension that an earlier run has used up is taken back first."""
    record = _record(vm)
    if record is not None and _is_used_up(vm, record):
        if vm.ttl_s != record.usual_s:
            note(
                f"{vm.name}: its time limit is {durations.exact(record.usual_s)} again, as before it was extended"
            )
            cloud.set_ttl(vm.name, vm.zone, record.usual_s, request_id=new_id())
        cloud.set_labels(vm.name, vm.zone, {}, [body.EXTENDED_LABEL], request_id=new_id())
    return cloud.start(vm.name, vm.zone, request_id=new_id())
