"""dev.down: remove the worker container."""

from __future__ import annotations

from provision.commands.shared import convergence
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.model import Host
from provision.core.resource import Resource
from provision.project.project import Project
from provision.recipes.mps import no_mps
from provision.recipes.worker import no_worker


def dev_down(project: Project, targets: Targets) -> TaskResult:
    """Remove the containers of workers and MPS; the image and the workspace stay."""

    def recipe(target: Host) -> list[Resource]:
        return [*no_mps(project.settings, host=target), *no_worker(project.settings)]

    return convergence.converge_targets(project, targets, recipe, "dev.down")
