"""The inventory: every host of the settings, and every VM of the project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import LIMIT, TaskSpec

if TYPE_CHECKING:
    from provision.cli.execution import Run
    from provision.commands.shared.result import TaskResult


@command(TaskSpec("inventory.list", prints_result=True), about={"limit": LIMIT})
def list_(run: Run, *, limit: str | None = None) -> TaskResult:
    """List every host: those of the settings and the VMs.

    It asks the cloud once, for the VMs of this project.
    """
    from provision.commands.inventory.list import inventory_list

    return inventory_list(run.project, limit=limit)


@command(TaskSpec("inventory.ansible", prints_result=True), about={"limit": LIMIT})
def ansible(run: Run, *, limit: str | None = None) -> TaskResult:
    """Print the inventory in Ansible's format for inventory scripts.

    Groups come from state, gpu, zone and labels: state_running, gpu_nvidia_l4,
    zone_us_central1_a, label_team_vision.
    """
    from provision.commands.inventory.ansible import inventory_ansible

    return inventory_ansible(run.project, limit=limit)
