"""The emulated cloud behind one lock: requests and events become operations, and time does its work on them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, TypeVar

from provision.testing.compute import disks, instance_resource, lifecycle, reservations
from provision.testing.compute.backend import HostBackend
from provision.testing.compute.catalogue import Catalogue
from provision.testing.compute.clock import Clock, Moment, timestamp
from provision.testing.compute.errors import ApiError, Json, OperationFailure, already_exists
from provision.testing.compute.faults import Fault
from provision.testing.compute.insert_checks import check_insert, check_labels, check_name
from provision.testing.compute.instance import OFF, WAITING, Machine
from provision.testing.compute.instance_resource import Place
from provision.testing.compute.lifecycle import Plan
from provision.testing.compute.operation_durations import Durations
from provision.testing.compute.operations import Change, Operations
from provision.testing.compute.store import Store

T = TypeVar("T")
SYSTEM_USER = "system@google.com"


class World:
    """All that exists. Every public method takes the lock and first lets time do its work."""

    def __init__(
        self, catalogue: Catalogue, hosts: HostBackend, clock: Clock, durations_s: Durations
    ) -> None:
        self._clock = clock
        self._moment = Moment(clock)
        self._lock = threading.RLock()
        self.store = Store(catalogue, hosts, self._moment.now)
        self._operations = Operations(self._moment, lambda: self.store.links, durations_s)

    # --- requests ---------------------------------------------------------------------------------

    def insert(
        self,
        project: str,
        zone: str,
        body: Mapping[str, Any],
        *,
        request_id: str,
        fault: Fault | None,
    ) -> Json:
        """Accept a new instance; 400, 404 and 409 as the real API."""
        place = Place(project, zone, str(body.get("name", "")))
        with self._lock:
            self.tick()
            known = self._operations.recall(request_id, "insert", place)
            if known is not None:
                return known
            return self._insert(place, body, request_id=request_id, fault=fault)

    def change(
        self,
        verb: str,
        place: Place,
        *,
        body: Mapping[str, Any],
        request_id: str,
        fault: Fault | None,
    ) -> Json:
        """Accept a change of an existing instance, one of `lifecycle.VERBS`; 404 when there is none."""
        with self._lock:
            self.tick()
            known = self._operations.recall(request_id, verb, place)
            if known is not None:
                return known
            machine = self.store.find(place)
            plan = lifecycle.VERBS[verb](self.store, machine, body)
            return self._begin(verb, machine, plan, request_id=request_id, fault=fault)

    def change_item(
        self,
        verb: str,
        place: Place,
        *,
        body: Mapping[str, Any],
        request_id: str,
        fault: Fault | None,
    ) -> Json:
        """Accept a new disk or reservation (`insert`), its `delete`, or a disk's `setLabels`."""
        with self._lock:
            self.tick()
            known = self._operations.recall(request_id, verb, place)
            if known is not None:
                return known
            made = self._new_item(place, body) if verb == "insert" else self.store.item(place)

            def end() -> None:
                if verb == "insert":
                    self.store.items[place] = made
                elif verb == "delete":
                    self.store.items.pop(place, None)
                else:
                    disks.set_labels(made, body.get("labels", {}))

            if verb == "delete":
                disks.check_unused({"users": (), **made})
            if verb == "setLabels":
                lifecycle.check_fingerprint(
                    "labels", body.get("labelFingerprint", ""), made["labelFingerprint"]
                )
                check_labels(body.get("labels", {}))
            return self._operations.begin(
                Change(verb=verb, place=place, target_id=made["id"], end=end), request_id, fault
            )

    # --- looking ----------------------------------------------------------------------------------

    def get(self, place: Place) -> Json:
        """An instance, a disk or a reservation as it is now."""
        with self._lock:
            self.tick()
            if place.collection == reservations.COLLECTION:
                self.store.item(place)
                return deepcopy(self.store.reservation(place))
            return deepcopy(
                self.store.find(place).resource
                if place.collection == "instances"
                else self.store.item(place)
            )

    def all(self, collection: str, project: str, zone: str | None = None) -> list[tuple[str, Json]]:
        """(zone, resource) of a project's instances, disks or reservations, by zone and name."""
        with self._lock:
            self.tick()
            return deepcopy(self.store.all(collection, project, zone))

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
            self._clock.sleep(
                max(min(deadline, deadline if ends_at is None else ends_at) - now, 0.001)
            )

    def serial(self, place: Place, start: int) -> tuple[str, int, int]:
        """(contents, first byte returned, byte to go on from) of serial port 1."""
        with self._lock:
            self.tick()
            return self.store.find(place).printed(start)

    def guest_attributes(self, place: Place, query: str) -> dict[str, str]:
        """The published attributes whose `namespace/key` begins with `query`; 404 while there are none."""
        with self._lock:
            self.tick()
            machine = self.store.find(place)
            if (
                instance_resource.metadata_of(machine.resource)
                .get("enable-guest-attributes", "")
                .upper()
                != "TRUE"
            ):
                raise ApiError(
                    403,
                    "forbidden",
                    f"Guest attributes endpoint access is disabled for '{place.path}'.",
                )
            below = query.rstrip("/") + "/"
            found = {
                key: value
                for key, value in sorted(machine.guest.items())
                if not query or key == query or key.startswith(below)
            }
            if not found:
                raise ApiError(
                    404,
                    "notFound",
                    f"The resource '{query}' of type 'Guest Attribute' was not found.",
                )
            return found

    def quotas(self, project: str, region: str | None = None) -> list[Json]:
        """The `quotas` of a region, or of the project, with their use."""
        with self._lock:
            self.tick()
            return self.store.quotas.resources(self.store.usage(project, region), region)

    # --- events -----------------------------------------------------------------------------------

    def happens(self, event: str, name: str, zone: str) -> None:
        """A system event befalls the running instances of this name and zone; KeyError when there are none."""
        plans = {
            lifecycle.PREEMPTED: lifecycle.preempt,
            lifecycle.HOST_ERROR: lifecycle.host_error,
            lifecycle.GUEST_STOP: lifecycle.guest_stop,
        }
        with self._lock:
            self.tick()
            running = [
                machine for machine in self.store.named(name, zone) if machine.status == "RUNNING"
            ]
            if not running:
                raise KeyError(f"no running instance {zone}/{name}")
            for machine in running:
                self._begin(event, machine, plans[event](self.store, machine), user=SYSTEM_USER)
            self.tick()

    def publish(self, name: str, zone: str, attribute: str, value: str) -> None:
        """A guest PUTs `namespace/key`; unknown instances are ignored, as late writers are."""
        with self._lock:
            for machine in self.store.named(name, zone):
                machine.guest[attribute] = value

    def print_serial(self, name: str, zone: str, text: str) -> None:
        """A guest prints on its serial port."""
        with self._lock:
            for machine in self.store.named(name, zone):
                machine.prints(text)

    def tick(self) -> None:
        """Let time do its work, one moment after the other: operations end, capacity comes, run times are over."""
        with self._lock:
            now = self._clock.now()
            try:
                while (at := min(self._operations.next_at(), self._next_limit())) <= now:
                    self._moment.at = at
                    self._operations.settle()
                    for machine in [
                        m
                        for m in self.store.machines.values()
                        if m.waits_until is not None and m.waits_until <= at
                    ]:
                        self.store.end_wait(machine)
                    for machine in [
                        m
                        for m in self.store.machines.values()
                        if m.stops_at is not None and m.stops_at <= at
                    ]:
                        machine.stops_at = None
                        deletes = machine.scheduling.get("instanceTerminationAction") == "DELETE"
                        plan = lifecycle.end_of_time(self.store, machine)
                        self._begin(
                            "delete" if deletes else "stop", machine, plan, user=SYSTEM_USER
                        )
            finally:
                self._moment.at = None

    def _next_limit(self) -> float:
        limits = [
            at
            for m in self.store.machines.values()
            for at in (m.stops_at, m.waits_until)
            if at is not None
        ]
        return min(limits, default=float("inf"))

    # --- from one emulator to the next ------------------------------------------------------------

    def shut_down(self, *, keep: bool) -> None:
        """End every host: destroyed, or with `keep` halted on its disk. All is forgotten either way."""
        with self._lock:
            for machine in list(self.store.machines.values()):
                if not keep:
                    self.store.remove(machine)
                elif machine.status not in OFF:
                    self.store.power_off(machine)
            self.store.machines.clear()
            self.store.items.clear()

    def snapshot(self) -> Json:
        """Instances, disks, reservations, project metadata and OS Login's keys as JSON."""
        with self._lock:
            items = [
                [at.project, at.zone, at.name, at.collection, resource]
                for at, resource in self.store.items.items()
            ]
            machines = [machine.as_json() for machine in self.store.machines.values()]
            project = {
                "metadata": dict(self.store.project_metadata),
                "logins": self.store.logins.snapshot(),
            }
            return {"instances": machines, "items": deepcopy(items), **project}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take everything up again; instances that ran boot, as after a loss of power, and keep their time limit."""
        with self._lock:
            self.store.project_metadata.update(saved["metadata"])
            self.store.logins.restore(saved.get("logins", {}))
            for *place, resource in saved["items"]:
                self.store.items[Place(*place)] = deepcopy(resource)
            for machine in map(Machine.from_json, saved["instances"]):
                self.store.machines[machine.place] = machine
                self.store.count += 1
                if machine.status not in (*OFF, WAITING):
                    stops_at = machine.stops_at
                    self.store.boot(machine, keep=True)
                    machine.stops_at = stops_at
                    instance_resource.set_termination(machine.resource, stops_at)

    # --- inside -----------------------------------------------------------------------------------

    def _check(self, place: Place, body: Mapping[str, Any]) -> None:
        check_insert(body, place.project, place.zone, self.store.catalogue, now=self._moment.now())
        if place in self.store.machines:
            raise already_exists(place.path)
        name = reservations.specific_name(body)
        if name is not None:
            self.store.reservation(place.beside(reservations.COLLECTION, name))

    def _insert(
        self, place: Place, body: Mapping[str, Any], *, request_id: str, fault: Fault | None
    ) -> Json:
        self._check(place, body)
        machine = self.store.new_machine(place, body)

        def fail() -> None:
            if fault is not None and fault.leaves_vm:
                machine.status = "TERMINATED"
            else:
                self.store.remove(machine, keep_disks=fault is not None and fault.leaves_disk)

        short = self.store.shortage(machine, with_disks=True)
        plan = Plan(
            begin="STAGING", end=lambda: self.store.allot(machine, body), fail=fail, failure=short
        )
        return self._begin("insert", machine, plan, request_id=request_id, fault=fault)

    def _new_item(self, place: Place, body: Mapping[str, Any]) -> Json:
        self.store.catalogue.accelerators_in(place.zone)
        check_name(place.name)
        if place in self.store.items:
            raise already_exists(place.path)
        if place.collection == disks.COLLECTION:
            check_labels(body.get("labels", {}))
            return self.store.new_disk(place, body)
        store = self.store
        now = timestamp(self._moment.now())
        return reservations.new_reservation(
            body, links=store.links, place=place, reservation_id=store.new_id(), created=now
        )

    def _begin(
        self,
        verb: str,
        machine: Machine,
        plan: Plan,
        *,
        request_id: str = "",
        fault: Fault | None = None,
        user: str | None = None,
    ) -> Json:
        def begin() -> None:
            if plan.begin is not None:
                machine.status = plan.begin

        def end() -> OperationFailure | None:
            failure = plan.end()
            if failure is None and plan.then is not None and self.store.exists(machine):
                event, make = plan.then
                self._begin(event, machine, make(), user=SYSTEM_USER)
            return failure

        change = Change(
            verb=verb,
            place=machine.place,
            target_id=machine.resource["id"],
            begin=begin,
            end=end,
            fail=plan.fail,
            failure=plan.failure,
            user=user,
        )
        return self._operations.begin(change, request_id, fault)
