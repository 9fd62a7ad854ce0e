"""Templates to text. The only package that imports jinja2.

`filters` quotes values for each language, `environment` finds and renders templates. The other
modules are named after what they render: cloud-init user-data, ssh_config, devcontainer.json.
"""

from __future__ import annotations

from provision.templating.cloud_init import (
    METADATA_URL,
    USER_DATA_LIMIT_BYTES,
    boot_unit,
    user_data,
)
from provision.templating.editor import devcontainer
from provision.templating.environment import render
from provision.templating.filters import FILTERS, IMAGE_REFERENCE
from provision.templating.openssh import ssh_config

__all__ = [
    "FILTERS",
    "IMAGE_REFERENCE",
    "METADATA_URL",
    "USER_DATA_LIMIT_BYTES",
    "boot_unit",
    "devcontainer",
    "render",
    "ssh_config",
    "user_data",
]
