"""The catalogue of the emulated cloud: zones, machine types, accelerator types, images. Pure.

GPU and machine types come from the package's own table (`provision.cloud.market.catalog`), the
zones from data/zones.json.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any

from provision.cloud.market import catalog
from provision.cloud.market.catalog import GpuType, MachineType
from provision.cloud.market.zone_order import region_of
from provision.testing.compute.errors import Json, not_found

CREATED_AT = "2026-01-01T00:00:00.000-08:00"
IMAGE_GB = 10
_E2 = tuple(MachineType(f"e2-standard-{size}", size, size * 4.0) for size in (2, 4, 8, 16, 32))
_SHARED = (
    MachineType("f1-micro", 1, 0.6),
    MachineType("g1-small", 1, 1.7),
    MachineType("e2-micro", 2, 1.0),
)


@dataclass(frozen=True)
class Links:
    """Writes full resource URLs; `root` ends in /compute/v1."""

    root: str

    def full(self, path: str) -> str:
        """The URL of `projects/P/…`."""
        return f"{self.root}/{path}"


@cache
def _zone_data() -> Mapping[str, Any]:
    text = (
        resources.files("provision.testing.compute")
        .joinpath("data/zones.json")
        .read_text(encoding="utf-8")
    )
    zone_data: Mapping[str, Any] = json.loads(text)
    return zone_data


def fingerprint(value: object) -> str:
    """A base64 digest of a JSON value, as the API's optimistic locks are."""
    return base64.urlsafe_b64encode(
        sha256(json.dumps(value, sort_keys=True).encode()).digest()[:8]
    ).decode()


def metadata_json(items: Sequence[Json]) -> Json:
    """The metadata of a project or of an instance, with its fingerprint."""
    kept = deepcopy(list(items))
    resource: Json = {"kind": "compute#metadata", "fingerprint": fingerprint(kept)}
    return {**resource, "items": kept} if kept else resource


def stable_id(*words: str) -> str:
    """A decimal id that is the same in every run."""
    return str(int.from_bytes(sha256("/".join(words).encode()).digest()[:8], "big") >> 1)


class Catalogue:
    """The resources that exist before a client creates any."""

    def __init__(
        self,
        zones: Mapping[str, Sequence[str]] | None = None,
        images: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        zone_data = _zone_data()
        self._zones: dict[str, tuple[str, ...]] = {
            name: tuple(gpus) for name, gpus in (zones or zone_data["zones"]).items()
        }
        self._shapes: dict[str, dict[str, MachineType]] = {}
        self._images: tuple[Mapping[str, str], ...] = tuple(
            images if images is not None else zone_data["images"]
        )

    @property
    def zone_names(self) -> tuple[str, ...]:
        """All zones, in order."""
        return tuple(sorted(self._zones))

    @property
    def region_names(self) -> tuple[str, ...]:
        """All regions, in order."""
        return tuple(sorted({region_of(zone) for zone in self._zones}))

    def accelerators_in(self, zone: str) -> tuple[GpuType, ...]:
        """The GPU types of a zone. Raises `ApiError` 404 for an unknown zone."""
        if zone not in self._zones:
            raise not_found(f"zones/{zone}")
        return tuple(catalog.gpu_types()[name] for name in self._zones[zone])

    def machine_types_in(self, zone: str) -> tuple[MachineType, ...]:
        """The machine types of a zone: N1, E2, and those that bring the zone's GPUs."""
        bundled = (
            machine_type for gpu in self.accelerators_in(zone) for machine_type in gpu.machine_types
        )
        return (*catalog.n1_predefined(), *_E2, *_SHARED, *bundled)

    def find_machine_type(self, zone: str, name: str) -> MachineType | None:
        """A machine type of a zone, custom N1 types included; None for an unknown one."""
        if zone not in self._shapes:
            self._shapes[zone] = {
                machine_type.name: machine_type for machine_type in self.machine_types_in(zone)
            }
        return self._shapes[zone].get(name) or catalog.parse_n1(name)

    # --- resources as the API writes them ---------------------------------------------------------

    def zone(self, links: Links, project: str, name: str) -> Json:
        """A `zones` resource. Raises `ApiError` 404 for an unknown zone."""
        path = f"projects/{project}/zones/{name}"
        if name not in self._zones:
            raise not_found(path)
        region = links.full(f"projects/{project}/regions/{region_of(name)}")
        return {
            **_head("compute#zone", name, path, links),
            "description": name,
            "status": "UP",
            "region": region,
        }

    def region(self, links: Links, project: str, name: str, quotas: Sequence[Json]) -> Json:
        """A `regions` resource. Raises `ApiError` 404 for an unknown region."""
        path = f"projects/{project}/regions/{name}"
        if name not in self.region_names:
            raise not_found(path)
        zones = [
            links.full(f"projects/{project}/zones/{zone}")
            for zone in self.zone_names
            if region_of(zone) == name
        ]
        return {
            **_head("compute#region", name, path, links),
            "description": name,
            "status": "UP",
            "zones": zones,
            "quotas": list(quotas),
        }

    def project(
        self, links: Links, project: str, quotas: Sequence[Json], metadata: Mapping[str, str]
    ) -> Json:
        """The `projects` resource; all instances see its `metadata`."""
        head = _head("compute#project", project, f"projects/{project}", links)
        number = stable_id(project)[:12]
        return {
            **head,
            "defaultServiceAccount": f"{number}-compute@developer.gserviceaccount.com",
            "commonInstanceMetadata": metadata_json(
                [{"key": key, "value": value} for key, value in metadata.items()]
            ),
            "quotas": list(quotas),
        }

    def machine_type(self, links: Links, project: str, zone: str, name: str) -> Json:
        """A `machineTypes` resource. Raises `ApiError` 404 where the zone does not have it."""
        machine_type = self.find_machine_type(zone, name)
        if machine_type is None:
            raise not_found(f"projects/{project}/zones/{zone}/machineTypes/{name}")
        return _machine_json(links, project, zone, machine_type)

    def machine_types(self, links: Links, project: str, zone: str) -> list[Json]:
        """All `machineTypes` of a zone."""
        return [
            _machine_json(links, project, zone, machine_type)
            for machine_type in self.machine_types_in(zone)
        ]

    def accelerator_type(self, links: Links, project: str, zone: str, name: str) -> Json:
        """An `acceleratorTypes` resource. Raises `ApiError` 404 where the zone does not have it."""
        found = next((gpu for gpu in self.accelerators_in(zone) if gpu.accelerator == name), None)
        if found is None:
            raise not_found(f"projects/{project}/zones/{zone}/acceleratorTypes/{name}")
        return _accelerator_json(links, project, zone, found)

    def accelerator_types(self, links: Links, project: str, zone: str) -> list[Json]:
        """All `acceleratorTypes` of a zone."""
        return [_accelerator_json(links, project, zone, gpu) for gpu in self.accelerators_in(zone)]

    def images(self, links: Links, project: str) -> list[Json]:
        """All `images` of a project; only cos-cloud has any."""
        return (
            [_image_json(links, project, row) for row in self._images]
            if project == "cos-cloud"
            else []
        )

    def image(self, links: Links, project: str, name: str) -> Json:
        """An image by name, deprecated or not. Raises `ApiError` 404 for an unknown one."""
        found = next(
            (image for image in self.images(links, project) if image["name"] == name), None
        )
        if found is None:
            raise not_found(f"projects/{project}/global/images/{name}")
        return found

    def image_of_family(self, links: Links, project: str, family: str) -> Json:
        """The newest image of a family that is not deprecated. Raises `ApiError` 404."""
        current = [
            image
            for image in self.images(links, project)
            if image["family"] == family and "deprecated" not in image
        ]
        if not current:
            raise not_found(f"projects/{project}/global/images/family/{family}")
        return current[-1]


def _head(kind: str, name: str, path: str, links: Links) -> Json:
    return {
        "kind": kind,
        "id": stable_id(path),
        "creationTimestamp": CREATED_AT,
        "name": name,
        "selfLink": links.full(path),
    }


def _machine_json(links: Links, project: str, zone: str, machine_type: MachineType) -> Json:
    path = f"projects/{project}/zones/{zone}/machineTypes/{machine_type.name}"
    resource: Json = {
        **_head("compute#machineType", machine_type.name, path, links),
        "guestCpus": machine_type.vcpus,
        "memoryMb": int(machine_type.memory_gb * 1024),
        "zone": zone,
        "isSharedCpu": machine_type in _SHARED,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "architecture": "ARM64" if machine_type.series == "a4x" else "X86_64",
    }
    bundled = catalog.bundled_machine_types().get(machine_type.name)
    if bundled:
        resource["accelerators"] = [
            {
                "guestAcceleratorType": bundled[0].accelerator,
                "guestAcceleratorCount": machine_type.gpu_count,
            }
        ]
    if machine_type.local_ssd_gb:
        resource["bundledLocalSsds"] = {
            "defaultInterface": "NVME",
            "partitionCount": machine_type.local_ssd_gb // 375,
        }
    return resource


def _accelerator_json(links: Links, project: str, zone: str, gpu: GpuType) -> Json:
    path = f"projects/{project}/zones/{zone}/acceleratorTypes/{gpu.accelerator}"
    zone_link = links.full(f"projects/{project}/zones/{zone}")
    head = _head("compute#acceleratorType", gpu.accelerator, path, links)
    return {
        **head,
        "description": gpu.accelerator,
        "zone": zone_link,
        "maximumCardsPerInstance": max(gpu.counts),
    }


def _image_json(links: Links, project: str, row: Mapping[str, str]) -> Json:
    resource: Json = {
        **_head(
            "compute#image", row["name"], f"projects/{project}/global/images/{row['name']}", links
        ),
        "family": row["family"],
        "status": "READY",
        "diskSizeGb": str(IMAGE_GB),
        "architecture": "ARM64" if "arm64" in row["name"] else "X86_64",
        "sourceType": "RAW",
    }
    if row.get("state", "ACTIVE") != "ACTIVE":
        resource["deprecated"] = {"state": row["state"]}
    return resource
