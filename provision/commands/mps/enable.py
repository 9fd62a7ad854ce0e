"""mps.enable: start the MPS daemon as the settings plan it, and prove that a client attaches."""

from __future__ import annotations

from provision.commands.mps.shared.compute_mode import restore_compute_mode_after_failure
from provision.commands.shared import convergence, host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.shared.worker_image import worker_image
from provision.core.model import Host
from provision.core.resource import Resource
from provision.project.project import Project
from provision.recipes.mps import mps, no_mps_in_other_topology, programs_outside_mps
from provision.recipes.worker import worker_without_image


def mps_enable(project: Project, targets: Targets) -> TaskResult:
    """Start daemon and server on every host, attach a client of each container, repeat at boot.

    A changed topology drains the clients and recreates the containers first. Costs one exchange to
    probe and one to change; a changed topology costs one more for each step.
    """
    image = worker_image(project)

    def recipe(target: Host) -> list[Resource]:
        settings = project.settings
        other_daemon = no_mps_in_other_topology(settings, image=image.reference)
        containers = worker_without_image(settings, image, host=target, after=(other_daemon.name,))
        needs = tuple(container.name for container in containers)
        steps = [other_daemon, *containers, *mps(settings, host=target, needs=needs)]
        return steps if targets.check else [*steps, programs_outside_mps(settings, host=target)]

    hosts = host_access.resolve_hosts(project, targets)
    finished = convergence.converge_hosts(project, targets, hosts, recipe, "mps.enable")
    restore_compute_mode_after_failure(project, targets, hosts, finished.reports)
    return convergence.task_result(finished, check=targets.check)
