"""Which methods of the Compute Engine API v1 are emulated, and at which paths."""

from __future__ import annotations

from collections.abc import Iterator

from werkzeug.routing import Map, Rule

from provision.testing.compute import lifecycle

PREFIX = "/compute/v1"
_GLOBAL = f"{PREFIX}/projects/<project>"
_ZONE = f"{_GLOBAL}/zones/<zone>"
_ZONAL_READS = ("machineTypes", "acceleratorTypes", "instances", "disks", "reservations")
"""Collections that can be listed in a zone and over all of them."""


def _rules() -> Iterator[Rule]:
    """Endpoint = method id of the discovery document without its `compute.`."""

    def rule(verb: str, path: str, method: str) -> Rule:
        return Rule(path, endpoint=method, methods=[verb])

    yield rule("GET", _GLOBAL, "projects.get")
    yield rule("GET", f"{_GLOBAL}/zones", "zones.list")
    yield rule("GET", _ZONE, "zones.get")
    yield rule("GET", f"{_GLOBAL}/regions", "regions.list")
    yield rule("GET", f"{_GLOBAL}/regions/<name>", "regions.get")
    yield rule("GET", f"{_GLOBAL}/global/images", "images.list")
    yield rule("GET", f"{_GLOBAL}/global/images/<name>", "images.get")
    yield rule("GET", f"{_GLOBAL}/global/images/family/<name>", "images.getFromFamily")
    yield rule("GET", f"{_GLOBAL}/global/networks/<name>", "networks.get")
    yield rule("GET", f"{_GLOBAL}/global/firewalls", "firewalls.list")
    for collection in _ZONAL_READS:
        yield rule("GET", f"{_ZONE}/{collection}", f"{collection}.list")
        yield rule("GET", f"{_ZONE}/{collection}/<name>", f"{collection}.get")
        yield rule("GET", f"{_GLOBAL}/aggregated/{collection}", f"{collection}.aggregatedList")
    for collection in ("instances", "disks", "reservations"):
        yield rule("POST", f"{_ZONE}/{collection}", f"{collection}.insert")
        yield rule("DELETE", f"{_ZONE}/{collection}/<name>", f"{collection}.delete")
    yield rule("POST", f"{_ZONE}/disks/<name>/setLabels", "disks.setLabels")
    for verb in lifecycle.VERBS:
        if verb != "delete":
            yield rule("POST", f"{_ZONE}/instances/<name>/{verb}", f"instances.{verb}")
    yield rule("GET", f"{_ZONE}/instances/<name>/serialPort", "instances.getSerialPortOutput")
    yield rule(
        "GET", f"{_ZONE}/instances/<name>/getGuestAttributes", "instances.getGuestAttributes"
    )
    yield rule("GET", f"{_ZONE}/operations", "zoneOperations.list")
    yield rule("GET", f"{_ZONE}/operations/<name>", "zoneOperations.get")
    yield rule("POST", f"{_ZONE}/operations/<name>/wait", "zoneOperations.wait")


ROUTES = Map(list(_rules()))
METHODS = frozenset(str(rule.endpoint) for rule in ROUTES.iter_rules())
"""Every emulated method (`instances.insert`)."""
