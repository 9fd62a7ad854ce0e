"""More time for one run of a VM; afterwards the usual limit is restored.

Compute Engine keeps one limit for every run (`maxRunDuration`) and changes it on a stopped VM only
(Compute Engine API v1, instances.setScheduling). So while a run has another limit, a label on the
VM has the usual one, with the last start at that time. Once the VM has a later start, the extension
is used up, and the next start restores the usual limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from provision.cloud.api.labels import EXTENDED_LABEL
from provision.cloud.api.protocol import ComputeCloud
from provision.cloud.api.resources import parse_timestamp
from provision.cloud.lifecycle.context import new_request_id
from provision.cloud.market.scheduling import MAX_TTL_S, MIN_TTL_S
from provision.core.durations import exact
from provision.core.model import Vm

_VALUE = re.compile(r"(?P<usual>\d{1,9})_(?P<started>\d{1,15})\Z", re.ASCII)


@dataclass(frozen=True)
class _Extension:
    """The label: the usual limit, and the start (epoch milliseconds) when it was extended."""

    usual_s: int
    started_ms: int

    @classmethod
    def of(cls, vm: Vm) -> _Extension | None:
        """Return the extension in the VM's label; None without a valid label."""
        match = _VALUE.match(vm.labels.get(EXTENDED_LABEL, ""))
        if match is None or not MIN_TTL_S <= int(match["usual"]) <= MAX_TTL_S:
            return None
        return cls(int(match["usual"]), int(match["started"]))

    def is_used_up(self, vm: Vm) -> bool:
        """Return whether the VM was started since it was extended."""
        return _started_ms(vm) != self.started_ms

    def __str__(self) -> str:
        return f"{self.usual_s}_{self.started_ms}"


def _started_ms(vm: Vm) -> int:
    started = parse_timestamp(vm.started)
    return 0 if started is None else round(started.timestamp() * 1000)


def usual_ttl_s(vm: Vm) -> int | None:
    """Return the limit of runs that are not extended, in seconds; None = no limit."""
    extension = _Extension.of(vm)
    return vm.ttl_s if extension is None else extension.usual_s


def next_ttl_s(vm: Vm) -> int | None:
    """Return the limit of the next run, in seconds; None = no limit."""
    extension = _Extension.of(vm)
    if extension is not None and extension.is_used_up(vm):
        return extension.usual_s
    return vm.ttl_s


def extend_run(
    cloud: ComputeCloud, vm: Vm, ttl_s: int, *, new_id: Callable[[], str] = new_request_id
) -> Vm:
    """Give the next run of a stopped VM, or the present one of a running VM, `ttl_s` seconds.

    On a stopped VM the label is set first, so that a killed run has changed nothing that is not
    restored. On a running one the limit is set first, since the cloud may refuse that.
    """
    usual_s = usual_ttl_s(vm)
    if usual_s is None:
        return vm
    is_running = vm.status == "RUNNING"
    label = str(_Extension(usual_s, 0 if is_running else _started_ms(vm)))
    if is_running:
        cloud.set_ttl(vm.name, vm.zone, ttl_s, request_id=new_id())
    extended = cloud.set_labels(vm.name, vm.zone, {EXTENDED_LABEL: label}, request_id=new_id())
    if is_running:
        return extended
    return cloud.set_ttl(vm.name, vm.zone, ttl_s, request_id=new_id())


def start_vm(
    cloud: ComputeCloud,
    vm: Vm,
    note: Callable[[str], None],
    *,
    new_id: Callable[[], str] = new_request_id,
) -> Vm:
    """Start a stopped VM and wait until it runs; the usual limit is restored first if due."""
    extension = _Extension.of(vm)
    if extension is not None and extension.is_used_up(vm):
        if vm.ttl_s != extension.usual_s:
            limit = exact(extension.usual_s)
            note(f"{vm.name}: its time limit is {limit} again, as before it was extended")
            cloud.set_ttl(vm.name, vm.zone, extension.usual_s, request_id=new_id())
        cloud.set_labels(vm.name, vm.zone, {}, [EXTENDED_LABEL], request_id=new_id())
    return cloud.start(vm.name, vm.zone, request_id=new_id())
