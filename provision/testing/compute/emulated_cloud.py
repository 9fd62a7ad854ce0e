"""The emulated cloud behind one lock: requests and events become operations."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from provision.testing.compute import disks, instance_resource, lifecycle, reservations, snapshots
from provision.testing.compute.backend import HostBackend
from provision.testing.compute.catalogue import Catalogue
from provision.testing.compute.clock import Clock, CloudTime, timestamp
from provision.testing.compute.errors import ApiError, Json, OperationFailure, already_exists
from provision.testing.compute.faults import Fault
from provision.testing.compute.insert_checks import check_insert, check_labels, check_name
from provision.testing.compute.instance import Instance
from provision.testing.compute.instance_resource import ResourceRef
from provision.testing.compute.lifecycle import Plan
from provision.testing.compute.operation_durations import Durations
from provision.testing.compute.operations import Change, Operations
from provision.testing.compute.store import Store

SYSTEM_USER = "system@google.com"


class EmulatedCloud:
    """Everything that exists. Every public method takes the lock and first calls `tick`."""

    def __init__(
        self, catalogue: Catalogue, hosts: HostBackend, clock: Clock, durations_s: Durations
    ) -> None:
        self._clock = clock
        self._time = CloudTime(clock)
        self._lock = threading.RLock()
        self.store = Store(catalogue, hosts, self._time.now)
        self._operations = Operations(self._time, lambda: self.store.links, durations_s)

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
        """Accept a new instance. Raises `ApiError` 400, 404 and 409 as the real API does."""
        ref = ResourceRef(project, zone, str(body.get("name", "")))
        with self._lock:
            self.tick()
            repeated = self._operations.find_repeated(request_id, "insert", ref)
            if repeated is not None:
                return repeated
            return self._insert(ref, body, request_id=request_id, fault=fault)

    def change(
        self,
        verb: str,
        ref: ResourceRef,
        *,
        body: Mapping[str, Any],
        request_id: str,
        fault: Fault | None,
    ) -> Json:
        """Accept one of `lifecycle.VERBS`. Raises `ApiError` 404 for an unknown instance."""
        with self._lock:
            self.tick()
            repeated = self._operations.find_repeated(request_id, verb, ref)
            if repeated is not None:
                return repeated
            instance = self.store.find(ref)
            plan = lifecycle.VERBS[verb](self.store, instance, body)
            return self._begin(verb, instance, plan, request_id=request_id, fault=fault)

    def change_item(
        self,
        verb: str,
        ref: ResourceRef,
        *,
        body: Mapping[str, Any],
        request_id: str,
        fault: Fault | None,
    ) -> Json:
        """Accept a new disk or reservation (`insert`), its `delete`, or a disk's `setLabels`."""
        with self._lock:
            self.tick()
            repeated = self._operations.find_repeated(request_id, verb, ref)
            if repeated is not None:
                return repeated
            item = self._new_item(ref, body) if verb == "insert" else self.store.item(ref)

            def end() -> None:
                if verb == "insert":
                    self.store.items[ref] = item
                elif verb == "delete":
                    self.store.items.pop(ref, None)
                else:
                    disks.set_labels(item, body.get("labels", {}))

            if verb == "delete":
                disks.check_unused({"users": (), **item})
            if verb == "setLabels":
                lifecycle.check_fingerprint(
                    "labels", body.get("labelFingerprint", ""), item["labelFingerprint"]
                )
                check_labels(body.get("labels", {}))
            return self._operations.begin(
                Change(verb=verb, ref=ref, target_id=item["id"], end=end), request_id, fault
            )

    # --- look-ups ---------------------------------------------------------------------------------

    def get(self, ref: ResourceRef) -> Json:
        """An instance, a disk or a reservation. Raises `ApiError` 404 for an unknown one."""
        with self._lock:
            self.tick()
            if ref.collection == reservations.COLLECTION:
                self.store.item(ref)
                return deepcopy(self.store.reservation(ref))
            return deepcopy(
                self.store.find(ref).resource
                if ref.collection == "instances"
                else self.store.item(ref)
            )

    def all(self, collection: str, project: str, zone: str | None = None) -> list[tuple[str, Json]]:
        """(zone, resource) of a project's instances, disks or reservations, by zone and name."""
        with self._lock:
            self.tick()
            return deepcopy(self.store.all(collection, project, zone))

    def operation(self, ref: ResourceRef) -> Json:
        """An operation; `ref.name` is its name. Raises `ApiError` 404 for an unknown one."""
        with self._lock:
            self.tick()
            return self._operations.get(ref)

    def operations(self, project: str, zone: str) -> list[Json]:
        """The operations of a zone."""
        with self._lock:
            self.tick()
            return self._operations.all(project, zone)

    def wait(self, ref: ResourceRef, limit_s: float) -> Json:
        """An operation once it is done, or as it is after `limit_s` seconds."""
        deadline = self._clock.now() + limit_s
        while True:
            operation = self.operation(ref)
            now, ends_at = self._clock.now(), self._operations.ends_at(ref)
            if operation["status"] == "DONE" or now >= deadline:
                return operation
            self._clock.sleep(
                max(min(deadline, deadline if ends_at is None else ends_at) - now, 0.001)
            )

    def read_serial(self, ref: ResourceRef, start: int) -> tuple[str, int, int]:
        """(contents, first byte returned, byte to go on from) of serial port 1."""
        with self._lock:
            self.tick()
            return self.store.find(ref).read_serial(start)

    def guest_attributes(self, ref: ResourceRef, query: str) -> dict[str, str]:
        """The guest attributes whose `namespace/key` begins with `query`.

        Raises `ApiError` 403 where the instance has them disabled, and 404 while there are none.
        """
        with self._lock:
            self.tick()
            instance = self.store.find(ref)
            metadata = instance_resource.metadata_of(instance.resource)
            if metadata.get("enable-guest-attributes", "").upper() != "TRUE":
                message = f"Guest attributes endpoint access is disabled for '{ref.path}'."
                raise ApiError(403, "forbidden", message)
            below = query.rstrip("/") + "/"
            attributes = {
                key: value
                for key, value in sorted(instance.guest.items())
                if not query or key == query or key.startswith(below)
            }
            if not attributes:
                message = f"The resource '{query}' of type 'Guest Attribute' was not found."
                raise ApiError(404, "notFound", message)
            return attributes

    def quotas(self, project: str, region: str | None = None) -> list[Json]:
        """The `quotas` of a region, or of the project, with their usage."""
        with self._lock:
            self.tick()
            return self.store.quotas.resources(self.store.usage(project, region), region)

    # --- events -----------------------------------------------------------------------------------

    def trigger_event(self, event: str, name: str, zone: str) -> None:
        """Let a system event happen to the running instances of this name and zone.

        Raises `KeyError` when there is none.
        """
        plans = {
            lifecycle.PREEMPTED: lifecycle.preempt,
            lifecycle.HOST_ERROR: lifecycle.host_error,
            lifecycle.GUEST_STOP: lifecycle.guest_stop,
        }
        with self._lock:
            self.tick()
            running = [
                instance
                for instance in self.store.instances_named(name, zone)
                if instance.status == "RUNNING"
            ]
            if not running:
                raise KeyError(f"no running instance {zone}/{name}")
            for instance in running:
                self._begin(event, instance, plans[event](self.store, instance), user=SYSTEM_USER)
            self.tick()

    def publish(self, name: str, zone: str, attribute: str, value: str) -> None:
        """Set the guest attribute `namespace/key`; ignore unknown instances."""
        with self._lock:
            for instance in self.store.instances_named(name, zone):
                instance.guest[attribute] = value

    def print_serial(self, name: str, zone: str, text: str) -> None:
        """Append to serial port 1; ignore unknown instances."""
        with self._lock:
            for instance in self.store.instances_named(name, zone):
                instance.append_serial(text)

    # --- time -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Apply all ends of operations, waits and run times that are due, in order."""
        with self._lock:
            now = self._clock.now()
            try:
                while (at := min(self._operations.next_at(), self._next_limit())) <= now:
                    self._time.at = at
                    self._operations.run_due()
                    self._end_waits(at)
                    self._end_run_times(at)
            finally:
                self._time.at = None

    def _next_limit(self) -> float:
        limits = [
            at
            for instance in self.store.instances.values()
            for at in (instance.stops_at, instance.waits_until)
            if at is not None
        ]
        return min(limits, default=float("inf"))

    def _end_waits(self, at: float) -> None:
        for instance in list(self.store.instances.values()):
            if instance.waits_until is not None and instance.waits_until <= at:
                self.store.finish_wait(instance)

    def _end_run_times(self, at: float) -> None:
        for instance in list(self.store.instances.values()):
            if instance.stops_at is not None and instance.stops_at <= at:
                instance.stops_at = None
                deletes = instance.scheduling.get("instanceTerminationAction") == "DELETE"
                plan = lifecycle.end_run_time(self.store, instance)
                self._begin("delete" if deletes else "stop", instance, plan, user=SYSTEM_USER)

    # --- state ------------------------------------------------------------------------------------

    def shut_down(self, *, keep: bool) -> None:
        """End every host: destroy it, or with `keep` halt it on its disk. Forget all resources."""
        with self._lock:
            snapshots.shut_down(self.store, keep=keep)

    def snapshot(self) -> Json:
        """Instances, disks, reservations, project metadata and OS Login's keys as JSON."""
        with self._lock:
            return snapshots.snapshot(self.store)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore what `snapshot` returned; instances that ran boot, as after a loss of power."""
        with self._lock:
            snapshots.restore(self.store, saved)

    # --- inside -----------------------------------------------------------------------------------

    def _insert(
        self, ref: ResourceRef, body: Mapping[str, Any], *, request_id: str, fault: Fault | None
    ) -> Json:
        check_insert(body, ref.project, ref.zone, self.store.catalogue, now=self._time.now())
        if ref in self.store.instances:
            raise already_exists(ref.path)
        reservation = reservations.specific_name(body)
        if reservation is not None:
            self.store.reservation(ref.beside(reservations.COLLECTION, reservation))
        instance = self.store.new_instance(ref, body)

        def fail() -> None:
            if fault is not None and fault.leaves_vm:
                instance.status = "TERMINATED"
            else:
                self.store.remove(instance, keep_disks=fault is not None and fault.leaves_disk)

        plan = Plan(
            begin="STAGING",
            end=lambda: self.store.boot_with_capacity(instance, body),
            fail=fail,
            failure=self.store.shortage(instance, with_disks=True),
        )
        return self._begin("insert", instance, plan, request_id=request_id, fault=fault)

    def _new_item(self, ref: ResourceRef, body: Mapping[str, Any]) -> Json:
        self.store.catalogue.accelerators_in(ref.zone)
        check_name(ref.name)
        if ref in self.store.items:
            raise already_exists(ref.path)
        if ref.collection == disks.COLLECTION:
            check_labels(body.get("labels", {}))
            return self.store.new_disk(ref, body)
        return reservations.new_reservation(
            body,
            links=self.store.links,
            ref=ref,
            reservation_id=self.store.new_id(),
            created=timestamp(self._time.now()),
        )

    def _begin(
        self,
        verb: str,
        instance: Instance,
        plan: Plan,
        *,
        request_id: str = "",
        fault: Fault | None = None,
        user: str | None = None,
    ) -> Json:
        def begin() -> None:
            if plan.begin is not None:
                instance.status = plan.begin

        def end() -> OperationFailure | None:
            failure = plan.end()
            if failure is None and plan.then is not None and self.store.exists(instance):
                event, make_plan = plan.then
                self._begin(event, instance, make_plan(), user=SYSTEM_USER)
            return failure

        change = Change(
            verb=verb,
            ref=instance.ref,
            target_id=instance.resource["id"],
            begin=begin,
            end=end,
            fail=plan.fail,
            failure=plan.failure,
            user=user,
        )
        return self._operations.begin(change, request_id, fault)
