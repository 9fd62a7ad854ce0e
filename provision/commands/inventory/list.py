"""The inventory for people, for programs, and for Ansible."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from provision.commands.shared.result import TaskResult
from provision.hosts.patterns import EVERYTHING
from provision.hosts.ssh import ssh_program
from provision.project import host_keys, inventory
from provision.project.inventory import Inventory, Machine
from provision.project.project import Project

_OURS = "provision-"
"""What our own labels begin with: they tell whose a VM is, not what it is for."""
_COLUMNS = ("name", "state", "gpu", "zone", "machine type", "address", "labels")


def inventory_list(project: Project, limit: str | None = None) -> TaskResult:
    """Every host as it is now, or those that a pattern means."""
    everything = inventory.fetch_inventory(project)
    found = everything.matching(project, EVERYTHING if limit is None else limit)
    hidden = [
        {"name": each.name or None, "zone": each.zone, "why": each.why}
        for each in everything.hidden
    ]
    return TaskResult(
        {"hosts": [_document(machine) for machine in found], "hidden": hidden},
        text=_table(found) if found else _nobody(everything),
    )


def _nobody(everything: Inventory) -> str:
    return "no hosts that could be looked at" if everything.hidden else "no hosts"


def _document(machine: Machine) -> dict[str, Any]:
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


def _table(found: Sequence[Machine]) -> str:
    rows = [_COLUMNS, *map(_row, found)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(machine: Machine) -> tuple[str, ...]:
    gpu = f"{machine.gpu_count} x {machine.gpu}" if machine.gpu_count > 1 else machine.gpu
    labels = ",".join(f"{key}={value}" for key, value in _labels(machine))
    cells = (
        machine.host.name,
        machine.state,
        gpu,
        machine.zone,
        machine.machine_type,
        machine.host.address,
        labels,
    )
    return tuple(cell or "-" for cell in cells)


def _labels(machine: Machine) -> list[tuple[str, str]]:
    return [
        (key, value) for key, value in sorted(machine.labels.items()) if not key.startswith(_OURS)
    ]


# --- Ansible --------------------------------------------------------------------------------------


def inventory_ansible(project: Project, limit: str | None = None) -> TaskResult:
    """The same as the JSON that Ansible takes from an inventory script's `--list` (Ansible, "Developing dynamic inventory").

    Every host's variables stand under `_meta`, so that Ansible asks once. Groups are made of what
    filters ask for.
    """
    found = inventory.fetch_inventory(project).matching(
        project, EVERYTHING if limit is None else limit
    )
    host_keys.pin_keys_of_settings(project, [machine.host for machine in found])
    groups: dict[str, dict[str, list[str]]] = {}
    for machine in found:
        for group in _groups(machine):
            groups.setdefault(group, {"hosts": []})["hosts"].append(machine.host.name)
    hostvars = {machine.host.name: _variables(project, machine) for machine in found}
    document = {
        "_meta": {"hostvars": hostvars},
        "all": {"children": ["ungrouped", *sorted(groups)]},
        **dict(sorted(groups.items())),
    }
    return TaskResult(document, text=json.dumps(document, indent=2))


def _groups(machine: Machine) -> Iterator[str]:
    pairs = [("state", machine.state), ("gpu", machine.gpu), ("zone", machine.zone)]
    pairs += [(f"label_{key}", value) for key, value in _labels(machine)]
    for key, value in pairs:
        if value or key.startswith("label_"):
            yield re.sub(r"[^A-Za-z0-9_]", "_", f"{key}_{value}".rstrip("_"))


def _variables(project: Project, machine: Machine) -> dict[str, Any]:
    host = machine.host
    document = _document(machine)
    ours = {
        f"provision_{key}": document[key]
        for key in ("state", "zone", "machine_type", "gpu", "gpu_count", "labels")
    }
    if host.is_local:
        return {"ansible_connection": "local", **ours}
    options = ssh_program.pin_options(host, host_keys.known_hosts_files(project, host))
    if host.proxy:
        options.append(f"ProxyCommand={host.proxy_command}")
    reached: dict[str, Any] = {
        "ansible_host": host.address,
        "ansible_port": host.port,
        "ansible_user": host.user,
        "ansible_ssh_private_key_file": host.identity,
        "ansible_ssh_common_args": shlex.join(
            word for option in options for word in ("-o", option)
        ),
    }
    return {**{key: value for key, value in reached.items() if value is not None}, **ours}
