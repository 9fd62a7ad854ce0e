"""Scripted faults: what goes wrong, at which calls, how often."""

from __future__ import annotations

import enum
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from provision.cloud.market.zone_order import region_of
from provision.testing.compute.errors import ApiError, OperationFailure
from provision.testing.compute.quotas import quota_failure


class FaultKind(enum.StrEnum):
    """What goes wrong."""

    OPERATION = "operation"
    """The call is accepted; its operation ends with an error."""
    HTTP = "http"
    """The call is answered with an error envelope and has no effect."""
    BODY = "body"
    """The call is answered with raw text (an HTML page of a proxy, broken JSON) and has no
    effect."""
    BODY_AFTER = "body_after"
    """The call takes effect; the answer is raw text."""
    RESET_BEFORE = "reset_before"
    """The connection is reset before the call takes effect."""
    RESET_AFTER = "reset_after"
    """The call takes effect; the connection is reset instead of an answer."""
    SLOW = "slow"
    """The operation takes `seconds` longer."""
    NEVER = "never"
    """The operation never ends."""
    HANG = "hang"
    """The answer comes `seconds` late on the emulator's clock; the call takes effect at once."""
    MUTE_BEFORE = "mute_before"
    """No answer ever comes, until the client gives up; the call has no effect."""
    MUTE_AFTER = "mute_after"
    """The call takes effect; no answer ever comes."""
    FUTURE = "future"
    """The answer has fields that the API does not have yet; `text` is a JSON object that overrides
    its values."""
    UNREACHABLE = "unreachable"
    """The zone is missing in an aggregated list, with a warning about it."""


BEFORE = frozenset({FaultKind.HTTP, FaultKind.BODY, FaultKind.RESET_BEFORE, FaultKind.MUTE_BEFORE})
"""Faults that keep a call from taking effect."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One rule. `call`, `zone` and `name` are globs: method id (`instances.insert`), zone, VM name.

    The first `after` matching calls pass; of the others `times` are hit (None: all).
    """

    kind: FaultKind
    call: str = "instances.insert"
    zone: str = "*"
    name: str = "*"
    after: int = 0
    times: int | None = None
    code: str = ""
    message: str = ""
    http_status: int | None = None
    details: Sequence[Mapping[str, Any]] = ()
    leaves_vm: bool = False
    """A failed insert leaves the VM behind, stopped, as users of the API have reported."""
    leaves_disk: bool = False
    """A failed insert leaves its disks behind, unattached."""
    text: str = ""
    seconds: float = 0.0
    row: Mapping[str, Any] = field(default_factory=dict)
    """The row of data that it was read from."""

    def matches(self, call: str, zone: str, name: str) -> bool:
        """True when the rule matches this call, regardless of its counts."""
        return (
            fnmatchcase(call, self.call)
            and fnmatchcase(zone, self.zone)
            and fnmatchcase(name, self.name)
        )

    def at(self, zone: str, machine_type: str = "") -> Fault:
        """A copy with the call's `{zone}`, `{region}` and `{vmType}` filled into its texts."""
        placeholders = {
            "{zone}": zone,
            "{region}": region_of(zone) if zone else "",
            "{vmType}": machine_type,
        }

        def filled(text: str) -> str:
            for word, value in placeholders.items():
                text = text.replace(word, value)
            return text

        return replace(
            self,
            message=filled(self.message),
            details=json.loads(filled(json.dumps(list(self.details)))),
        )

    def as_error(self) -> ApiError:
        """The envelope of an HTTP fault."""
        status = self.http_status or 503
        return ApiError(status, self.code or "backendError", self.message or "Backend Error")

    def as_failure(self) -> OperationFailure:
        """The operation error of an OPERATION fault."""
        return OperationFailure(
            code=self.code, message=self.message, http_status=self.http_status, details=self.details
        )


@dataclass
class Armed:
    """A rule in force with its counts: matching calls (`seen`) and hits."""

    fault: Fault
    seen: int = 0
    hits: int = 0

    def count(self) -> bool:
        """Count a matching call; True when the rule may hit it."""
        self.seen += 1
        return self.seen > self.fault.after and (
            self.fault.times is None or self.hits < self.fault.times
        )


@dataclass
class FaultBook:
    """The rules in force. Each counts its matching calls; the first that is ready hits."""

    _armed: list[Armed] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *faults: Fault) -> None:
        """Append rules."""
        with self._lock:
            self._armed.extend(Armed(fault) for fault in faults)

    def clear(self) -> None:
        """Remove all rules."""
        with self._lock:
            self._armed.clear()

    def armed(self) -> list[Armed]:
        """A copy of the rules with their counts."""
        with self._lock:
            return [replace(armed) for armed in self._armed]

    def take(self, call: str, zone: str = "", name: str = "") -> Fault | None:
        """Count this call and return the rule that hits it, or None; see also `Fault.at`."""
        with self._lock:
            matching = [
                armed
                for armed in self._armed
                if armed.fault.kind is not FaultKind.UNREACHABLE
                and armed.fault.matches(call, zone, name)
            ]
            ready = [armed for armed in matching if armed.count()]
            if not ready:
                return None
            ready[0].hits += 1
            return ready[0].fault

    def unreachable(self, call: str, zones: Iterable[str]) -> frozenset[str]:
        """Count an aggregated list and return the zones that it does not show."""
        hidden: set[str] = set()
        with self._lock:
            for armed in self._armed:
                matching = {zone for zone in zones if armed.fault.matches(call, zone, "")}
                if armed.fault.kind is FaultKind.UNREACHABLE and matching and armed.count():
                    armed.hits += 1
                    hidden |= matching
        return frozenset(hidden)


def stock_out(
    zone: str = "*",
    *,
    available: Sequence[str] = (),
    with_details: bool = True,
    call: str = "instances.insert",
    leaves_vm: bool = False,
) -> Fault:
    """A zone without capacity: the operation fails with 503 ZONE_RESOURCE_POOL_EXHAUSTED.

    `with_details` makes it ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS, whose details list the zones
    `available` as `zonesAvailable`.
    """
    metadatas = {
        "vmType": "{vmType}",
        "attachment": "",
        "zone": "{zone}",
        "zonesAvailable": ",".join(available),
    }
    error = {"reason": "resource_availability", "domain": "compute.googleapis.com"}
    info = {"errorInfo": {**error, "metadatas": metadatas}}
    return Fault(
        kind=FaultKind.OPERATION,
        call=call,
        zone=zone,
        code="ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
        if with_details
        else "ZONE_RESOURCE_POOL_EXHAUSTED",
        message=(
            "The zone '{zone}' does not have enough resources available to fulfill the request. "
            " '(resource type:compute)'."
        ),
        http_status=503,
        details=(info,) if with_details else (),
        leaves_vm=leaves_vm,
    )


def quota(
    zone: str = "*", *, metric: str = "NVIDIA_T4_GPUS", limit: float = 0.0, region: str = "{region}"
) -> Fault:
    """An exceeded quota: the operation fails with 403 QUOTA_EXCEEDED and quotaInfo.

    GPUS_ALL_REGIONS is a global metric.
    """
    failure = quota_failure(metric, limit, region)
    return Fault(
        kind=FaultKind.OPERATION,
        zone=zone,
        code=failure.code,
        message=failure.message,
        http_status=failure.http_status,
        details=failure.details,
    )


def silent(fault: Fault) -> Fault:
    """The same operation error without an HTTP code: `ExtendedOperation.result()` then returns."""
    return replace(fault, http_status=None)


def http_error(
    status: int,
    reason: str,
    message: str,
    *,
    call: str = "instances.insert",
    zone: str = "*",
    times: int | None = 1,
) -> Fault:
    """A call that is answered with an error envelope and has no effect."""
    return Fault(
        kind=FaultKind.HTTP,
        call=call,
        zone=zone,
        times=times,
        http_status=status,
        code=reason,
        message=message,
    )


def html_502(*, call: str = "instances.insert", zone: str = "*", times: int | None = 1) -> Fault:
    """A call that is answered with a proxy's HTML page and has no effect."""
    page = "<!DOCTYPE html><html><title>Error 502 (Server Error)</title><p>That's an error.</html>"
    return Fault(kind=FaultKind.BODY, call=call, zone=zone, times=times, http_status=502, text=page)
