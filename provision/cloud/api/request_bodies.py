"""The JSON bodies that Compute Engine is sent, and the check of a VmSpec before that. Pure.

Field names and types: Compute Engine API v1, resource `instances`. The rules for GPU machines:
Compute Engine, "Create an N1 VM that has attached GPUs", "GPU machine types" and "Limit the run
time of a VM".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from provision.cloud.api import oslogin
from provision.cloud.market import catalog, machine_choice, scheduling
from provision.cloud.market.shape_rules import check_shape
from provision.core.errors import SettingsError
from provision.core.model import VmSpec

METADATA_VALUE_LIMIT_BYTES = 256 * 1024

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}\Z")
_METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")


def standard_metadata(
    *, user: str, public_key: str, user_data: str = "", os_login: bool = False
) -> dict[str, str]:
    """Return the metadata of a GPU VM on Container-Optimized OS.

    `public_key` is one line `TYPE BASE64 [COMMENT]`; a key that is set at creation needs no time to
    propagate. Automatic updates are off, since a reboot could change the build and lose the driver
    (Container-Optimized OS, "Automatic updates"). The value for OS Login overrides the project's
    metadata. Where it is on, the guest ignores keys in metadata, so the key is left out.
    """
    items = {
        "cos-update-strategy": "update_disabled",
        "enable-guest-attributes": "TRUE",
        oslogin.METADATA_KEY: "TRUE" if os_login else "FALSE",
        "serial-port-logging-enable": "TRUE",
    }
    if not os_login:
        kind, blob, *comment = public_key.split()
        items["ssh-keys"] = f"{user}:{kind} {blob} {' '.join(comment) or user}"
    return {**items, "user-data": user_data} if user_data else items


def check_spec(spec: VmSpec) -> None:
    """Raise `SettingsError`, which names the key, for a spec that the API would refuse."""
    if not _NAME.match(spec.name):
        raise SettingsError(
            f"VM name {spec.name!r} is not possible",
            where="name",
            why="1 to 63 of a-z, 0-9 and '-', beginning with a letter, not ending with '-'",
            fix="choose a name such as dev",
        )
    scheduling.check_spec(spec)
    _check_labels(spec.labels)
    _check_metadata(spec.metadata)
    check_shape(
        spec.gpu,
        spec.gpu_count,
        spec.machine_type,
        spec.disk_gb,
        provisioning=spec.provisioning_model,
    )


def _check_labels(labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        if not (_LABEL_KEY.match(key) and _LABEL_VALUE.match(value)):
            raise SettingsError(
                f"label {key!r}: {value!r} is not possible",
                where="labels",
                why="keys and values are at most 63 of a-z, 0-9, '_' and '-'",
                fix="write the label in lower case",
            )


def _check_metadata(metadata: Mapping[str, str]) -> None:
    for key, value in metadata.items():
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


def insert_body(spec: VmSpec, zone: str, *, source_image: str) -> dict[str, Any]:
    """Return the body of `instances.insert`; `source_image` is an image's path, not a family's."""
    body: dict[str, Any] = {
        "name": spec.name,
        "machineType": f"zones/{zone}/machineTypes/{spec.machine_type}",
        "disks": [_boot_disk(spec, zone, source_image)],
        "networkInterfaces": [_network_interface(spec)],
        "serviceAccounts": [{"email": spec.service_account, "scopes": list(spec.scopes)}],
        "scheduling": scheduling.scheduling_field(spec),
        **scheduling.capacity_fields(spec),
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
    disk_type = f"zones/{zone}/diskTypes/{machine_choice.default_disk_type(spec.machine_type)}"
    parameters = {
        "sourceImage": source_image,
        "diskSizeGb": str(spec.disk_gb),
        "diskType": disk_type,
        "labels": dict(spec.labels),
    }
    return {"boot": True, "autoDelete": True, "initializeParams": parameters}


def _network_interface(spec: VmSpec) -> dict[str, Any]:
    if not spec.external_ip:
        return {"network": spec.network}
    access = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return {"network": spec.network, "accessConfigs": access}


def scheduling_with_limit(current: Mapping[str, Any], ttl_s: int) -> dict[str, Any]:
    """Return `current`, the field `scheduling` of a VM, with another time limit in seconds.

    The method setScheduling replaces the whole field, so all of it is sent again. A limit needs a
    termination action and excludes `terminationTime` (Compute Engine, "Limit the run time of a
    VM").
    """
    kept = {
        key: value
        for key, value in current.items()
        if key not in ("terminationTime", "maxRunDuration")
    }
    return {"instanceTerminationAction": "STOP", **kept, "maxRunDuration": {"seconds": str(ttl_s)}}
