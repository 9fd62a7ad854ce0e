"""Requests about disks: listed over all zones, and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.cloud.api.client import ComputeClient
from provision.cloud.api.google_library import as_json
from provision.cloud.api.labels import labels_filter
from provision.cloud.api.protocol import Disk
from provision.cloud.api.resources import disk_from_json
from provision.core.errors import CloudNotFound


def list_disks(client: ComputeClient, labels: Mapping[str, str]) -> Sequence[Disk]:
    """Return all disks of the project that carry `labels`, by zone and name."""
    scopes = client.pages(
        "DisksClient",
        "aggregated_list",
        "the disks could not be listed",
        client.project,
        _disks_of_scope,
        filter=labels_filter(labels),
        max_results=500,
    )
    return sorted(
        (disk for disks in scopes for disk in disks), key=lambda disk: (disk.zone, disk.name)
    )


def _disks_of_scope(scope: Any) -> list[Disk]:
    _name, scoped = scope
    return [disk_from_json(as_json(disk)) for disk in scoped.disks]


def delete_disk(client: ComputeClient, name: str, zone: str, *, request_id: str) -> bool:
    """Delete the disk and wait until it is gone; False when there was none."""
    try:
        client.mutate(
            "delete",
            "the disk was not deleted",
            f"{zone}/{name}",
            zone,
            request_id,
            client="DisksClient",
            disk=name,
        )
    except CloudNotFound:
        return False
    return True
