"""The labels that this package puts on VMs and disks, and the filters that find them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from provision.core.model import Vm

OWNER_LABEL = "provision-owner"
"""Label with the owner; a VM with another value, or without the label, is never changed."""
REQUEST_LABEL = "provision-request"
"""Label with the requestId of the insert that made the VM: proof of which run made it."""
IDLE_DELETE_LABEL = "provision-idle-delete"
"""Label with the setting `idle_delete` that the VM was made with; `vm.gc` obeys the label."""
EXTENDED_LABEL = "provision-extended"
"""Label with the usual time limit of a VM while one of its runs has another; see
`cloud/lifecycle/ttl_extension.py`."""
IMAGE_LABEL = "provision-image"
"""Label with the name of the VM's image, since an instance resource does not contain it."""
ANY = "*"
"""Value in a filter that matches any value of the label."""


def label_value(text: str) -> str:
    """Return any text as a valid label value: at most 63 of a-z, 0-9, '_' and '-'."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-")[:63]


def labels_filter(labels: Mapping[str, str]) -> str:
    """Return the API's filter expression for resources with all `labels`; ANY matches any value."""
    return " AND ".join(
        f"(labels.{key}:*)" if value == ANY else f'(labels.{key}="{value}")'
        for key, value in sorted(labels.items())
    )


def is_owned_by(vm: Vm, owner: str) -> bool:
    """Return whether the VM carries the owner label with this value."""
    return vm.labels.get(OWNER_LABEL) == owner
