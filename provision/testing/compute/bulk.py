"""Zonal `instances.bulkInsert`: one request, many instances, all or at least `minCount` of them. Pure.

Source: Compute Engine API, instances.bulkInsert, and "About bulk creation of VMs".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from provision.testing.compute.errors import Json, invalid, invalid_field

MAX_INSTANCES = 5000


@dataclass(frozen=True)
class Bulk:
    """The instances that are asked for, as bodies of `instances.insert`, and how many of them are enough."""

    bodies: Sequence[Json]
    least: int


def read_bulk(body: Mapping[str, Any], zone: str, existing: Collection[str]) -> Bulk:
    """Take a request apart; 400 for one that contradicts itself."""
    for field in ("locationPolicy", "instanceFlexibilityPolicy"):
        if field in body:
            raise invalid_field(field, "", "The field is allowed in regional requests only.")
    properties = body.get("instanceProperties")
    if not properties:
        raise invalid_field(
            "instanceProperties",
            "",
            "Instance properties are required; templates are not emulated.",
        )
    each = body.get("perInstanceProperties", {})
    count = int(body.get("count", len(each)))
    least = int(body.get("minCount", count))
    if not 1 <= count <= MAX_INSTANCES or not 1 <= least <= count:
        raise invalid(
            f"The count must be between 1 and {MAX_INSTANCES}, and minCount between 1 and the count."
        )
    if each and body.get("namePattern"):
        raise invalid("Only one of namePattern and perInstanceProperties can be specified.")
    if each and len(each) != count:
        raise invalid("The count must match the number of perInstanceProperties.")
    names = sorted(each) if each else _names(str(body.get("namePattern", "")), count, existing)
    return Bulk([_body(properties, name, zone) for name in names], least)


def _names(pattern: str, count: int, existing: Collection[str]) -> list[str]:
    match = re.fullmatch(r"([^#]*)(#{1,18})([^#]*)", pattern)
    if match is None:
        raise invalid_field(
            "namePattern", pattern, "It must contain one sequence of 1 to 18 characters '#'."
        )
    before, hashes, after = match.groups()
    of_pattern = re.compile(rf"{re.escape(before)}(\d{{{len(hashes)},}}){re.escape(after)}")
    taken = [int(found[1]) for name in existing if (found := of_pattern.fullmatch(name))]
    first = max(taken, default=0) + 1
    return [f"{before}{number:0{len(hashes)}d}{after}" for number in range(first, first + count)]


def _body(properties: Mapping[str, Any], name: str, zone: str) -> Json:
    """One instance: types stand by their bare names in instance properties, as paths in an instance."""
    body = {**deepcopy(dict(properties)), "name": name}
    body["machineType"] = f"zones/{zone}/machineTypes/{properties.get('machineType', '')}"
    for accelerator in body.get("guestAccelerators", ()):
        accelerator["acceleratorType"] = (
            f"zones/{zone}/acceleratorTypes/{accelerator.get('acceleratorType', '')}"
        )
    return body


def metadata(zone: str, asked: int, made: int) -> Json:
    """How the request ended, as its operation tells it."""
    counts = {"targetVmCount": asked, "createdVmCount": made, "failedToCreateVmCount": asked - made}
    return {"perLocationStatus": {f"zones/{zone}": {**counts, "status": "DONE"}}}
