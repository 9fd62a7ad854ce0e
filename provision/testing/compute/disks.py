"""`disks` resources, created with an instance or alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.cloud.api.resources import last_segment
from provision.testing.compute.catalogue import IMAGE_GB, Links, fingerprint
from provision.testing.compute.errors import ApiError, Json
from provision.testing.compute.instance_resource import ResourceRef

COLLECTION = "disks"


def new_disk(
    asked: Mapping[str, Any], *, links: Links, ref: ResourceRef, disk_id: str, created: str
) -> Json:
    """A new disk from `asked`: `initializeParams` of an instance, or the body of `disks.insert`."""
    zone = links.full(f"projects/{ref.project}/zones/{ref.zone}")
    kind = last_segment(asked.get("diskType") or asked.get("type") or "pd-standard")
    resource: Json = {
        "kind": "compute#disk",
        "id": disk_id,
        "creationTimestamp": created,
        "name": ref.name,
        "zone": zone,
        "selfLink": links.full(ref.path),
        "status": "READY",
        "sizeGb": str(asked.get("diskSizeGb") or asked.get("sizeGb") or IMAGE_GB),
        "type": f"{zone}/diskTypes/{kind}",
        "physicalBlockSizeBytes": "4096",
        "users": [],
    }
    if asked.get("sourceImage"):
        resource["sourceImage"] = links.full(
            str(asked["sourceImage"]).rpartition("/compute/v1/")[2]
        )
    set_labels(resource, asked.get("labels", {}))
    return resource


def set_labels(resource: Json, labels: Mapping[str, str]) -> None:
    """Replace the labels and their fingerprint; without labels the field is absent."""
    resource.pop("labels", None)
    if labels:
        resource["labels"] = dict(labels)
    resource["labelFingerprint"] = fingerprint(dict(labels))


def check_unused(resource: Mapping[str, Any]) -> None:
    """Raise `ApiError` 400 for a disk that is attached to an instance."""
    for user in resource["users"]:
        path, by = (
            str(link).rpartition("/compute/v1/")[2] for link in (resource["selfLink"], user)
        )
        raise ApiError(
            400,
            "resourceInUseByAnotherResource",
            f"The disk resource '{path}' is already being used by '{by}'",
        )
