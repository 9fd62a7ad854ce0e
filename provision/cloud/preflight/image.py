"""Whether the image of the settings supports the GPU. Pure.

Source: Container-Optimized OS, "Run GPU workloads" (milestones; no driver on Arm and dev images)
and its release notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from provision.cloud.market import catalog
from provision.cloud.market.catalog import GpuType, Shape
from provision.report.checks import Check, Verdict

_MILESTONE = re.compile(r"cos-(?:[a-z]+(?:64)?-)*(\d+)(?:-|\Z)")
_LTS_EVERY = 4
"""LTS milestones come every four: 117, 121, 125, 129 (Container-Optimized OS, release notes)."""
_RETIRED = ("OBSOLETE", "DELETED")


def milestone(image: str) -> int | None:
    """Return the milestone in a COS name: 125 for `cos-125-lts`; None without one.

    Images (`cos-stable-129-19506-448-36`) and families have it in their names.
    """
    match = _MILESTONE.match(image)
    return int(match[1]) if match else None


def image_check(resource: Mapping[str, Any], shape: Shape) -> Check:
    """Return the check whether the image can be used and supports the shape's GPU."""
    name = str(resource["name"])
    state = str(resource.get("deprecated", {}).get("state", "ACTIVE"))
    if state in _RETIRED:
        what = f"the image {name} can no longer be used"
        return _failed(what, f"deprecated.state is {state}")
    if shape.gpu is not None:
        problem = _gpu_problem(resource, name, catalog.gpu_type(shape.gpu))
        if problem is not None:
            return problem
    if state == "DEPRECATED":
        return Check(
            "image",
            Verdict.WARN,
            f"the image {name} is deprecated",
            "deprecated.state is DEPRECATED: it works by its name, and a newer one replaces it",
            "set provision.image to its family",
        )
    number = milestone(name)
    return Check("image", Verdict.OK, f"{name}, milestone {number}" if number else name)


def _gpu_problem(resource: Mapping[str, Any], name: str, gpu: GpuType) -> Check | None:
    """Return a failure or a warning when the image does not support the GPU; else None."""
    number = milestone(name)
    if resource.get("architecture") == "ARM64" or "arm64" in name:
        what = f"the image {name} is an Arm image"
        return _failed(what, "COS installs GPU drivers on x86 alone")
    if name.startswith("cos-dev-") or resource.get("family") == "cos-dev":
        what = f"the image {name} is of the dev channel"
        return _failed(what, "COS installs no GPU driver on it")
    least = gpu.cos_min_milestone
    if number is not None and least is not None and number < least:
        why = f"{gpu.accelerator} needs milestone {least} or newer ({gpu.cos_basis})"
        return _failed(f"the image {name} is too old for the GPU", why)
    if number is not None and number in gpu.cos_avoid_milestones:
        what = f"the image {name} is known for trouble with {gpu.accelerator}"
        fix = f"set provision.image: cos-{number - _LTS_EVERY}-lts"
        return Check("image", Verdict.WARN, what, gpu.cos_basis, fix)
    return None


def _failed(what: str, why: str) -> Check:
    return Check("image", Verdict.FAIL, what, why, "set provision.image: cos-125-lts")
