"""The facts about a host that the inventory commands print."""

from __future__ import annotations

from typing import Any

from provision.project.inventory import Machine

_RESERVED = "provision-"
"""Prefix of the toolkit's own labels, which identify a VM's project, not its use."""


def machine_document(machine: Machine) -> dict[str, Any]:
    """Return a host for `--json`; None for a fact that is unknown."""
    host = machine.host
    return {
        "name": host.name,
        "source": machine.source,
        "state": machine.state,
        "zone": machine.zone or None,
        "machine_type": machine.machine_type or None,
        "gpu": machine.gpu or None,
        "gpu_count": machine.gpu_count,
        "address": host.address or None,
        "port": None if host.is_local else host.port,
        "user": host.user,
        "instance_id": machine.instance_id or None,
        "labels": machine.labels,
    }


def user_labels(machine: Machine) -> list[tuple[str, str]]:
    """Return the labels without the toolkit's own, by key."""
    labels = sorted(machine.labels.items())
    return [(key, value) for key, value in labels if not key.startswith(_RESERVED)]
