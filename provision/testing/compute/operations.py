"""Zone operations: PENDING, RUNNING and DONE as time passes, each found again by its requestId."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from provision.testing.compute.catalogue import Links
from provision.testing.compute.clock import CloudTime, timestamp
from provision.testing.compute.errors import Json, OperationFailure, invalid_field, not_found
from provision.testing.compute.faults import Fault, FaultKind
from provision.testing.compute.instance_resource import ResourceRef
from provision.testing.compute.operation_durations import Durations

_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z", re.IGNORECASE)
_ZERO_UUID = "00000000-0000-0000-0000-000000000000"
COLLECTION = "operations"
USER = "emulator@example.com"
PENDING_SHARE = 0.1
"""Share of an operation's time that it spends PENDING."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What an operation does: `begin` when it starts to run, `end` when its time is over.

    `end` may return a failure of its own.
    """

    verb: str
    ref: ResourceRef
    target_id: str
    begin: Callable[[], None] = lambda: None
    end: Callable[[], OperationFailure | None] = lambda: None
    fail: Callable[[], None] = lambda: None
    """Called instead of `end` when the operation fails."""
    failure: OperationFailure | None = None
    """Known from the start, such as an exceeded quota. A scripted fault takes precedence."""
    user: str | None = None
    """The account that requested it; None: the caller."""


@dataclass
class _Operation:
    change: Change
    resource: Json
    runs_at: float
    ends_at: float | None
    failure: OperationFailure | None

    @property
    def next_at(self) -> float:
        """When its status changes next."""
        end = float("inf") if self.ends_at is None else self.ends_at
        return self.runs_at if self.resource["status"] == "PENDING" else end


class Operations:
    """All operations of the emulated cloud. Not locked: `EmulatedCloud` holds the lock."""

    def __init__(self, time: CloudTime, links: Callable[[], Links], durations_s: Durations) -> None:
        self._time = time
        self._links = links
        self._durations_s = durations_s
        self._all: dict[ResourceRef, _Operation] = {}
        self._open: list[_Operation] = []
        self._by_request: dict[tuple[str, str], _Operation] = {}
        self._count = 0

    def find_repeated(self, request_id: str, verb: str, target: ResourceRef) -> Json | None:
        """The operation that an earlier request with this requestId began; None for a new one.

        Raises `ApiError` 400 for a malformed id, or for one that another request used.
        """
        if not request_id:
            return None
        if not _UUID.match(request_id) or request_id == _ZERO_UUID:
            raise invalid_field("requestId", request_id, "Must be a valid UUID other than zero.")
        known = self._by_request.get((target.project, request_id))
        if known is None:
            return None
        if (known.change.verb, known.change.ref) != (verb, target):
            raise invalid_field("requestId", request_id, "The id was used by another request.")
        return dict(known.resource)

    def begin(self, change: Change, request_id: str, fault: Fault | None) -> Json:
        """Accept a change and return its operation, which is PENDING until the next request."""
        now = self._time.now()
        duration_s = self._durations_s.of_type(change.verb) + (
            fault.seconds if fault and fault.kind is FaultKind.SLOW else 0.0
        )
        operation = _Operation(
            change=change,
            resource=self._new_resource(change, request_id, now),
            runs_at=now + PENDING_SHARE * duration_s,
            ends_at=None if fault and fault.kind is FaultKind.NEVER else now + duration_s,
            failure=fault.as_failure()
            if fault and fault.kind is FaultKind.OPERATION
            else change.failure,
        )
        self._all[change.ref.beside(COLLECTION, operation.resource["name"])] = operation
        self._open.append(operation)
        if request_id:
            self._by_request[change.ref.project, request_id] = operation
        return dict(operation.resource)

    def _new_resource(self, change: Change, request_id: str, now: float) -> Json:
        self._count += 1
        name = f"operation-{int(now * 1000)}-{self._count:08x}"
        zone_path = f"projects/{change.ref.project}/zones/{change.ref.zone}"
        links = self._links()
        resource: Json = {
            "kind": "compute#operation",
            "id": str(int(now * 1000) * 1_000_000 + self._count),
            "name": name,
            "zone": links.full(zone_path),
            "operationType": change.verb,
            "targetLink": links.full(change.ref.path),
            "targetId": change.target_id,
            "status": "PENDING",
            "user": change.user or USER,
            "progress": 0,
            "insertTime": timestamp(now),
            "selfLink": links.full(f"{zone_path}/operations/{name}"),
        }
        return {**resource, "clientOperationId": request_id} if request_id else resource

    def next_at(self) -> float:
        """When an operation changes next, in seconds since the epoch; infinite: never."""
        return min((operation.next_at for operation in self._open), default=float("inf"))

    def run_due(self) -> None:
        """Start and end every operation that is due, in the order of their ends."""
        now = self._time.now()
        for operation in sorted(
            self._open,
            key=lambda operation: float("inf") if operation.ends_at is None else operation.ends_at,
        ):
            if operation.resource["status"] == "PENDING" and now >= operation.runs_at:
                operation.resource.update(status="RUNNING", startTime=timestamp(operation.runs_at))
                operation.change.begin()
            if operation.ends_at is not None and now >= operation.ends_at:
                self._end(operation, operation.ends_at)
        self._open = [
            operation for operation in self._open if operation.resource["status"] != "DONE"
        ]

    def _end(self, operation: _Operation, at: float) -> None:
        failure = operation.failure
        if failure is None:
            failure = operation.change.end()
        else:
            operation.change.fail()
        if failure is not None:
            failure.apply(operation.resource)
        operation.resource.update(status="DONE", progress=100, endTime=timestamp(at))

    def get(self, ref: ResourceRef) -> Json:
        """An operation; `ref.name` is its name. Raises `ApiError` 404 for an unknown one."""
        return dict(self._find(ref).resource)

    def ends_at(self, ref: ResourceRef) -> float | None:
        """When an operation ends, in seconds since the epoch; None: never."""
        return self._find(ref).ends_at

    def all(self, project: str, zone: str) -> list[Json]:
        """The operations of a zone, oldest first."""
        return [
            dict(operation.resource)
            for at, operation in self._all.items()
            if (at.project, at.zone) == (project, zone)
        ]

    def _find(self, ref: ResourceRef) -> _Operation:
        found = self._all.get(ref.beside(COLLECTION))
        if found is None:
            raise not_found(f"projects/{ref.project}/zones/{ref.zone}/operations/{ref.name}")
        return found
