"""The resources of the emulated cloud: created, booted, halted and removed. Not locked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from provision.cloud.api.protocol import MOCK_PORT_ATTRIBUTE
from provision.cloud.api.resources import last_segment
from provision.cloud.market.zone_order import region_of
from provision.testing.compute import disks, instance_resource, quotas, reservations, scheduling
from provision.testing.compute.backend import HostBackend
from provision.testing.compute.catalogue import Catalogue, Links
from provision.testing.compute.clock import timestamp
from provision.testing.compute.errors import (
    Json,
    OperationFailure,
    already_exists,
    invalid_field,
    not_found,
)
from provision.testing.compute.faults import stock_out
from provision.testing.compute.flex_start import NEVER_S, Capacity, request_valid_s
from provision.testing.compute.instance import OFF, WAITING, Instance
from provision.testing.compute.instance_resource import ResourceRef
from provision.testing.compute.oslogin import Logins
from provision.testing.compute.quotas import Quotas, Usage


class Store:
    """Instances, disks and reservations by `ResourceRef`. `now` returns seconds since the epoch."""

    def __init__(self, catalogue: Catalogue, hosts: HostBackend, now: Callable[[], float]) -> None:
        self.catalogue = catalogue
        self.links = Links("")
        self.quotas = Quotas()
        self.capacity = Capacity()
        self.project_metadata: dict[str, str] = {}
        self.logins = Logins(now)
        self.instances: dict[ResourceRef, Instance] = {}
        self.items: dict[ResourceRef, Json] = {}
        """Disks and reservations."""
        self.now = now
        self._hosts = hosts
        self.count = 0

    # --- look-ups --------------------------------------------------------------------------------

    def find(self, ref: ResourceRef) -> Instance:
        """An instance. Raises `ApiError` 404 for an unknown instance or zone."""
        self.catalogue.accelerators_in(ref.zone)
        found = self.instances.get(ref)
        if found is None:
            raise not_found(ref.path)
        return found

    def item(self, ref: ResourceRef) -> Json:
        """A disk or a reservation. Raises `ApiError` 404 for an unknown one, or an unknown zone."""
        self.catalogue.accelerators_in(ref.zone)
        if ref not in self.items:
            raise not_found(ref.path)
        return self.items[ref]

    def all(self, collection: str, project: str, zone: str | None = None) -> list[tuple[str, Json]]:
        """(zone, resource) of a collection, by zone and name."""
        held: Iterator[tuple[ResourceRef, Json]] = iter(self.items.items())
        if collection == "instances":
            held = ((ref, instance.resource) for ref, instance in self.instances.items())
        found = [
            (p, r)
            for p, r in held
            if (p.collection, p.project) == (collection, project) and zone in {None, p.zone}
        ]
        return [(ref.zone, resource) for ref, resource in sorted(found, key=lambda pair: pair[0])]

    def instances_named(self, name: str, zone: str) -> list[Instance]:
        """The instances of this name and zone, in every project."""
        return [
            instance
            for ref, instance in self.instances.items()
            if (ref.zone, ref.name) == (zone, name)
        ]

    def usages(self, project: str, *, without: Collection[ResourceRef] = ()) -> dict[str, Usage]:
        """Quota usage of a project, by region and metric; `without` are not counted."""
        rows: dict[str, list[Usage]] = {}
        for ref, instance in self.instances.items():
            if ref.project == project and ref not in without and instance.status not in OFF:
                rows.setdefault(region_of(ref.zone), []).append(self.instance_usage(instance))
        for ref, item in self.items.items():
            if ref.project == project and ref not in without and ref.collection == disks.COLLECTION:
                rows.setdefault(region_of(ref.zone), []).append(quotas.usage_of_disk(item))
        return {region: quotas.total(taken) for region, taken in rows.items()}

    def usage(self, project: str, region: str | None = None) -> Usage:
        """Quota usage of a project by metric, in one region or in all."""
        usages = self.usages(project)
        return quotas.total(usages.values()) if region is None else usages.get(region, {})

    def instance_usage(self, instance: Instance) -> Usage:
        """What an instance uses of the quotas while it is not stopped, by metric."""
        shape = self.catalogue.find_machine_type(
            instance.ref.zone, last_segment(instance.resource["machineType"])
        )
        return self.quotas.usage_of_instance(instance.resource, shape.vcpus if shape else 0)

    def shortage(self, instance: Instance, *, with_disks: bool) -> OperationFailure | None:
        """The quota or reservation error that keeps an instance from starting; None: it can start.

        `with_disks` counts the instance's disks too, as for a new instance.
        """
        region, project = region_of(instance.ref.zone), instance.ref.project
        own = [at for at in self._disks_of(instance) if with_disks]
        wanted = quotas.total(
            [self.instance_usage(instance), *(quotas.usage_of_disk(self.items[at]) for at in own)]
        )
        usages = self.usages(project, without={instance.ref, *own})
        metric = self.quotas.exceeded(
            wanted, quotas.total(usages.values()), usages.get(region, {}), region
        )
        if metric is not None:
            return self.quotas.refusal(metric, region)
        name = reservations.specific_name(instance.resource)
        if name is None:
            return None
        return reservations.shortage(
            self.reservation(instance.ref.beside(reservations.COLLECTION, name)), instance.resource
        )

    def _disks_of(self, instance: Instance) -> list[ResourceRef]:
        places = [
            instance.ref.beside(disks.COLLECTION, last_segment(attached.get("source", "-")))
            for attached in instance.resource["disks"]
        ]
        return [ref for ref in places if ref in self.items]

    def reservation(self, ref: ResourceRef) -> Json:
        """A reservation with its current use. Raises `ApiError` 400 for one that does not exist."""
        if ref not in self.items:
            why = f"Specified reservations [{ref.name}] do not exist."
            raise invalid_field("reservationAffinity.values", ref.name, why)
        users = [
            instance
            for at, instance in self.instances.items()
            if at.zone == ref.zone and instance.status not in (*OFF, "PROVISIONING")
        ]
        using = sum(reservations.specific_name(instance.resource) == ref.name for instance in users)
        self.items[ref]["specificReservation"]["inUseCount"] = str(using)
        return self.items[ref]

    # --- creation ---------------------------------------------------------------------------------

    def new_id(self) -> str:
        """A decimal id, higher than every earlier one."""
        self.count += 1
        return str(int(self.now() * 1000) * 1_000_000 + self.count)

    def new_instance(self, ref: ResourceRef, body: Mapping[str, Any]) -> Instance:
        """Add an accepted instance with its disks, not booted.

        Raises `ApiError` 409 where the instance or one of its new disks exists.
        """
        if ref in self.instances:
            raise already_exists(ref.path)
        made = self._new_disks(ref, body)
        resource = instance_resource.new_instance(
            body,
            links=self.links,
            ref=ref,
            instance_id=self.new_id(),
            created=timestamp(self.now()),
            internal_ip=f"10.128.{self.count // 250 % 256}.{self.count % 250 + 2}",
        )
        self.items.update(
            {disk: resource for disk, resource in made.items() if disk not in self.items}
        )
        for disk in made.values():
            disk["users"] = [self.links.full(ref.path)]
        self.instances[ref] = Instance(ref=ref, resource=resource)
        return self.instances[ref]

    def _new_disks(self, ref: ResourceRef, body: Mapping[str, Any]) -> dict[ResourceRef, Json]:
        """The disks of a new instance: new ones, and those it names as `source`."""
        found: dict[ResourceRef, Json] = {}
        for index, asked in enumerate(body["disks"]):
            if asked.get("type") == "SCRATCH":
                continue
            at = ref.beside(disks.COLLECTION, instance_resource.disk_name(asked, index, ref.name))
            if asked.get("source"):
                disks.check_unused(self.item(at))
                found[at] = self.items[at]
            elif at in self.items or at in found:
                raise already_exists(at.path)
            else:
                found[at] = self.new_disk(at, asked.get("initializeParams", {}))
        return found

    def new_disk(self, ref: ResourceRef, asked: Mapping[str, Any]) -> Json:
        """The resource of a new disk, which is not yet in the store."""
        return disks.new_disk(
            asked,
            links=self.links,
            ref=ref,
            disk_id=self.new_id(),
            created=timestamp(self.now()),
        )

    # --- changes of an instance -------------------------------------------------------------------

    def boot(self, instance: Instance, *, keep: bool = False) -> OperationFailure | None:
        """Start the host. If it fails, remove the instance, or with `keep` leave it stopped."""
        if not self.exists(instance):
            message = f"The resource '{instance.ref.path}' was not found"
            return OperationFailure(code="RESOURCE_NOT_FOUND", message=message, http_status=404)
        gpu, gpu_count = instance_resource.gpu_of(instance.resource)
        metadata = {**self.project_metadata, **instance_resource.metadata_of(instance.resource)}
        try:
            address, port = self._hosts.boot(
                instance.ref.name, instance.ref.zone, metadata, gpu, gpu_count
            )
        except Exception as error:  # noqa: BLE001 - whatever a backend raises, the host did not boot
            if keep:
                instance.status = "TERMINATED"
            else:
                self.remove(instance)
            return OperationFailure(
                code="INTERNAL_ERROR",
                message=f"Internal error. The host did not boot: {error}",
                http_status=500,
            )
        instance.resource.update(status="RUNNING", lastStartTimestamp=timestamp(self.now()))
        instance.guest[MOCK_PORT_ATTRIBUTE] = str(port)
        instance_resource.set_address(instance.resource, address)
        instance.stops_at = scheduling.ends_at(instance.scheduling, self.now())
        instance_resource.set_termination(instance.resource, instance.stops_at)
        return None

    def boot_with_capacity(
        self, instance: Instance, body: Mapping[str, Any]
    ) -> OperationFailure | None:
        """Boot a new instance; a flex-start instance waits for capacity first (PENDING).

        A flex-start request that may not wait fails with the error of a zone without capacity.
        """
        after_s = (
            self.capacity.after_s(instance.ref.zone)
            if instance.scheduling["provisioningModel"] == "FLEX_START"
            else 0.0
        )
        if after_s == 0 or not self.exists(instance):
            return self.boot(instance)
        wait_s = request_valid_s(body)
        if wait_s == 0:
            self.remove(instance)
            return (
                stock_out(instance.ref.zone)
                .at(instance.ref.zone, last_segment(instance.resource["machineType"]))
                .as_failure()
            )
        instance.granted_at = None if after_s == NEVER_S else self.now() + after_s
        instance.expires_at = self.now() + wait_s
        instance.status = WAITING
        return None

    def finish_wait(self, instance: Instance) -> None:
        """Boot an instance that got its capacity; remove one whose request has expired."""
        granted_at, expires_at = instance.granted_at, instance.expires_at
        instance.granted_at = instance.expires_at = None
        if granted_at is not None and (expires_at is None or granted_at <= expires_at):
            self.boot(instance)
        else:
            self.remove(instance)

    def power_off(self, instance: Instance) -> None:
        """End the instance's host and keep its disks, its address and its status."""
        if self.exists(instance):
            self._hosts.halt(instance.ref.name, instance.ref.zone)

    def halt(self, instance: Instance) -> None:
        """Stop an instance: keep its disks, drop its guest attributes and its ephemeral address."""
        if not self.exists(instance):
            return
        self.power_off(instance)
        instance.resource.update(status="TERMINATED", lastStopTimestamp=timestamp(self.now()))
        instance.guest.clear()
        instance.stops_at = None
        instance_resource.set_termination(instance.resource, None)
        instance_resource.set_address(instance.resource, None)

    def remove(self, instance: Instance, *, keep_disks: bool = False) -> None:
        """Delete an instance with its auto-delete disks; the others stay, and bill."""
        if not self.exists(instance):
            return
        del self.instances[instance.ref]
        self._hosts.destroy(instance.ref.name, instance.ref.zone)
        going = {
            last_segment(disk.get("source", "-"))
            for disk in instance.resource["disks"]
            if disk["autoDelete"] and not keep_disks
        }
        for at in self._disks_of(instance):
            if at.name in going:
                del self.items[at]
            else:
                self.items[at].update(users=[], lastDetachTimestamp=timestamp(self.now()))

    def exists(self, instance: Instance) -> bool:
        """False for an instance that was removed, even if another one has its name now."""
        return self.instances.get(instance.ref) is instance
