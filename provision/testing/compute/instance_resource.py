"""`instances` resources, built from a client's request as the API returns them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from provision.cloud.api.resources import last_segment
from provision.cloud.market import catalog
from provision.cloud.market.zone_order import region_of
from provision.testing.compute import scheduling
from provision.testing.compute.catalogue import Links, fingerprint, metadata_json
from provision.testing.compute.clock import timestamp
from provision.testing.compute.errors import Json


@dataclass(frozen=True, order=True)
class ResourceRef:
    """Names a zonal resource: an instance, a disk, a reservation or an operation."""

    project: str
    zone: str
    name: str
    collection: str = "instances"

    @property
    def path(self) -> str:
        """`projects/P/zones/Z/instances/N`."""
        return f"projects/{self.project}/zones/{self.zone}/{self.collection}/{self.name}"

    def beside(self, collection: str, name: str = "") -> ResourceRef:
        """A resource of another collection in the same zone; by default with the same name."""
        return ResourceRef(self.project, self.zone, name or self.name, collection)


@dataclass(frozen=True)
class _Urls:
    """Full URLs of the resources around one instance."""

    links: Links
    ref: ResourceRef

    def zonal(self, path: str = "") -> str:
        """The URL of a resource in its zone, or of the zone."""
        return self.links.full(f"projects/{self.ref.project}/zones/{self.ref.zone}{path}")

    def project(self, path: str) -> str:
        """The URL of a resource in its project."""
        return self.links.full(f"projects/{self.ref.project}{path}")


def new_instance(
    body: Mapping[str, Any],
    *,
    links: Links,
    ref: ResourceRef,
    instance_id: str,
    created: str,
    internal_ip: str,
) -> Json:
    """The resource right after an accepted insert: the request completed by what the API adds."""
    urls = _Urls(links, ref)
    resource: Json = {
        key: deepcopy(value)
        for key, value in body.items()
        if key not in ("metadata", "labels", "disks", "networkInterfaces")
    }
    machine_type = last_segment(body["machineType"])
    resource.update(
        _identity(urls, instance_id, created),
        machineType=urls.zonal(f"/machineTypes/{machine_type}"),
        deletionProtection=bool(body.get("deletionProtection", False)),
        disks=[_attached(disk, index, urls) for index, disk in enumerate(body["disks"])],
        networkInterfaces=[
            _interface(nic, index, urls, internal_ip)
            for index, nic in enumerate(body["networkInterfaces"])
        ],
        scheduling=scheduling.with_defaults(deepcopy(dict(body.get("scheduling", {})))),
        tags={**body.get("tags", {}), "fingerprint": fingerprint(body.get("tags", {}))},
    )
    accelerators = _accelerators(body, machine_type, urls)
    if accelerators:
        resource["guestAccelerators"] = accelerators
    set_labels(resource, body.get("labels", {}))
    set_metadata(resource, body.get("metadata", {}).get("items", []))
    return resource


def _identity(urls: _Urls, instance_id: str, created: str) -> Json:
    """The fields of a new instance that do not depend on the request."""
    return {
        "kind": "compute#instance",
        "id": instance_id,
        "creationTimestamp": created,
        "status": "PROVISIONING",
        "zone": urls.zonal(),
        "selfLink": urls.links.full(urls.ref.path),
        "cpuPlatform": "Unknown CPU Platform",
        "startRestricted": False,
        "fingerprint": fingerprint([urls.ref.path, instance_id]),
        "resourceStatus": {"scheduling": {}},
        "shieldedInstanceConfig": {
            "enableSecureBoot": False,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
    }


def set_labels(resource: Json, labels: Mapping[str, str]) -> None:
    """Replace the labels and their fingerprint."""
    resource["labels"] = dict(labels)
    resource["labelFingerprint"] = fingerprint(resource["labels"])


def set_metadata(resource: Json, items: list[Json]) -> None:
    """Replace the metadata and its fingerprint."""
    resource["metadata"] = metadata_json(items)


def metadata_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """The metadata items as a mapping."""
    return {
        item["key"]: item.get("value", "") for item in resource.get("metadata", {}).get("items", [])
    }


def gpu_of(resource: Mapping[str, Any]) -> tuple[str | None, int]:
    """(accelerator type, count), or (None, 0)."""
    attached = resource.get("guestAccelerators", [])
    return (
        (last_segment(attached[0]["acceleratorType"]), attached[0]["acceleratorCount"])
        if attached
        else (None, 0)
    )


def set_address(resource: Json, address: str | None) -> None:
    """Set the external address of all access configurations, or remove it."""
    for interface in resource["networkInterfaces"]:
        for access in interface.get("accessConfigs", ()):
            access.pop("natIP", None)
            if address is not None:
                access["natIP"] = address


def disk_name(disk: Mapping[str, Any], index: int, instance: str) -> str:
    """The name of a requested disk: its own, else one after its instance."""
    if disk.get("source"):
        return last_segment(disk["source"])
    return str(
        disk.get("initializeParams", {}).get(
            "diskName", instance if index == 0 else f"{instance}-{index}"
        )
    )


def set_termination(resource: Json, at: float | None) -> None:
    """Set the end of the run time, or clear it, as Compute Engine does at each start and stop."""
    shown = resource["resourceStatus"]["scheduling"]
    shown.pop("terminationTimestamp", None)
    if at is not None:
        shown["terminationTimestamp"] = timestamp(at)


def _attached(disk: Mapping[str, Any], index: int, urls: _Urls) -> Json:
    parameters = disk.get("initializeParams", {})
    kind = disk.get("type", "PERSISTENT")
    attached: Json = {
        "kind": "compute#attachedDisk",
        "type": kind,
        "mode": disk.get("mode", "READ_WRITE"),
        "deviceName": disk.get("deviceName", f"persistent-disk-{index}"),
        "index": index,
        "boot": bool(disk.get("boot", False)),
        "autoDelete": bool(disk.get("autoDelete", False)),
        "interface": disk.get("interface", "SCSI"),
        "diskSizeGb": str(parameters.get("diskSizeGb", disk.get("diskSizeGb", 10))),
    }
    return (
        attached
        if kind == "SCRATCH"
        else {**attached, "source": urls.zonal(f"/disks/{disk_name(disk, index, urls.ref.name)}")}
    )


def _interface(nic: Mapping[str, Any], index: int, urls: _Urls, internal_ip: str) -> Json:
    region = region_of(urls.ref.zone)
    network = last_segment(nic.get("network", "global/networks/default"))
    complete: Json = {
        "kind": "compute#networkInterface",
        "name": f"nic{index}",
        "network": urls.project(f"/global/networks/{network}"),
        "subnetwork": urls.project(
            f"/regions/{region}/subnetworks/{last_segment(nic.get('subnetwork', network))}"
        ),
        "networkIP": internal_ip,
        "stackType": "IPV4_ONLY",
        "fingerprint": fingerprint([internal_ip, index]),
    }
    if nic.get("accessConfigs"):
        complete["accessConfigs"] = [
            {"kind": "compute#accessConfig", "networkTier": "PREMIUM", **access}
            for access in nic["accessConfigs"]
        ]
    return complete


def _accelerators(body: Mapping[str, Any], machine_type: str, urls: _Urls) -> list[Json]:
    bundled = catalog.bundled_machine_types().get(machine_type)
    attached = [
        (last_segment(entry["acceleratorType"]), int(entry["acceleratorCount"]))
        for entry in body.get("guestAccelerators", ())
    ]
    pairs = attached or ([(bundled[0].accelerator, bundled[1].gpu_count)] if bundled else [])
    return [
        {"acceleratorType": urls.zonal(f"/acceleratorTypes/{name}"), "acceleratorCount": count}
        for name, count in pairs
    ]
