"""What the emulated cloud holds, and the elementary things that happen to it: made, booted, halted, removed. Not locked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from provision.cloud.api.body import last
from provision.cloud.api.ports import MOCK_PORT_ATTRIBUTE
from provision.cloud.market.placement import region_of
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
from provision.testing.compute.flex_start import NEVER_S, Capacity, valid_s
from provision.testing.compute.instance import OFF, WAITING, Machine
from provision.testing.compute.instance_resource import Place
from provision.testing.compute.oslogin import Logins
from provision.testing.compute.quotas import Quotas, Usage


class Store:
    """Instances, disks and reservations by place. `now` is in seconds since the epoch."""

    def __init__(self, catalogue: Catalogue, hosts: HostBackend, now: Callable[[], float]) -> None:
        self.catalogue = catalogue
        self.links = Links("")
        self.quotas = Quotas()
        self.capacity = Capacity()
        self.project_metadata: dict[str, str] = {}
        self.logins = Logins(now)
        self.machines: dict[Place, Machine] = {}
        self.items: dict[Place, Json] = {}
        """Disks and reservations."""
        self.now = now
        self._hosts = hosts
        self.count = 0

    # --- looking ----------------------------------------------------------------------------------

    def find(self, place: Place) -> Machine:
        """An instance; 404 when there is none, or no such zone."""
        self.catalogue.accelerators_in(place.zone)
        found = self.machines.get(place)
        if found is None:
            raise not_found(place.path)
        return found

    def item(self, place: Place) -> Json:
        """A disk or a reservation; 404 when there is none, or no such zone."""
        self.catalogue.accelerators_in(place.zone)
        if place not in self.items:
            raise not_found(place.path)
        return self.items[place]

    def all(self, collection: str, project: str, zone: str | None = None) -> list[tuple[str, Json]]:
        """(zone, resource) of a collection, by zone and name."""
        held: Iterator[tuple[Place, Json]] = iter(self.items.items())
        if collection == "instances":
            held = ((place, machine.resource) for place, machine in self.machines.items())
        found = [
            (p, r)
            for p, r in held
            if (p.collection, p.project) == (collection, project) and zone in {None, p.zone}
        ]
        return [
            (place.zone, resource) for place, resource in sorted(found, key=lambda pair: pair[0])
        ]

    def named(self, name: str, zone: str) -> list[Machine]:
        """The instances of this name and zone, in whatever project."""
        return [
            machine
            for place, machine in self.machines.items()
            if (place.zone, place.name) == (zone, name)
        ]

    def usages(self, project: str, *, without: Collection[Place] = ()) -> dict[str, Usage]:
        """Quota usage of a project, by region and metric; `without` are instances and disks not to be counted."""
        rows: dict[str, list[Usage]] = {}
        for place, machine in self.machines.items():
            if place.project == project and place not in without and machine.status not in OFF:
                rows.setdefault(region_of(place.zone), []).append(self.takes(machine))
        for place, item in self.items.items():
            if (
                place.project == project
                and place not in without
                and place.collection == disks.COLLECTION
            ):
                rows.setdefault(region_of(place.zone), []).append(quotas.of_disk(item))
        return {region: quotas.total(taken) for region, taken in rows.items()}

    def usage(self, project: str, region: str | None = None) -> Usage:
        """Quota usage of a project by metric, of one region or of all."""
        usages = self.usages(project)
        return quotas.total(usages.values()) if region is None else usages.get(region, {})

    def takes(self, machine: Machine) -> Usage:
        """What an instance takes from the quotas while it is not stopped."""
        shape = self.catalogue.machine(machine.place.zone, last(machine.resource["machineType"]))
        return self.quotas.of_instance(machine.resource, shape.vcpus if shape else 0)

    def shortage(self, machine: Machine, *, with_disks: bool) -> OperationFailure | None:
        """The quota or the reservation that keeps an instance from starting, or one `with_disks` from being made."""
        region, project = region_of(machine.place.zone), machine.place.project
        own = [at for at in self._disks_of(machine) if with_disks]
        wanted = quotas.total(
            [self.takes(machine), *(quotas.of_disk(self.items[at]) for at in own)]
        )
        usages = self.usages(project, without={machine.place, *own})
        metric = self.quotas.exceeded(
            wanted, quotas.total(usages.values()), usages.get(region, {}), region
        )
        if metric is not None:
            return self.quotas.refusal(metric, region)
        name = reservations.specific_name(machine.resource)
        if name is None:
            return None
        return reservations.shortage(
            self.reservation(machine.place.beside(reservations.COLLECTION, name)), machine.resource
        )

    def _disks_of(self, machine: Machine) -> list[Place]:
        places = [
            machine.place.beside(disks.COLLECTION, last(attached.get("source", "-")))
            for attached in machine.resource["disks"]
        ]
        return [place for place in places if place in self.items]

    def reservation(self, place: Place) -> Json:
        """A reservation with its use; 400 where an instance names one that does not exist."""
        if place not in self.items:
            why = f"Specified reservations [{place.name}] do not exist."
            raise invalid_field("reservationAffinity.values", place.name, why)
        users = [
            m
            for at, m in self.machines.items()
            if at.zone == place.zone and m.status not in (*OFF, "PROVISIONING")
        ]
        using = sum(reservations.specific_name(machine.resource) == place.name for machine in users)
        self.items[place]["specificReservation"]["inUseCount"] = str(using)
        return self.items[place]

    # --- making -----------------------------------------------------------------------------------

    def new_id(self) -> str:
        """A decimal id, higher than every one before."""
        self.count += 1
        return str(int(self.now() * 1000) * 1_000_000 + self.count)

    def new_machine(self, place: Place, body: Mapping[str, Any]) -> Machine:
        """An accepted instance with its disks, not booted; 409 where the instance or one of its new disks exists."""
        if place in self.machines:
            raise already_exists(place.path)
        made = self._new_disks(place, body)
        resource = instance_resource.new_instance(
            body,
            links=self.links,
            place=place,
            instance_id=self.new_id(),
            created=timestamp(self.now()),
            internal_ip=f"10.128.{self.count // 250 % 256}.{self.count % 250 + 2}",
        )
        self.items.update(
            {disk: resource for disk, resource in made.items() if disk not in self.items}
        )
        for disk in made.values():
            disk["users"] = [self.links.full(place.path)]
        self.machines[place] = Machine(place=place, resource=resource)
        return self.machines[place]

    def _new_disks(self, place: Place, body: Mapping[str, Any]) -> dict[Place, Json]:
        """The disks of a new instance: made, or those it names as `source`."""
        found: dict[Place, Json] = {}
        for index, asked in enumerate(body["disks"]):
            if asked.get("type") == "SCRATCH":
                continue
            at = place.beside(
                disks.COLLECTION, instance_resource.disk_name(asked, index, place.name)
            )
            if asked.get("source"):
                disks.check_unused(self.item(at))
                found[at] = self.items[at]
            elif at in self.items or at in found:
                raise already_exists(at.path)
            else:
                found[at] = self.new_disk(at, asked.get("initializeParams", {}))
        return found

    def new_disk(self, place: Place, asked: Mapping[str, Any]) -> Json:
        """A disk that is not yet held."""
        return disks.new_disk(
            asked,
            links=self.links,
            place=place,
            disk_id=self.new_id(),
            created=timestamp(self.now()),
        )

    # --- what happens to an instance --------------------------------------------------------------

    def boot(self, machine: Machine, *, keep: bool = False) -> OperationFailure | None:
        """Start its host; one that does not boot is removed, or with `keep` left stopped."""
        if not self.exists(machine):
            message = f"The resource '{machine.place.path}' was not found"
            return OperationFailure(code="RESOURCE_NOT_FOUND", message=message, http_status=404)
        gpu, gpu_count = instance_resource.gpu_of(machine.resource)
        metadata = {**self.project_metadata, **instance_resource.metadata_of(machine.resource)}
        try:
            address, port = self._hosts.boot(
                machine.place.name, machine.place.zone, metadata, gpu, gpu_count
            )
        except Exception as error:  # noqa: BLE001  (whatever a backend raises is a host that did not boot)
            if keep:
                machine.status = "TERMINATED"
            else:
                self.remove(machine)
            return OperationFailure(
                code="INTERNAL_ERROR",
                message=f"Internal error. The host did not boot: {error}",
                http_status=500,
            )
        machine.resource.update(status="RUNNING", lastStartTimestamp=timestamp(self.now()))
        machine.guest[MOCK_PORT_ATTRIBUTE] = str(port)
        instance_resource.set_address(machine.resource, address)
        machine.stops_at = scheduling.ends_at(machine.scheduling, self.now())
        instance_resource.set_termination(machine.resource, machine.stops_at)
        return None

    def allot(self, machine: Machine, body: Mapping[str, Any]) -> OperationFailure | None:
        """Boot a new instance; a flex-start one only once there is capacity, for which it may wait as PENDING.

        One that may not wait fails as any other without capacity does.
        """
        after_s = (
            self.capacity.after_s(machine.place.zone)
            if machine.scheduling["provisioningModel"] == "FLEX_START"
            else 0.0
        )
        if after_s == 0 or not self.exists(machine):
            return self.boot(machine)
        wait_s = valid_s(body)
        if wait_s == 0:
            self.remove(machine)
            return (
                stock_out(machine.place.zone)
                .at(machine.place.zone, last(machine.resource["machineType"]))
                .as_failure()
            )
        machine.granted_at = None if after_s == NEVER_S else self.now() + after_s
        machine.expires_at = self.now() + wait_s
        machine.status = WAITING
        return None

    def end_wait(self, machine: Machine) -> None:
        """Capacity has come, or the request is no longer valid: the instance boots, or is gone."""
        granted_at, expires_at = machine.granted_at, machine.expires_at
        machine.granted_at = machine.expires_at = None
        if granted_at is not None and (expires_at is None or granted_at <= expires_at):
            self.boot(machine)
        else:
            self.remove(machine)

    def power_off(self, machine: Machine) -> None:
        """End its host and keep its disks; the instance still has its address and its status."""
        if self.exists(machine):
            self._hosts.halt(machine.place.name, machine.place.zone)

    def halt(self, machine: Machine) -> None:
        """Stop it: its disks stay, its guest attributes and its ephemeral address do not."""
        if not self.exists(machine):
            return
        self.power_off(machine)
        machine.resource.update(status="TERMINATED", lastStopTimestamp=timestamp(self.now()))
        machine.guest.clear()
        machine.stops_at = None
        instance_resource.set_termination(machine.resource, None)
        instance_resource.set_address(machine.resource, None)

    def remove(self, machine: Machine, *, keep_disks: bool = False) -> None:
        """Delete it with those of its disks that are deleted with it; the others stay, and bill."""
        if not self.exists(machine):
            return
        del self.machines[machine.place]
        self._hosts.destroy(machine.place.name, machine.place.zone)
        going = {
            last(disk.get("source", "-"))
            for disk in machine.resource["disks"]
            if disk["autoDelete"] and not keep_disks
        }
        for at in self._disks_of(machine):
            if at.name in going:
                del self.items[at]
            else:
                self.items[at].update(users=[], lastDetachTimestamp=timestamp(self.now()))

    def exists(self, machine: Machine) -> bool:
        """False for an instance that was removed, though another may have its name."""
        return self.machines.get(machine.place) is machine
