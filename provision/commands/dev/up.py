"""dev.up: bring up host, worker image and container."""

from __future__ import annotations

from provision.commands.mps.shared.compute_mode import restore_compute_mode_after_failure
from provision.commands.shared import convergence, host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.shared.worker_image import worker_image
from provision.core.model import Host
from provision.core.resource import Resource
from provision.project.project import Project
from provision.recipes import worker
from provision.recipes.mps import mps_as_chosen


def dev_up(project: Project, targets: Targets) -> TaskResult:
    """Converge host, worker image and container; MPS too where it was enabled before.

    Where MPS does not come up, the compute mode of the GPU is restored.
    """
    image = worker_image(project)

    def recipe(target: Host) -> list[Resource]:
        own = worker(project.settings, image, host=target)
        return [
            *convergence.host_recipe_for(project, target),
            *own,
            mps_as_chosen(project.settings),
        ]

    chosen = host_access.resolve_hosts(project, targets)
    finished = convergence.converge_hosts(project, targets, chosen, recipe, "dev.up")
    restore_compute_mode_after_failure(project, targets, chosen, finished.reports)
    return convergence.task_result(finished, check=targets.check)
