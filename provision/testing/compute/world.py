"""The instances of the emulated cloud and what happens to them: one lock, one state machine, hosts behind it."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from provision.cloud.ports import MOCK_PORT_ATTRIBUTE
from provision.testing.compute import resources
from provision.testing.compute.backend import HostBackend
from provision.testing.compute.catalogue import Catalogue, Links, merged, quota_usage
from provision.testing.compute.clock import Clock, timestamp
from provision.testing.compute.errors import ApiError, Json, OperationFailure, already_exists, not_found
from provision.testing.compute.faults import Fault
from provision.testing.compute.operations import Change, Operations
from provision.testing.compute.resources import Place
from provision.testing.compute.rules import check_insert, check_labels, check_metadata

SERIAL_RING_BYTES = 1024 * 1024
_OFF = ("TERMINATED", "STOPPED", "SUSPENDED")


@dataclass
class Machine:
    """One instance: its resource and what the API shows of its guest."""

    place: Place
    resource: Json
    guest: dict[str, str] = field(default_factory=dict)
    serial: bytes = b""
    serial_start: int = 0
    stops_at: float | None = None

    @property
    def status(self) -> str:
        """The instance's status word."""
        return str(self.resource["status"])

    def as_json(self) -> Json:
        """The instance as plain JSON, to be written down."""
        serial = base64.b64encode(self.serial).decode()
        place = [self.place.project, self.place.zone, self.place.name]
        plain = {"place": place, "resource": self.resource, "guest": self.guest, "serial": serial}
        return deepcopy({**plain, "serial_start": self.serial_start, "stops_at": self.stops_at})

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Machine:
        """The instance that `as_json` wrote."""
        fields = deepcopy(dict(entry))
        return cls(**{**fields, "place": Place(*fields["place"]), "serial": base64.b64decode(fields["serial"])})


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How a change goes: the status while it runs, what its end does, what its failure leaves."""

    begin: str | None = None
    end: Callable[[], OperationFailure | None] = lambda: None
    fail: Callable[[], None] = lambda: None


class World:
    """All instances. Every public method takes the lock and first lets time do its work."""

    def __init__(self, catalogue: Catalogue, hosts: HostBackend, clock: Clock, durations_s: Mapping[str, float]) -> None:
        self.catalogue = catalogue
        self.links = Links("")
        self._hosts = hosts
        self._clock = clock
        self._lock = threading.RLock()
        self._machines: dict[Place, Machine] = {}
        self._operations = Operations(clock, lambda: self.links, durations_s)
        self._count = 0

    # --- changes ----------------------------------------------------------------------------------------------------

    def insert(self, project: str, zone: str, body: Mapping[str, Any], *, request_id: str, fault: Fault | None) -> Json:
        """Accept a new instance; 400, 404 and 409 as the real API."""
        place = Place(project, zone, str(body.get("name", "")))
        with self._lock:
            self.tick()
            known = self._operations.recall(request_id, "insert", place)
            if known is not None:
                return known
            check_insert(body, project, zone, self.catalogue)
            if place in self._machines:
                raise already_exists(place.path)
            machine = self._new_machine(place, body)

            def fail() -> None:
                if fault is not None and fault.leaves_vm:
                    _set_status(machine, "TERMINATED")
                else:
                    self._remove(machine)

            plan = _Plan(begin="STAGING", end=lambda: self._boot(machine), fail=fail)
            return self._begin("insert", machine, plan, request_id=request_id, fault=fault)

    def change(self, verb: str, place: Place, *, body: Mapping[str, Any], request_id: str, fault: Fault | None) -> Json:
        """Accept a change of an existing instance: delete, start, stop, reset, setLabels or setMetadata; 404 when there is none."""
        plans: dict[str, Callable[[Machine, Mapping[str, Any]], _Plan]] = {
            "delete": self._delete,
            "start": self._start,
            "stop": self._stop,
            "reset": self._reset,
            "setLabels": self._set_labels,
            "setMetadata": self._set_metadata,
        }
        with self._lock:
            self.tick()
            known = self._operations.recall(request_id, verb, place)
            if known is not None:
                return known
            machine = self._find(place)
            return self._begin(verb, machine, plans[verb](machine, body), request_id=request_id, fault=fault)

    def _delete(self, machine: Machine, _body: Mapping[str, Any]) -> _Plan:
        if machine.resource["deletionProtection"]:
            raise ApiError(400, "resourceInUseByAnotherResource", f"The instance '{machine.place.path}' is protected against deletion.")
        return _Plan(begin="STOPPING", end=lambda: self._remove(machine))

    def _start(self, machine: Machine, _body: Mapping[str, Any]) -> _Plan:
        if machine.status == "RUNNING":
            return _Plan()
        return _Plan(begin="STAGING", end=lambda: self._boot(machine, keep=True), fail=lambda: _set_status(machine, "TERMINATED"))

    def _stop(self, machine: Machine, _body: Mapping[str, Any]) -> _Plan:
        if machine.status == "TERMINATED":
            return _Plan()
        return _Plan(begin="STOPPING", end=lambda: self._halt(machine), fail=lambda: _set_status(machine, "RUNNING"))

    def _reset(self, machine: Machine, _body: Mapping[str, Any]) -> _Plan:
        if machine.status != "RUNNING":
            raise ApiError(400, "resourceNotReady", f"The resource '{machine.place.path}' is not ready")

        def end() -> OperationFailure | None:
            self._hosts.halt(machine.place.name, machine.place.zone)
            return self._boot(machine, keep=True)

        return _Plan(end=end)

    def _set_labels(self, machine: Machine, body: Mapping[str, Any]) -> _Plan:
        _check_fingerprint(body.get("labelFingerprint", ""), machine.resource["labelFingerprint"])
        labels = dict(body.get("labels", {}))
        check_labels(labels)
        return _Plan(end=lambda: resources.set_labels(machine.resource, labels))

    def _set_metadata(self, machine: Machine, body: Mapping[str, Any]) -> _Plan:
        _check_fingerprint(body.get("fingerprint", ""), machine.resource["metadata"]["fingerprint"])
        check_metadata(body)
        items = deepcopy(list(body.get("items", ())))
        return _Plan(end=lambda: resources.set_metadata(machine.resource, items))

    # --- looking ----------------------------------------------------------------------------------------------------

    def get(self, place: Place) -> Json:
        """An instance as it is now."""
        with self._lock:
            self.tick()
            return deepcopy(self._find(place).resource)

    def all(self, project: str, zone: str | None = None) -> list[tuple[str, Json]]:
        """(zone, instance) of a project, by zone and name."""
        with self._lock:
            self.tick()
            found = sorted(place for place in self._machines if place.project == project and zone in {None, place.zone})
            return [(place.zone, deepcopy(self._machines[place].resource)) for place in found]

    def operation(self, place: Place) -> Json:
        """An operation (`place.name` is its name) as it is now."""
        with self._lock:
            self.tick()
            return self._operations.get(place)

    def operations(self, project: str, zone: str) -> list[Json]:
        """The operations of a zone."""
        with self._lock:
            self.tick()
            return self._operations.all(project, zone)

    def wait(self, place: Place, limit_s: float) -> Json:
        """An operation once it is done, or as it is after `limit_s` seconds."""
        deadline = self._clock.now() + limit_s
        while True:
            operation = self.operation(place)
            now, ends_at = self._clock.now(), self._operations.ends_at(place)
            if operation["status"] == "DONE" or now >= deadline:
                return operation
            self._clock.sleep(max(min(deadline, deadline if ends_at is None else ends_at) - now, 0.001))

    def serial(self, place: Place, start: int) -> tuple[str, int, int]:
        """(contents, first byte returned, byte to go on from) of serial port 1, a ring of 1 MiB."""
        with self._lock:
            self.tick()
            machine = self._find(place)
            first = max(start, machine.serial_start)
            contents = machine.serial[first - machine.serial_start :]
            return contents.decode(errors="replace"), first, first + len(contents)

    def guest_attributes(self, place: Place, query: str) -> dict[str, str]:
        """The published attributes whose `namespace/key` begins with `query`; 404 while there are none."""
        with self._lock:
            self.tick()
            machine = self._find(place)
            if resources.metadata_of(machine.resource).get("enable-guest-attributes", "").upper() != "TRUE":
                raise ApiError(403, "forbidden", f"Guest attributes endpoint access is disabled for '{place.path}'.")
            below = query.rstrip("/") + "/"
            found = {key: value for key, value in sorted(machine.guest.items()) if not query or key == query or key.startswith(below)}
            if not found:
                raise ApiError(404, "notFound", f"The resource '{query}' of type 'Guest Attribute' was not found.")
            return found

    def usage(self, project: str, region: str | None = None) -> dict[str, float]:
        """Quota usage of a project's instances, by metric; of one region or of all."""
        rows = []
        for zone, resource in self.all(project):
            if resource["status"] == "TERMINATED" or (region and not zone.startswith(f"{region}-")):
                continue
            gpu, count = resources.gpu_of(resource)
            machine = self.catalogue.machine(zone, resource["machineType"].rsplit("/", 1)[-1])
            rows.append(quota_usage(gpu, count, machine.vcpus if machine else 0))
        return merged(rows)

    # --- the guest's side -------------------------------------------------------------------------------------------

    def publish(self, name: str, zone: str, attribute: str, value: str) -> None:
        """A guest PUTs `namespace/key`; unknown instances are ignored, as late writers are."""
        with self._lock:
            for machine in self._named(name, zone):
                machine.guest[attribute] = value

    def print_serial(self, name: str, zone: str, text: str) -> None:
        """A guest prints on its serial port."""
        with self._lock:
            for machine in self._named(name, zone):
                machine.serial += text.encode()
                lost = max(0, len(machine.serial) - SERIAL_RING_BYTES)
                machine.serial, machine.serial_start = machine.serial[lost:], machine.serial_start + lost

    def tick(self) -> None:
        """Let time do its work: operations end, time limits stop or delete instances."""
        with self._lock:
            self._operations.settle()
            now = self._clock.now()
            for machine in [m for m in self._machines.values() if m.status == "RUNNING" and m.stops_at is not None and m.stops_at <= now]:
                if machine.resource["scheduling"].get("instanceTerminationAction") == "DELETE":
                    self._remove(machine)
                else:
                    self._halt(machine)

    def shut_down(self, *, keep: bool) -> None:
        """End every host: destroyed, or with `keep` halted on its disk. The instances are forgotten either way."""
        with self._lock:
            for machine in list(self._machines.values()):
                if not keep:
                    self._remove(machine)
                elif machine.status not in _OFF:
                    self._hosts.halt(machine.place.name, machine.place.zone)
            self._machines.clear()

    def snapshot(self) -> list[Json]:
        """Every instance as JSON."""
        with self._lock:
            return [machine.as_json() for machine in self._machines.values()]

    def restore(self, saved: Iterable[Mapping[str, Any]]) -> None:
        """Take instances up again; those that ran boot, as after a loss of power, and keep their time limit."""
        with self._lock:
            for machine in map(Machine.from_json, saved):
                self._machines[machine.place] = machine
                self._count += 1
                if machine.status not in _OFF:
                    stops_at = machine.stops_at
                    self._boot(machine, keep=True)
                    machine.stops_at = stops_at

    # --- inside -----------------------------------------------------------------------------------------------------

    def _find(self, place: Place) -> Machine:
        self.catalogue.accelerators_in(place.zone)
        found = self._machines.get(place)
        if found is None:
            raise not_found(place.path)
        return found

    def _named(self, name: str, zone: str) -> list[Machine]:
        return [machine for place, machine in self._machines.items() if (place.zone, place.name) == (zone, name)]

    def _new_machine(self, place: Place, body: Mapping[str, Any]) -> Machine:
        self._count += 1
        now = self._clock.now()
        resource = resources.new_instance(
            body,
            links=self.links,
            place=place,
            instance_id=str(int(now * 1000) * 1_000_000 + self._count),
            created=timestamp(now),
            internal_ip=f"10.128.{self._count // 250 % 256}.{self._count % 250 + 2}",
        )
        machine = Machine(place=place, resource=resource)
        self._machines[place] = machine
        return machine

    def _begin(self, verb: str, machine: Machine, plan: _Plan, *, request_id: str, fault: Fault | None) -> Json:
        def begin() -> None:
            if plan.begin is not None:
                _set_status(machine, plan.begin)

        change = Change(verb=verb, place=machine.place, target_id=machine.resource["id"], begin=begin, end=plan.end, fail=plan.fail)
        return self._operations.begin(change, request_id, fault)

    def _boot(self, machine: Machine, *, keep: bool = False) -> OperationFailure | None:
        if not self._exists(machine):
            return OperationFailure(
                code="RESOURCE_NOT_FOUND", message=f"The resource '{machine.place.path}' was not found", http_status=404
            )
        gpu, _count = resources.gpu_of(machine.resource)
        try:
            address, port = self._hosts.boot(machine.place.name, machine.place.zone, resources.metadata_of(machine.resource), gpu)
        except Exception as error:  # noqa: BLE001  (whatever a backend raises is a host that did not boot)
            if keep:
                _set_status(machine, "TERMINATED")
            else:
                self._remove(machine)
            return OperationFailure(code="INTERNAL_ERROR", message=f"Internal error. The host did not boot: {error}", http_status=500)
        now = self._clock.now()
        machine.resource.update(status="RUNNING", lastStartTimestamp=timestamp(now))
        machine.guest[MOCK_PORT_ATTRIBUTE] = str(port)
        resources.set_address(machine.resource, address)
        limit_s = machine.resource["scheduling"].get("maxRunDuration", {}).get("seconds")
        machine.stops_at = now + int(limit_s) if limit_s is not None else None
        return None

    def _halt(self, machine: Machine) -> None:
        self._hosts.halt(machine.place.name, machine.place.zone)
        machine.resource.update(status="TERMINATED", lastStopTimestamp=timestamp(self._clock.now()))
        machine.guest.clear()
        resources.set_address(machine.resource, None)

    def _remove(self, machine: Machine) -> None:
        if self._exists(machine):
            del self._machines[machine.place]
            self._hosts.destroy(machine.place.name, machine.place.zone)

    def _exists(self, machine: Machine) -> bool:
        return self._machines.get(machine.place) is machine


def _set_status(machine: Machine, status: str) -> None:
    machine.resource["status"] = status


def _check_fingerprint(given: str, current: str) -> None:
    if given != current:
        raise ApiError(412, "conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint.")
