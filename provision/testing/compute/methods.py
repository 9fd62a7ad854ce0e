"""The emulated API methods: a parsed request in, the reply's JSON out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from provision.testing.compute import lifecycle, networks
from provision.testing.compute.catalogue import Catalogue, Links
from provision.testing.compute.emulated_cloud import EmulatedCloud
from provision.testing.compute.errors import ApiError, Json, invalid_field, not_found
from provision.testing.compute.faults import Fault
from provision.testing.compute.filters import compile_filter
from provision.testing.compute.instance_resource import ResourceRef
from provision.testing.compute.paging import aggregated, listing

SERVER_WAIT_S = 120.0
SERIAL_PORTS = range(1, 5)


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    """A parsed request. `unreachable` are the zones that a fault hides from an aggregated list."""

    method: str
    path: str
    project: str
    zone: str = ""
    name: str = ""
    key: str = ""
    """Fingerprint of an SSH key in a login profile."""
    query: Mapping[str, str]
    body: Json
    fault: Fault | None = None
    unreachable: frozenset[str] = frozenset()

    @property
    def collection(self) -> str:
        """`instances` of `instances.insert`."""
        return self.method.partition(".")[0]

    @property
    def kind(self) -> str:
        """`instance` of `instances.insert`."""
        return self.collection.removesuffix("s")

    @property
    def verb(self) -> str:
        """`insert` of `instances.insert`."""
        return self.method.partition(".")[2]

    @property
    def ref(self) -> ResourceRef:
        """The resource that the request reads, changes or creates."""
        return ResourceRef(
            self.project, self.zone, self.name or str(self.body.get("name", "")), self.collection
        )

    @property
    def request_id(self) -> str:
        """The idempotency key, or an empty string."""
        return self.query.get("requestId", "")


_Method: TypeAlias = Callable[[ApiRequest], Json]


class ApiMethods:
    """Answers requests from the emulated cloud and its catalogue."""

    def __init__(self, cloud: EmulatedCloud, catalogue: Catalogue) -> None:
        self._cloud = cloud
        self._catalogue = catalogue
        self.firewalls: list[Json] = [dict(rule) for rule in networks.DEFAULT_RULES]
        self._methods: dict[str, _Method] = {
            **self._zone_methods(),
            **self._type_methods(),
            **self._global_methods(),
            **self._item_methods(),
            **self._instance_methods(),
        }

    def answer(self, request: ApiRequest) -> Json:
        """The reply's JSON. Raises `ApiError` for every refusal."""
        return self._methods[request.method](request)

    def _zone_methods(self) -> dict[str, _Method]:
        """Projects, zones and regions."""
        cloud, offers = self._cloud, self._catalogue
        return {
            "projects.get": lambda request: offers.project(
                self._links,
                request.project,
                cloud.quotas(request.project),
                cloud.store.project_metadata,
            ),
            "zones.get": lambda request: offers.zone(self._links, request.project, request.zone),
            "zones.list": lambda request: self._list(
                "zone",
                request,
                [offers.zone(self._links, request.project, name) for name in offers.zone_names],
            ),
            "regions.get": lambda request: self._region(request, request.name),
            "regions.list": lambda request: self._list(
                "region", request, [self._region(request, name) for name in offers.region_names]
            ),
        }

    def _type_methods(self) -> dict[str, _Method]:
        """Machine types and accelerator types."""
        offers = self._catalogue
        return {
            "machineTypes.get": lambda request: offers.machine_type(
                self._links, request.project, request.zone, request.name
            ),
            "machineTypes.list": lambda request: self._list(
                "machineType",
                request,
                offers.machine_types(self._links, request.project, request.zone),
            ),
            "machineTypes.aggregatedList": lambda request: self._list_offers(
                "machineType", request, offers.machine_types
            ),
            "acceleratorTypes.get": lambda request: offers.accelerator_type(
                self._links, request.project, request.zone, request.name
            ),
            "acceleratorTypes.list": lambda request: self._list(
                "acceleratorType",
                request,
                offers.accelerator_types(self._links, request.project, request.zone),
            ),
            "acceleratorTypes.aggregatedList": lambda request: self._list_offers(
                "acceleratorType", request, offers.accelerator_types
            ),
        }

    def _global_methods(self) -> dict[str, _Method]:
        """Images, networks and firewall rules."""
        offers = self._catalogue
        return {
            "images.get": lambda request: offers.image(self._links, request.project, request.name),
            "images.getFromFamily": lambda request: offers.image_of_family(
                self._links, request.project, request.name
            ),
            "images.list": lambda request: self._list(
                "image", request, offers.images(self._links, request.project)
            ),
            "networks.get": lambda request: networks.network(
                self._links, request.project, request.name
            ),
            "firewalls.list": lambda request: self._list(
                "firewall",
                request,
                networks.firewalls(self._links, request.project, self.firewalls),
            ),
        }

    def _item_methods(self) -> dict[str, _Method]:
        """Operations; reads of instances; all methods of disks and reservations."""
        cloud = self._cloud
        methods: dict[str, _Method] = {
            "zoneOperations.get": lambda request: cloud.operation(request.ref),
            "zoneOperations.wait": lambda request: cloud.wait(request.ref, SERVER_WAIT_S),
            "zoneOperations.list": lambda request: self._list(
                "operation", request, cloud.operations(request.project, request.zone)
            ),
        }
        for collection in ("instances", "disks", "reservations"):
            methods[f"{collection}.get"] = lambda request: cloud.get(request.ref)
            methods[f"{collection}.list"] = self._list_zone
            methods[f"{collection}.aggregatedList"] = lambda request: self._list_scopes(
                request.kind, request, cloud.all(request.collection, request.project)
            )
        for method in (
            "disks.insert",
            "disks.delete",
            "disks.setLabels",
            "reservations.insert",
            "reservations.delete",
        ):
            methods[method] = lambda request: cloud.change_item(
                request.verb,
                request.ref,
                body=request.body,
                request_id=request.request_id,
                fault=request.fault,
            )
        return methods

    def _instance_methods(self) -> dict[str, _Method]:
        cloud = self._cloud

        def change(request: ApiRequest) -> Json:
            return cloud.change(
                request.verb,
                request.ref,
                body=request.body,
                request_id=request.request_id,
                fault=request.fault,
            )

        return {
            "instances.insert": lambda request: cloud.insert(
                request.project,
                request.zone,
                request.body,
                request_id=request.request_id,
                fault=request.fault,
            ),
            "instances.getSerialPortOutput": self._serial,
            "instances.getGuestAttributes": self._guest_attributes,
            **{f"instances.{verb}": change for verb in lifecycle.VERBS},
        }

    def _list(self, kind: str, request: ApiRequest, items: list[Json]) -> Json:
        keep = compile_filter(request.query.get("filter", ""))
        return listing(
            f"compute#{kind}List",
            self._links.full(request.path),
            [item for item in items if keep(item)],
            request.query,
        )

    def _list_zone(self, request: ApiRequest) -> Json:
        if request.zone not in self._catalogue.zone_names:
            raise not_found(f"projects/{request.project}/zones/{request.zone}")
        items = self._cloud.all(request.collection, request.project, request.zone)
        return self._list(request.kind, request, [resource for _zone, resource in items])

    def _list_offers(
        self, kind: str, request: ApiRequest, items: Callable[..., list[Json]]
    ) -> Json:
        links, zones = self._cloud.store.links, self._catalogue.zone_names
        return self._list_scopes(
            kind,
            request,
            [(zone, item) for zone in zones for item in items(links, request.project, zone)],
        )

    def _list_scopes(self, kind: str, request: ApiRequest, items: list[tuple[str, Json]]) -> Json:
        keep = compile_filter(request.query.get("filter", ""))
        shown = [
            (zone, item) for zone, item in items if keep(item) and zone not in request.unreachable
        ]
        return aggregated(
            f"compute#{kind}AggregatedList",
            self._links.full(request.path),
            field=f"{kind}s",
            scopes=self._catalogue.zone_names,
            items=shown,
            query=request.query,
            unreachable=request.unreachable,
        )

    @property
    def _links(self) -> Links:
        return self._cloud.store.links

    def _region(self, request: ApiRequest, name: str) -> Json:
        return self._catalogue.region(
            self._cloud.store.links,
            request.project,
            name,
            self._cloud.quotas(request.project, name),
        )

    def _serial(self, request: ApiRequest) -> Json:
        start, port = _integer(request.query, "start", 0), _integer(request.query, "port", 1)
        if port not in SERIAL_PORTS:
            raise invalid_field("port", port, "Must be between 1 and 4.")
        contents, first, following = (
            self._cloud.read_serial(request.ref, start) if port == 1 else ("", 0, 0)
        )
        link = self._links.full(request.path)
        return {
            "kind": "compute#serialPortOutput",
            "contents": contents,
            "start": str(first),
            "next": str(following),
            "selfLink": link,
        }

    def _guest_attributes(self, request: ApiRequest) -> Json:
        query = request.query.get("queryPath", "") or request.query.get("variableKey", "")
        found = self._cloud.guest_attributes(request.ref, query)
        items = [
            {"namespace": key.split("/", 1)[0], "key": key.split("/", 1)[-1], "value": value}
            for key, value in found.items()
        ]
        return {
            "kind": "compute#guestAttributes",
            "queryPath": query,
            "queryValue": {"items": items},
            "selfLink": self._links.full(request.path),
        }


def _integer(query: Mapping[str, Any], key: str, default: int) -> int:
    try:
        return int(query.get(key, default))
    except ValueError:
        raise ApiError(
            400, "invalid", f"Invalid value for field '{key}': '{query[key]}'."
        ) from None
