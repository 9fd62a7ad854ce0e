"""The JSON that Compute Engine is sent and what is read from its answers. Pure.

Field names and types: Compute Engine API v1, resource `instances`. The rules for GPU machines:
Compute Engine, "Create an N1 VM that has attached GPUs", "GPU machine types" and "Limit the run
time of a VM".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.cloud.api import oslogin
from provision.cloud.api.ports import ANY, Disk
from provision.cloud.market import catalog
from provision.cloud.market import scheduling as scheduled
from provision.core.errors import SettingsError
from provision.core.model import Scalar, Vm, VmSpec

OWNER_LABEL = "provision-owner"
"""Label that says whose a VM is; one without it, or with another value, is never touched."""
REQUEST_LABEL = "provision-request"
"""Label with the requestId of the insert that made the VM: proof that it is the one this run asked
for."""
COS_PROJECT = "cos-cloud"
COS_FAMILY = re.compile(r"cos-(stable|beta|dev|\d+-lts|arm64-.+)\Z")
"""Image families of Container-Optimized OS; any other name beginning with `cos-` is an image."""
IDLE_DELETE_LABEL = "provision-idle-delete"
"""Label with the setting `idle_delete` that the VM was made with: whether it may be deleted is
asked of the VM itself."""
EXTENDED_LABEL = "provision-extended"
"""Label with the time limit that a VM had before one of its runs got more time; see
`cloud/extension.py`."""
METADATA_VALUE_LIMIT_BYTES = 256 * 1024

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}\Z")
_METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")


@dataclass(frozen=True)
class ImageRef:
    """An image by name or by family in a project; a family is resolved to a name before it is used."""

    project: str
    name: str
    is_family: bool

    @property
    def path(self) -> str:
        """The partial URL that `sourceImage` takes."""
        return f"projects/{self.project}/global/images/{'family/' if self.is_family else ''}{self.name}"


def image_ref(image: str, project: str = "") -> ImageRef:
    """Read `cos-125-lts`, `cos-125-19216-655-28`, `family/NAME`, or a path `projects/P/global/images/[family/]NAME`."""
    path = re.fullmatch(
        r"(?:https://\S+?/)?projects/([^/]+)/global/images/(family/)?([^/]+)", image
    )
    if path:
        return ImageRef(path[1], path[3], bool(path[2]))
    if image.startswith("family/"):
        return ImageRef(project or COS_PROJECT, image.removeprefix("family/"), True)
    return ImageRef(project or COS_PROJECT, image, COS_FAMILY.match(image) is not None)


def standard_metadata(
    *, user: str, public_key: str, user_data: str = "", os_login: bool = False
) -> dict[str, str]:
    """The metadata of a GPU VM on Container-Optimized OS.

    `public_key` is one line `TYPE BASE64 [COMMENT]`, put in at creation so that no propagation is
    waited for. Updates are off, since with them a reboot can change the build and lose the driver
    ("Automatic updates"). What is said of OS Login is said for this VM, whatever the project's
    metadata says; where it is on, keys in metadata are ignored without a word, so there is none.
    """
    items = {
        "cos-update-strategy": "update_disabled",
        "enable-guest-attributes": "TRUE",
        oslogin.KEY: "TRUE" if os_login else "FALSE",
        "serial-port-logging-enable": "TRUE",
    }
    if not os_login:
        kind, blob, *comment = public_key.split()
        items["ssh-keys"] = f"{user}:{kind} {blob} {' '.join(comment) or user}"
    return {**items, "user-data": user_data} if user_data else items


def label_value(text: str) -> str:
    """Any text as a label value: lower case, at most 63 of a-z, 0-9, '_' and '-'."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-")[:63]


def check_spec(spec: VmSpec) -> None:
    """Refuse a spec that the API would refuse for its form; SettingsError names the key."""
    if not _NAME.match(spec.name):
        why = "1 to 63 of a-z, 0-9 and '-', beginning with a letter, not ending with '-'"
        raise SettingsError(
            f"VM name {spec.name!r} is not possible",
            where="name",
            why=why,
            fix="choose a name such as dev",
        )
    scheduled.check_spec(spec)
    for key, value in spec.labels.items():
        if not (_LABEL_KEY.match(key) and _LABEL_VALUE.match(value)):
            why = "keys and values are at most 63 of a-z, 0-9, '_' and '-'"
            raise SettingsError(
                f"label {key!r}: {value!r} is not possible",
                where="labels",
                why=why,
                fix="write the label in lower case",
            )
    for key, value in spec.metadata.items():
        if not _METADATA_KEY.match(key):
            raise SettingsError(
                f"metadata key {key!r} is not possible",
                where="metadata",
                why="1 to 128 of letters, digits, '_' and '-'",
            )
        if len(value.encode()) > METADATA_VALUE_LIMIT_BYTES:
            raise SettingsError(
                f"metadata {key!r} is too long", where="metadata", why="a value has at most 256 KiB"
            )
    catalog.validate_shape(
        spec.gpu,
        spec.gpu_count,
        spec.machine_type,
        spec.disk_gb,
        provisioning=spec.provisioning_model,
    )


def insert_body(spec: VmSpec, zone: str, *, source_image: str) -> dict[str, Any]:
    """The body of `instances.insert`; `source_image` is the path of an image, not of a family."""
    body: dict[str, Any] = {
        "name": spec.name,
        "machineType": f"zones/{zone}/machineTypes/{spec.machine_type}",
        "disks": [_boot_disk(spec, zone, source_image)],
        "networkInterfaces": [_network_interface(spec)],
        "serviceAccounts": [{"email": spec.service_account, "scopes": list(spec.scopes)}],
        "scheduling": scheduled.scheduling(spec),
        **scheduled.beside(spec),
        "labels": dict(spec.labels),
        "metadata": {
            "items": [{"key": key, "value": value} for key, value in spec.metadata.items()]
        },
    }
    if spec.gpu is not None and not catalog.gpu_type(spec.gpu).bundled:
        accelerator = f"zones/{zone}/acceleratorTypes/{catalog.gpu_type(spec.gpu).accelerator}"
        body["guestAccelerators"] = [
            {"acceleratorType": accelerator, "acceleratorCount": spec.gpu_count}
        ]
    return body


def _boot_disk(spec: VmSpec, zone: str, source_image: str) -> dict[str, Any]:
    disk_type = f"zones/{zone}/diskTypes/{catalog.default_disk_type(spec.machine_type)}"
    parameters = {
        "sourceImage": source_image,
        "diskSizeGb": str(spec.disk_gb),
        "diskType": disk_type,
        "labels": dict(spec.labels),
    }
    return {"boot": True, "autoDelete": True, "initializeParams": parameters}


def _network_interface(spec: VmSpec) -> dict[str, Any]:
    access = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}] if spec.external_ip else []
    return (
        {"network": spec.network, "accessConfigs": access} if access else {"network": spec.network}
    )


def limited(scheduling: Mapping[str, Any], ttl_s: int) -> dict[str, Any]:
    """`scheduling` as it was read, with another time limit. setScheduling replaces the whole, so all of it is sent again.

    A limit needs an action, and stands beside no `terminationTime` (Compute Engine, "Limit the run
    time of a VM").
    """
    kept = {
        key: value
        for key, value in scheduling.items()
        if key not in ("terminationTime", "maxRunDuration")
    }
    return {"instanceTerminationAction": "STOP", **kept, "maxRunDuration": {"seconds": str(ttl_s)}}


def last(path: str) -> str:
    """The last word of a resource URL: `us-central1-a` of `https://…/zones/us-central1-a`."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def vm_from_json(resource: Mapping[str, Any]) -> Vm:
    """An `instances` resource as a Vm. Unknown fields and unknown status words pass through unharmed."""
    machine_type = last(resource.get("machineType", ""))
    gpu, gpu_count = _gpu(resource.get("guestAccelerators", ()), machine_type)
    interface: Mapping[str, Any] = next(iter(resource.get("networkInterfaces", ())), {})
    access: Mapping[str, Any] = next(iter(interface.get("accessConfigs", ())), {})
    boot: Mapping[str, Any] = next(
        (disk for disk in resource.get("disks", ()) if disk.get("boot")), {}
    )
    metadata = {
        item["key"]: item.get("value", "") for item in resource.get("metadata", {}).get("items", ())
    }
    scheduling: Mapping[str, Any] = resource.get("scheduling", {})
    ttl: Mapping[str, Any] = scheduling.get("maxRunDuration", {})
    return Vm(
        name=resource["name"],
        zone=last(resource.get("zone", "")),
        status=resource.get("status", "UNKNOWN"),
        machine_type=machine_type,
        gpu=gpu,
        gpu_count=gpu_count,
        address=access.get("natIP") or None,
        internal_address=interface.get("networkIP") or None,
        instance_id=resource.get("id", ""),
        created=resource.get("creationTimestamp", ""),
        started=resource.get("lastStartTimestamp", ""),
        stopped=resource.get("lastStopTimestamp", ""),
        ttl_s=int(ttl["seconds"]) if "seconds" in ttl else None,
        stops_at=resource.get("resourceStatus", {})
        .get("scheduling", {})
        .get("terminationTimestamp", ""),
        termination_action=scheduling.get("instanceTerminationAction", ""),
        provisioning_model=scheduling.get("provisioningModel", "STANDARD"),
        disk_gb=sum(
            int(disk.get("diskSizeGb", 0))
            for disk in resource.get("disks", ())
            if disk.get("type") != "SCRATCH"
        ),
        image=_image(boot, resource.get("labels", {})),
        labels=dict(resource.get("labels", {})),
        metadata=metadata,
    )


def _gpu(attached: Sequence[Mapping[str, Any]], machine_type: str) -> tuple[str | None, int]:
    if attached:
        return last(attached[0].get("acceleratorType", "")), int(
            attached[0].get("acceleratorCount", 0)
        )
    bundled = catalog.bundled_machine_types().get(machine_type)
    return (bundled[0].accelerator, bundled[1].gpu_count) if bundled else (None, 0)


IMAGE_LABEL = "provision-image"
"""Label with the name of the image the VM was made from: an instance does not say it, its disk
does."""


def _image(boot_disk: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    named = boot_disk.get("initializeParams", {}).get("sourceImage", "")
    return last(named) if named else labels.get(IMAGE_LABEL, "")


def drift(spec: VmSpec, vm: Vm) -> dict[str, tuple[Scalar, Scalar]]:
    """What an existing VM has otherwise than asked and can only get by being made anew: key → (actual, asked)."""
    asked_gpu = catalog.gpu_type(spec.gpu).accelerator if spec.gpu else None
    pairs: dict[str, tuple[Scalar, Scalar]] = {
        "machine_type": (vm.machine_type, spec.machine_type),
        "gpu": (vm.gpu, asked_gpu),
        "gpu_count": (vm.gpu_count, spec.gpu_count),
        "provisioning": (vm.provisioning_model, spec.provisioning_model),
    }
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def disk_from_json(resource: Mapping[str, Any]) -> Disk:
    """A `disks` resource as a Disk."""
    return Disk(
        name=resource["name"],
        zone=last(resource.get("zone", "")),
        size_gb=int(resource.get("sizeGb", 0)),
        created=resource.get("creationTimestamp", ""),
        users=tuple(last(user) for user in resource.get("users", ())),
        labels=dict(resource.get("labels", {})),
    )


def labels_filter(labels: Mapping[str, str]) -> str:
    """The API's filter expression for what carries all `labels`; ANY stands for any value."""
    return " AND ".join(
        f"(labels.{key}:*)" if value == ANY else f'(labels.{key}="{value}")'
        for key, value in sorted(labels.items())
    )
