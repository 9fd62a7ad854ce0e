"""The methods of the Compute Engine API v1 that are emulated: paths, parameters, replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from werkzeug.routing import Map, Rule

from provision.testing.compute.catalogue import Catalogue
from provision.testing.compute.errors import ApiError, Json, invalid_field, not_found
from provision.testing.compute.faults import Fault
from provision.testing.compute.filters import compile_filter
from provision.testing.compute.paging import aggregated, listing
from provision.testing.compute.resources import Place
from provision.testing.compute.world import World

PREFIX = "/compute/v1"
SERVER_WAIT_S = 120.0

_GLOBAL = f"{PREFIX}/projects/<project>"
_ZONE = f"{_GLOBAL}/zones/<zone>"
_INSTANCE = f"{_ZONE}/instances/<name>"

ROUTES = Map(
    [
        Rule(_GLOBAL, endpoint="projects.get", methods=["GET"]),
        Rule(f"{_GLOBAL}/zones", endpoint="zones.list", methods=["GET"]),
        Rule(_ZONE, endpoint="zones.get", methods=["GET"]),
        Rule(f"{_GLOBAL}/regions", endpoint="regions.list", methods=["GET"]),
        Rule(f"{_GLOBAL}/regions/<name>", endpoint="regions.get", methods=["GET"]),
        Rule(f"{_ZONE}/machineTypes", endpoint="machineTypes.list", methods=["GET"]),
        Rule(f"{_ZONE}/machineTypes/<name>", endpoint="machineTypes.get", methods=["GET"]),
        Rule(f"{_GLOBAL}/aggregated/machineTypes", endpoint="machineTypes.aggregatedList", methods=["GET"]),
        Rule(f"{_ZONE}/acceleratorTypes", endpoint="acceleratorTypes.list", methods=["GET"]),
        Rule(f"{_ZONE}/acceleratorTypes/<name>", endpoint="acceleratorTypes.get", methods=["GET"]),
        Rule(f"{_GLOBAL}/aggregated/acceleratorTypes", endpoint="acceleratorTypes.aggregatedList", methods=["GET"]),
        Rule(f"{_GLOBAL}/global/images", endpoint="images.list", methods=["GET"]),
        Rule(f"{_GLOBAL}/global/images/<name>", endpoint="images.get", methods=["GET"]),
        Rule(f"{_GLOBAL}/global/images/family/<name>", endpoint="images.getFromFamily", methods=["GET"]),
        Rule(f"{_ZONE}/instances", endpoint="instances.insert", methods=["POST"]),
        Rule(f"{_ZONE}/instances", endpoint="instances.list", methods=["GET"]),
        Rule(f"{_GLOBAL}/aggregated/instances", endpoint="instances.aggregatedList", methods=["GET"]),
        Rule(_INSTANCE, endpoint="instances.get", methods=["GET"]),
        Rule(_INSTANCE, endpoint="instances.delete", methods=["DELETE"]),
        *(
            Rule(f"{_INSTANCE}/{verb}", endpoint=f"instances.{verb}", methods=["POST"])
            for verb in ("start", "stop", "reset", "setLabels", "setMetadata")
        ),
        Rule(f"{_INSTANCE}/serialPort", endpoint="instances.getSerialPortOutput", methods=["GET"]),
        Rule(f"{_INSTANCE}/getGuestAttributes", endpoint="instances.getGuestAttributes", methods=["GET"]),
        Rule(f"{_ZONE}/operations", endpoint="zoneOperations.list", methods=["GET"]),
        Rule(f"{_ZONE}/operations/<name>", endpoint="zoneOperations.get", methods=["GET"]),
        Rule(f"{_ZONE}/operations/<name>/wait", endpoint="zoneOperations.wait", methods=["POST"]),
    ]
)
"""Endpoint = method id of the discovery document without its `compute.`."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request, taken apart."""

    method: str
    path: str
    project: str
    zone: str = ""
    name: str = ""
    query: Mapping[str, str]
    body: Json
    fault: Fault | None = None

    @property
    def place(self) -> Place:
        """The instance or operation that is asked about."""
        return Place(self.project, self.zone, self.name)

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
        self._methods: dict[str, _Method] = {
            "projects.get": lambda ask: catalogue.project(world.links, ask.project, world.usage(ask.project)),
            "zones.get": lambda ask: catalogue.zone(world.links, ask.project, ask.zone),
            "zones.list": self._zones,
            "regions.get": lambda ask: catalogue.region(world.links, ask.project, ask.name, world.usage(ask.project, ask.name)),
            "regions.list": self._regions,
            "machineTypes.get": lambda ask: catalogue.machine_type(world.links, ask.project, ask.zone, ask.name),
            "machineTypes.list": lambda ask: self._list("machineType", ask, catalogue.machine_types(world.links, ask.project, ask.zone)),
            "machineTypes.aggregatedList": lambda ask: self._aggregated("machineType", ask, catalogue.machine_types),
            "acceleratorTypes.get": lambda ask: catalogue.accelerator_type(world.links, ask.project, ask.zone, ask.name),
            "acceleratorTypes.list": lambda ask: self._list(
                "acceleratorType", ask, catalogue.accelerator_types(world.links, ask.project, ask.zone)
            ),
            "acceleratorTypes.aggregatedList": lambda ask: self._aggregated("acceleratorType", ask, catalogue.accelerator_types),
            "images.get": lambda ask: catalogue.image(world.links, ask.project, ask.name),
            "images.getFromFamily": lambda ask: catalogue.image_of_family(world.links, ask.project, ask.name),
            "images.list": lambda ask: self._list("image", ask, catalogue.images(world.links, ask.project)),
            "instances.insert": lambda ask: world.insert(ask.project, ask.zone, ask.body, request_id=ask.request_id, fault=ask.fault),
            "instances.get": lambda ask: world.get(ask.place),
            "instances.list": self._instances,
            "instances.aggregatedList": self._all_instances,
            "instances.getSerialPortOutput": self._serial,
            "instances.getGuestAttributes": self._guest_attributes,
            "zoneOperations.get": lambda ask: world.operation(ask.place),
            "zoneOperations.wait": lambda ask: world.wait(ask.place, SERVER_WAIT_S),
            "zoneOperations.list": lambda ask: self._list("operation", ask, world.operations(ask.project, ask.zone)),
            **{f"instances.{verb}": self._change for verb in ("delete", "start", "stop", "reset", "setLabels", "setMetadata")},
        }

    def answer(self, ask: Ask) -> Json:
        """The reply's body; an ApiError is the caller's to write down."""
        return self._methods[ask.method](ask)

    def _change(self, ask: Ask) -> Json:
        verb = ask.method.removeprefix("instances.")
        return self._world.change(verb, ask.place, body=ask.body, request_id=ask.request_id, fault=ask.fault)

    def _list(self, kind: str, ask: Ask, items: list[Json]) -> Json:
        keep = compile_filter(ask.query.get("filter", ""))
        return listing(f"compute#{kind}List", self._world.links.full(ask.path), [item for item in items if keep(item)], ask.query)

    def _aggregated(self, kind: str, ask: Ask, items: Callable[..., list[Json]]) -> Json:
        zones = self._catalogue.zone_names
        return self._scoped(kind, ask, [(zone, item) for zone in zones for item in items(self._world.links, ask.project, zone)])

    def _scoped(self, kind: str, ask: Ask, items: list[tuple[str, Json]]) -> Json:
        keep = compile_filter(ask.query.get("filter", ""))
        path, zones = self._world.links.full(ask.path), self._catalogue.zone_names
        found = [(zone, item) for zone, item in items if keep(item)]
        return aggregated(f"compute#{kind}AggregatedList", path, field=f"{kind}s", scopes=zones, items=found, query=ask.query)

    def _zones(self, ask: Ask) -> Json:
        return self._list("zone", ask, [self._catalogue.zone(self._world.links, ask.project, name) for name in self._catalogue.zone_names])

    def _regions(self, ask: Ask) -> Json:
        names = self._catalogue.region_names
        return self._list(
            "region",
            ask,
            [self._catalogue.region(self._world.links, ask.project, name, self._world.usage(ask.project, name)) for name in names],
        )

    def _instances(self, ask: Ask) -> Json:
        if ask.zone not in self._catalogue.zone_names:
            raise not_found(f"projects/{ask.project}/zones/{ask.zone}")
        return self._list("instance", ask, [resource for _zone, resource in self._world.all(ask.project, ask.zone)])

    def _all_instances(self, ask: Ask) -> Json:
        return self._scoped("instance", ask, self._world.all(ask.project))

    def _serial(self, ask: Ask) -> Json:
        start = _integer(ask.query, "start", 0)
        if _integer(ask.query, "port", 1) != 1:
            raise invalid_field("port", ask.query["port"], "Only serial port 1 is emulated.")
        contents, first, following = self._world.serial(ask.place, start)
        link = self._world.links.full(ask.path)
        return {"kind": "compute#serialPortOutput", "contents": contents, "start": str(first), "next": str(following), "selfLink": link}

    def _guest_attributes(self, ask: Ask) -> Json:
        query = ask.query.get("queryPath", "") or ask.query.get("variableKey", "")
        found = self._world.guest_attributes(ask.place, query)
        items = [{"namespace": key.split("/", 1)[0], "key": key.split("/", 1)[-1], "value": value} for key, value in found.items()]
        return {
            "kind": "compute#guestAttributes",
            "queryPath": query,
            "queryValue": {"items": items},
            "selfLink": self._world.links.full(ask.path),
        }


def _integer(query: Mapping[str, Any], key: str, default: int) -> int:
    try:
        return int(query.get(key, default))
    except ValueError:
        raise ApiError(400, "invalid", f"Invalid value for field '{key}': '{query[key]}'.") from None
