"""The network `default` of a new project and its firewall rules, which admit SSH. Pure.

Source: Google Cloud, "VPC networks", pre-populated rules of the default network (priority 65534).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from provision.testing.compute.catalogue import CREATED_AT, Links, stable_id
from provision.testing.compute.errors import Json, not_found

NAME = "default"
_INSIDE = ["10.128.0.0/9"]
_ANYWHERE = ["0.0.0.0/0"]
DEFAULT_RULES: tuple[Mapping[str, Any], ...] = (
    {"name": "default-allow-icmp", "sourceRanges": _ANYWHERE, "allowed": [{"IPProtocol": "icmp"}]},
    {
        "name": "default-allow-internal",
        "sourceRanges": _INSIDE,
        "allowed": [
            {"IPProtocol": "tcp", "ports": ["0-65535"]},
            {"IPProtocol": "udp", "ports": ["0-65535"]},
            {"IPProtocol": "icmp"},
        ],
    },
    {
        "name": "default-allow-rdp",
        "sourceRanges": _ANYWHERE,
        "allowed": [{"IPProtocol": "tcp", "ports": ["3389"]}],
    },
    {
        "name": "default-allow-ssh",
        "sourceRanges": _ANYWHERE,
        "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
    },
)


def network(links: Links, project: str, name: str) -> Json:
    """The `networks` resource. Raises `ApiError` 404 for any other name."""
    path = f"projects/{project}/global/networks/{name}"
    if name != NAME:
        raise not_found(path)
    return {
        "kind": "compute#network",
        "id": stable_id(path),
        "creationTimestamp": CREATED_AT,
        "name": name,
        "selfLink": links.full(path),
        "autoCreateSubnetworks": True,
        "routingConfig": {"routingMode": "REGIONAL"},
    }


def firewalls(links: Links, project: str, rules: Iterable[Mapping[str, Any]]) -> list[Json]:
    """The `firewalls` resources of these rules; a field that a rule lacks gets its default."""
    return [_firewall(links, project, rule) for rule in rules]


def _firewall(links: Links, project: str, rule: Mapping[str, Any]) -> Json:
    path = f"projects/{project}/global/firewalls/{rule['name']}"
    return {
        "kind": "compute#firewall",
        "id": stable_id(path),
        "creationTimestamp": CREATED_AT,
        "selfLink": links.full(path),
        "network": links.full(f"projects/{project}/global/networks/{NAME}"),
        "priority": 65534,
        "direction": "INGRESS",
        "disabled": False,
        **rule,
    }
