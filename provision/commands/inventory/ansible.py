"""`inventory.ansible`: every host as an Ansible inventory."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from provision.commands.inventory.shared.facts import machine_document, user_labels
from provision.commands.shared.result import TaskResult
from provision.hosts.limit_patterns import EVERYTHING
from provision.hosts.ssh import ssh_program
from provision.project import host_key_pinning, inventory
from provision.project.inventory import Machine
from provision.project.project import Project

_FACTS = ("state", "zone", "machine_type", "gpu", "gpu_count", "labels")


def inventory_ansible(project: Project, limit: str | None = None) -> TaskResult:
    """Return the JSON that Ansible takes from an inventory script's `--list`.

    Every host's variables are under `_meta`, so that Ansible calls the script once (Ansible,
    "Developing dynamic inventory"). Each value that a filter can select is a group. Raises as
    `Inventory.matching`.
    """
    everything = inventory.fetch_inventory(project)
    machines = everything.matching(project, EVERYTHING if limit is None else limit)
    host_key_pinning.pin_keys_of_settings(project, [machine.host for machine in machines])
    groups: dict[str, dict[str, list[str]]] = {}
    for machine in machines:
        for group in _groups(machine):
            groups.setdefault(group, {"hosts": []})["hosts"].append(machine.host.name)
    document = {
        "_meta": {
            "hostvars": {machine.host.name: _variables(project, machine) for machine in machines}
        },
        "all": {"children": ["ungrouped", *sorted(groups)]},
        **dict(sorted(groups.items())),
    }
    return TaskResult(document, text=json.dumps(document, indent=2))


def _groups(machine: Machine) -> Iterator[str]:
    """The names of the machine's groups; an empty label has one, an unknown fact none."""
    facts = [("state", machine.state), ("gpu", machine.gpu), ("zone", machine.zone)]
    labels = [(f"label_{key}", value) for key, value in user_labels(machine)]
    for key, value in [*(fact for fact in facts if fact[1]), *labels]:
        yield re.sub(r"[^A-Za-z0-9_]", "_", f"{key}_{value}".rstrip("_"))


def _variables(project: Project, machine: Machine) -> dict[str, Any]:
    """How Ansible reaches the host, and the facts about it as `provision_…`."""
    host, document = machine.host, machine_document(machine)
    facts = {f"provision_{key}": document[key] for key in _FACTS}
    if host.is_local:
        return {"ansible_connection": "local", **facts}
    options = ssh_program.pin_options(host, host_key_pinning.known_hosts_files(project, host))
    if host.proxy:
        options.append(f"ProxyCommand={host.proxy_command}")
    connection: dict[str, Any] = {
        "ansible_host": host.address,
        "ansible_port": host.port,
        "ansible_user": host.user,
        "ansible_ssh_private_key_file": host.identity,
        "ansible_ssh_common_args": shlex.join(
            word for option in options for word in ("-o", option)
        ),
    }
    return {**{key: value for key, value in connection.items() if value is not None}, **facts}
