"""What the emulated methods answer: parameters in, replies out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from provision.testing.compute import lifecycle, networks
from provision.testing.compute.catalogue import Catalogue, Links
from provision.testing.compute.emulated_cloud import World
from provision.testing.compute.errors import ApiError, Json, invalid_field, not_found
from provision.testing.compute.faults import Fault
from provision.testing.compute.filters import compile_filter
from provision.testing.compute.instance_resource import Place
from provision.testing.compute.paging import aggregated, listing

SERVER_WAIT_S = 120.0
SERIAL_PORTS = range(1, 5)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request, taken apart. `unreachable` are the zones that a fault hides from an aggregated list."""

    method: str
    path: str
    project: str
    zone: str = ""
    name: str = ""
    key: str = ""
    """Of a login profile."""
    query: Mapping[str, str]
    body: Json
    fault: Fault | None = None
    unreachable: frozenset[str] = frozenset()

    @property
    def collection(self) -> str:
        """`instances` of `instances.insert`."""
        return self.method.partition(".")[0]

    @property
    def verb(self) -> str:
        """`insert` of `instances.insert`."""
        return self.method.partition(".")[2]

    @property
    def place(self) -> Place:
        """What is asked about, or is to be made."""
        return Place(
            self.project, self.zone, self.name or str(self.body.get("name", "")), self.collection
        )

    @property
    def request_id(self) -> str:
        """The idempotency key, or an empty string."""
        return self.query.get("requestId", "")


_Method: TypeAlias = Callable[[Ask], Json]


class Api:
    """Answers requests from the world and the catalogue."""

    def __init__(self, world: World, catalogue: Catalogue) -> None:
        self._world = world
        self._catalogue = catalogue
        self.firewalls: list[Json] = [dict(rule) for rule in networks.DEFAULT_RULES]
        self._methods: dict[str, _Method] = {
            **self._offers(),
            **self._holdings(),
            **self._instances(),
        }

    def answer(self, ask: Ask) -> Json:
        """The reply's body; an ApiError is the caller's to write down."""
        return self._methods[ask.method](ask)

    def _offers(self) -> dict[str, _Method]:
        """What exists before anybody creates something."""
        world, offers = self._world, self._catalogue

        def links() -> Links:
            return world.store.links

        return {
            "projects.get": lambda ask: offers.project(
                links(), ask.project, world.quotas(ask.project), world.store.project_metadata
            ),
            "zones.get": lambda ask: offers.zone(links(), ask.project, ask.zone),
            "zones.list": lambda ask: self._list(
                "zone", ask, [offers.zone(links(), ask.project, name) for name in offers.zone_names]
            ),
            "regions.get": lambda ask: self._region(ask, ask.name),
            "regions.list": lambda ask: self._list(
                "region", ask, [self._region(ask, name) for name in offers.region_names]
            ),
            "machineTypes.get": lambda ask: offers.machine_type(
                links(), ask.project, ask.zone, ask.name
            ),
            "machineTypes.list": lambda ask: self._list(
                "machineType", ask, offers.machine_types(links(), ask.project, ask.zone)
            ),
            "machineTypes.aggregatedList": lambda ask: self._aggregated(
                "machineType", ask, offers.machine_types
            ),
            "acceleratorTypes.get": lambda ask: offers.accelerator_type(
                links(), ask.project, ask.zone, ask.name
            ),
            "acceleratorTypes.list": lambda ask: self._list(
                "acceleratorType", ask, offers.accelerator_types(links(), ask.project, ask.zone)
            ),
            "acceleratorTypes.aggregatedList": lambda ask: self._aggregated(
                "acceleratorType", ask, offers.accelerator_types
            ),
            "images.get": lambda ask: offers.image(links(), ask.project, ask.name),
            "images.getFromFamily": lambda ask: offers.image_of_family(
                links(), ask.project, ask.name
            ),
            "images.list": lambda ask: self._list(
                "image", ask, offers.images(links(), ask.project)
            ),
            "networks.get": lambda ask: networks.network(links(), ask.project, ask.name),
            "firewalls.list": lambda ask: self._list(
                "firewall", ask, networks.firewalls(links(), ask.project, self.firewalls)
            ),
        }

    def _holdings(self) -> dict[str, _Method]:
        """What is the same for instances, disks and reservations, and operations."""
        world = self._world
        methods: dict[str, _Method] = {
            "zoneOperations.get": lambda ask: world.operation(ask.place),
            "zoneOperations.wait": lambda ask: world.wait(ask.place, SERVER_WAIT_S),
            "zoneOperations.list": lambda ask: self._list(
                "operation", ask, world.operations(ask.project, ask.zone)
            ),
        }
        for collection, kind in (
            ("instances", "instance"),
            ("disks", "disk"),
            ("reservations", "reservation"),
        ):
            methods[f"{collection}.get"] = lambda ask: world.get(ask.place)
            methods[f"{collection}.list"] = lambda ask, kind=kind: self._held(kind, ask)  # type: ignore[misc]
            methods[f"{collection}.aggregatedList"] = lambda ask, kind=kind: self._scoped(  # type: ignore[misc]
                kind, ask, world.all(ask.collection, ask.project)
            )
        for method in (
            "disks.insert",
            "disks.delete",
            "disks.setLabels",
            "reservations.insert",
            "reservations.delete",
        ):
            methods[method] = lambda ask: world.change_item(
                ask.verb, ask.place, body=ask.body, request_id=ask.request_id, fault=ask.fault
            )
        return methods

    def _instances(self) -> dict[str, _Method]:
        world = self._world

        def change(ask: Ask) -> Json:
            return world.change(
                ask.verb, ask.place, body=ask.body, request_id=ask.request_id, fault=ask.fault
            )

        return {
            "instances.insert": lambda ask: world.insert(
                ask.project, ask.zone, ask.body, request_id=ask.request_id, fault=ask.fault
            ),
            "instances.getSerialPortOutput": self._serial,
            "instances.getGuestAttributes": self._guest_attributes,
            **{f"instances.{verb}": change for verb in lifecycle.VERBS},
        }

    def _list(self, kind: str, ask: Ask, items: list[Json]) -> Json:
        keep = compile_filter(ask.query.get("filter", ""))
        return listing(
            f"compute#{kind}List",
            self._world.store.links.full(ask.path),
            [item for item in items if keep(item)],
            ask.query,
        )

    def _held(self, kind: str, ask: Ask) -> Json:
        if ask.zone not in self._catalogue.zone_names:
            raise not_found(f"projects/{ask.project}/zones/{ask.zone}")
        return self._list(
            kind,
            ask,
            [
                resource
                for _zone, resource in self._world.all(ask.collection, ask.project, ask.zone)
            ],
        )

    def _aggregated(self, kind: str, ask: Ask, items: Callable[..., list[Json]]) -> Json:
        links, zones = self._world.store.links, self._catalogue.zone_names
        return self._scoped(
            kind, ask, [(zone, item) for zone in zones for item in items(links, ask.project, zone)]
        )

    def _scoped(self, kind: str, ask: Ask, items: list[tuple[str, Json]]) -> Json:
        keep = compile_filter(ask.query.get("filter", ""))
        found = [(zone, item) for zone, item in items if keep(item) and zone not in ask.unreachable]
        return aggregated(
            f"compute#{kind}AggregatedList",
            self._world.store.links.full(ask.path),
            field=f"{kind}s",
            scopes=self._catalogue.zone_names,
            items=found,
            query=ask.query,
            unreachable=ask.unreachable,
        )

    def _region(self, ask: Ask, name: str) -> Json:
        return self._catalogue.region(
            self._world.store.links, ask.project, name, self._world.quotas(ask.project, name)
        )

    def _serial(self, ask: Ask) -> Json:
        start, port = _integer(ask.query, "start", 0), _integer(ask.query, "port", 1)
        if port not in SERIAL_PORTS:
            raise invalid_field("port", port, "Must be between 1 and 4.")
        contents, first, following = (
            self._world.serial(ask.place, start) if port == 1 else ("", 0, 0)
        )
        link = self._world.store.links.full(ask.path)
        return {
            "kind": "compute#serialPortOutput",
            "contents": contents,
            "start": str(first),
            "next": str(following),
            "selfLink": link,
        }

    def _guest_attributes(self, ask: Ask) -> Json:
        query = ask.query.get("queryPath", "") or ask.query.get("variableKey", "")
        found = self._world.guest_attributes(ask.place, query)
        items = [
            {"namespace": key.split("/", 1)[0], "key": key.split("/", 1)[-1], "value": value}
            for key, value in found.items()
        ]
        return {
            "kind": "compute#guestAttributes",
            "queryPath": query,
            "queryValue": {"items": items},
            "selfLink": self._world.store.links.full(ask.path),
        }


def _integer(query: Mapping[str, Any], key: str, default: int) -> int:
    try:
        return int(query.get(key, default))
    except ValueError:
        raise ApiError(
            400, "invalid", f"Invalid value for field '{key}': '{query[key]}'."
        ) from None
