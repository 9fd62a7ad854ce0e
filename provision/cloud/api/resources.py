"""API resources (JSON) as values: `instances` as Vm, `disks` as Disk, timestamps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from provision.cloud.api.labels import IMAGE_LABEL
from provision.cloud.api.protocol import Disk
from provision.cloud.market import catalog
from provision.core.model import Scalar, Vm, VmSpec

Resource = Mapping[str, Any]


def last_segment(path: str) -> str:
    """Return the last part of a resource URL: `us-central1-a` of `https://…/us-central1-a`."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def parse_timestamp(timestamp: str) -> datetime | None:
    """Return an RFC 3339 time of the API as a datetime; None for text that is not one."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def vm_from_json(resource: Resource) -> Vm:
    """Return an `instances` resource as a Vm; unknown fields and statuses do no harm."""
    machine_type = last_segment(resource.get("machineType", ""))
    gpu, gpu_count = _gpu(resource.get("guestAccelerators", ()), machine_type)
    interface = _first(resource.get("networkInterfaces", ()))
    disks: Sequence[Resource] = resource.get("disks", ())
    labels = dict(resource.get("labels", {}))
    return Vm(
        name=resource["name"],
        zone=last_segment(resource.get("zone", "")),
        status=resource.get("status", "UNKNOWN"),
        machine_type=machine_type,
        gpu=gpu,
        gpu_count=gpu_count,
        address=_first(interface.get("accessConfigs", ())).get("natIP") or None,
        internal_address=interface.get("networkIP") or None,
        instance_id=resource.get("id", ""),
        created=resource.get("creationTimestamp", ""),
        started=resource.get("lastStartTimestamp", ""),
        stopped=resource.get("lastStopTimestamp", ""),
        disk_gb=sum(int(disk.get("diskSizeGb", 0)) for disk in disks if _is_persistent(disk)),
        image=_image(_first([disk for disk in disks if disk.get("boot")]), labels),
        labels=labels,
        metadata=items_to_dict(resource.get("metadata", {})),
        **_scheduling(resource),
    )


def _first(items: Sequence[Resource]) -> Resource:
    return items[0] if items else {}


def _is_persistent(disk: Resource) -> bool:
    """Return False for a Local SSD, which the machine type brings."""
    return bool(disk.get("type") != "SCRATCH")


def _scheduling(resource: Resource) -> dict[str, Any]:
    scheduling: Resource = resource.get("scheduling", {})
    ttl: Resource = scheduling.get("maxRunDuration", {})
    planned: Resource = resource.get("resourceStatus", {}).get("scheduling", {})
    return {
        "ttl_s": int(ttl["seconds"]) if "seconds" in ttl else None,
        "stops_at": planned.get("terminationTimestamp", ""),
        "termination_action": scheduling.get("instanceTerminationAction", ""),
        "provisioning_model": scheduling.get("provisioningModel", "STANDARD"),
    }


def _gpu(attached: Sequence[Resource], machine_type: str) -> tuple[str | None, int]:
    if attached:
        accelerator = last_segment(attached[0].get("acceleratorType", ""))
        return accelerator, int(attached[0].get("acceleratorCount", 0))
    bundled = catalog.bundled_machine_types().get(machine_type)
    return (bundled[0].accelerator, bundled[1].gpu_count) if bundled else (None, 0)


def _image(boot_disk: Resource, labels: Mapping[str, str]) -> str:
    source = boot_disk.get("initializeParams", {}).get("sourceImage", "")
    return last_segment(source) if source else labels.get(IMAGE_LABEL, "")


def items_to_dict(holder: Resource) -> dict[str, str]:
    """Return the key-value list `items` of a `metadata` or `queryValue` field as a dict."""
    return {item["key"]: item.get("value", "") for item in holder.get("items", ())}


def disk_from_json(resource: Resource) -> Disk:
    """Return a `disks` resource as a Disk."""
    return Disk(
        name=resource["name"],
        zone=last_segment(resource.get("zone", "")),
        size_gb=int(resource.get("sizeGb", 0)),
        created=resource.get("creationTimestamp", ""),
        users=tuple(last_segment(user) for user in resource.get("users", ())),
        labels=dict(resource.get("labels", {})),
    )


def differences(spec: VmSpec, vm: Vm) -> dict[str, tuple[Scalar, Scalar]]:
    """Return what only a new VM could have otherwise: key → (value of the VM, value asked for)."""
    asked_gpu = catalog.gpu_type(spec.gpu).accelerator if spec.gpu else None
    pairs: dict[str, tuple[Scalar, Scalar]] = {
        "machine_type": (vm.machine_type, spec.machine_type),
        "gpu": (vm.gpu, asked_gpu),
        "gpu_count": (vm.gpu_count, spec.gpu_count),
        "provisioning": (vm.provisioning_model, spec.provisioning_model),
    }
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
