"""The checks of `instances.insert`, in Compute Engine's order and close to its words. Pure.

Sources: Compute Engine, "GPU machine types", "Create an N1 VM that has attached GPUs", "Spot VMs",
"Limit the run time of a VM", "VM metadata"; messages as users of other launchers quote them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from provision.cloud.api.images import image_ref
from provision.cloud.api.request_bodies import METADATA_VALUE_LIMIT_BYTES
from provision.cloud.api.resources import last_segment
from provision.cloud.market.catalog import MachineType
from provision.cloud.market.machine_choice import default_disk_type
from provision.testing.compute import scheduling
from provision.testing.compute.catalogue import IMAGE_GB, Catalogue, Links
from provision.testing.compute.errors import ApiError, Json, invalid, invalid_field, not_found

_NAME = re.compile(r"(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)\Z")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}\Z")
_METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_METADATA_TOTAL_LIMIT_BYTES = 512 * 1024
_DISK_TYPES = ("pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced", "local-ssd")


def check_name(name: object) -> None:
    """Raise `ApiError` 400 unless it is 1 to 63 of a-z, 0-9 and '-', as RFC 1035 has names."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise invalid_field(
            "name", name, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
        )


def check_insert(
    body: Mapping[str, Any], project: str, zone: str, catalogue: Catalogue, *, now: float
) -> None:
    """Raise the `ApiError` that the real API replies with; return when it accepts.

    `now` is in seconds since the epoch.
    """
    check_name(body.get("name", ""))
    machine_type = _requested_machine_type(body, zone, catalogue)
    accelerators = body.get("guestAccelerators", ())
    has_gpu = bool(accelerators) or machine_type.gpu_count > 0
    _check_accelerators(accelerators, machine_type, project, zone, catalogue)
    scheduling.check(body, machine_type, has_gpu=has_gpu, now=now)
    _check_disks(body.get("disks", ()), machine_type, catalogue)
    if not body.get("networkInterfaces"):
        raise invalid_field("networkInterfaces", "", "At least one network interface is required.")
    check_labels(body.get("labels", {}))
    check_metadata(body.get("metadata", {}))


def _requested_machine_type(
    body: Mapping[str, Any], zone: str, catalogue: Catalogue
) -> MachineType:
    path = body.get("machineType", "")
    if not path:
        raise invalid_field("machineType", "", "Machine type must be specified.")
    at = re.search(r"zones/([^/]+)/machineTypes/([^/]+)\Z", path)
    if at is None:
        raise invalid_field("machineType", path, "The URL is malformed.")
    if at[1] != zone:
        raise invalid_field("machineType", path, f"The machine type must be in zone '{zone}'.")
    machine_type = catalogue.find_machine_type(zone, at[2])
    if machine_type is None:
        raise invalid_field(
            "machineType",
            path,
            f"Machine type with name '{at[2]}' does not exist in zone '{zone}'.",
        )
    return machine_type


def _check_accelerators(
    accelerators: Sequence[Mapping[str, Any]],
    machine_type: MachineType,
    project: str,
    zone: str,
    catalogue: Catalogue,
) -> None:
    for entry in accelerators:
        name, count = (
            last_segment(entry.get("acceleratorType", "")),
            int(entry.get("acceleratorCount", 0)),
        )
        offered = {gpu.accelerator: gpu for gpu in catalogue.accelerators_in(zone)}
        if name not in offered:
            raise not_found(f"projects/{project}/zones/{zone}/acceleratorTypes/{name}")
        limit = next((limit for limit in offered[name].n1_limits if limit.gpu_count == count), None)
        if (
            machine_type.gpu_count
            or offered[name].bundled
            or machine_type.series not in ("n1", "custom")
        ):
            raise invalid(
                f"[{name}, {machine_type.name}] features are not compatible for creating instance."
            )
        if limit is None:
            raise invalid_field(
                "guestAccelerators[0].acceleratorCount",
                count,
                f"Accelerator type {name} does not support {count} cards.",
            )
        vcpus, memory_gb = limit.for_zone(zone)
        if machine_type.vcpus > vcpus or machine_type.memory_gb > memory_gb:
            raise invalid(
                f"The number of vCPUs or the memory of {machine_type.name} exceeds"
                f" what {count} x {name} support in zone {zone}."
            )


def _check_disks(
    disks: Sequence[Mapping[str, Any]], machine_type: MachineType, catalogue: Catalogue
) -> None:
    boot = next((disk for disk in disks if disk.get("boot")), None)
    if boot is None:
        raise invalid_field("disks", "", "A boot disk must be specified.")
    if boot.get("source"):
        return
    parameters = boot.get("initializeParams", {})
    _check_image(parameters.get("sourceImage", ""), catalogue)
    size_gb = int(parameters.get("diskSizeGb", boot.get("diskSizeGb", IMAGE_GB)))
    if size_gb < IMAGE_GB:
        raise invalid_field(
            "disks[0].initializeParams.diskSizeGb",
            size_gb,
            f"Requested disk size cannot be smaller than the image size ({IMAGE_GB} GB)",
        )
    disk_type = last_segment(parameters.get("diskType", "pd-standard"))
    if disk_type not in _DISK_TYPES:
        raise invalid_field(
            "disks[0].initializeParams.diskType",
            disk_type,
            "The referenced disk type does not exist.",
        )
    only_hyperdisk = default_disk_type(machine_type.name) == "hyperdisk-balanced"
    if only_hyperdisk != (disk_type == "hyperdisk-balanced") and (
        only_hyperdisk or machine_type.series == "n1"
    ):
        raise invalid(
            f"[{disk_type}, {machine_type.name}] features are not compatible for creating instance."
        )


def _check_image(source: str, catalogue: Catalogue) -> None:
    ref = image_ref(source)
    links = Links("")
    try:
        if ref.is_family:
            catalogue.image_of_family(links, ref.project, ref.name)
        else:
            catalogue.image(links, ref.project, ref.name)
    except ApiError:
        why = "The referenced image resource cannot be found."
        raise invalid_field("disks[0].initializeParams.sourceImage", source, why) from None


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise `ApiError` 400 unless there are at most 64 labels of valid keys and values."""
    if len(labels) > 64:
        raise invalid("A resource can have at most 64 labels.")
    for key, value in labels.items():
        if not _LABEL_KEY.match(key) or not _LABEL_VALUE.match(value):
            raise invalid_field(
                "labels", f"{key}: {value}", "Label keys and values must match '[a-z0-9_-]{0,63}'."
            )


def check_metadata(metadata: Json | Mapping[str, Any]) -> None:
    """Raise `ApiError` 400 for duplicate keys, values above 256 KiB, or 512 KiB in all."""
    items = metadata.get("items", ())
    keys = [item.get("key", "") for item in items]
    if len(set(keys)) != len(keys):
        raise invalid_field("metadata.items", keys, "Metadata has duplicate keys.")
    for item in items:
        if not _METADATA_KEY.match(item.get("key", "")):
            raise invalid_field(
                "metadata.items[0].key",
                item.get("key", ""),
                "Must be a match of regex '[a-zA-Z0-9-_]{1,128}'",
            )
        if len(item.get("value", "").encode()) > METADATA_VALUE_LIMIT_BYTES:
            raise invalid_field(
                "metadata.items[0].value",
                item["key"],
                "The value is too long: the limit is 262144 bytes.",
            )
    if sum(len(item.get("value", "").encode()) for item in items) > _METADATA_TOTAL_LIMIT_BYTES:
        raise invalid_field(
            "metadata.items", "", "The total size of the metadata exceeds 524288 bytes."
        )
