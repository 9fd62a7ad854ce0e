"""`vm.provision`: hosts converged to the host recipe."""

from __future__ import annotations

from provision.commands.shared import convergence
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.project.project import Project


def vm_provision(project: Project, targets: Targets) -> TaskResult:
    """Converge hosts to the recipe of the GPU host and to the user's extra recipes."""
    return convergence.converge_targets(
        project,
        targets,
        lambda target: convergence.host_recipe_for(project, target),
        "vm.provision",
    )
