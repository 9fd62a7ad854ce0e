"""`vm.user-data`: cloud-init user-data for a machine that was created elsewhere."""

from __future__ import annotations

from provision.commands.shared.result import TaskResult
from provision.commands.vm.shared.vm_spec import user_data
from provision.project.project import Project


def vm_user_data(project: Project) -> TaskResult:
    """Return user-data for Container-Optimized OS that runs the boot script at each boot."""
    text = user_data(project, powers_off=False)
    return TaskResult({"user_data": text}, text=text.rstrip("\n"))
