"""A VM specification for tests that need few of its fields."""

from __future__ import annotations

from typing import Any

from provision.core.model import VmSpec

T4 = {"machine_type": "n1-standard-8", "gpu": "nvidia-tesla-t4"}


def vm_spec(**changed: Any) -> VmSpec:
    """A VM `dev` of `me` with one L4 and eight hours to live; `changed` overrides fields."""
    plain: dict[str, Any] = {
        "name": "dev",
        "machine_type": "g2-standard-8",
        "gpu": "nvidia-l4",
        "gpu_count": 1,
        "disk_gb": 200,
        "image": "cos-125-lts",
        "image_project": "cos-cloud",
        "ttl_s": 8 * 3600,
        "labels": {"provision-owner": "me"},
        "metadata": {},
    }
    return VmSpec(**{**plain, **changed})
