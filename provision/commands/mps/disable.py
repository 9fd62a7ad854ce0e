"""mps.disable: stop the MPS daemon, and restore folders and compute mode."""

from __future__ import annotations

from provision.commands.shared import convergence
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.model import Host
from provision.core.resource import Resource
from provision.project.project import Project
from provision.recipes.mps import mps, no_mps_in_other_topology


def mps_disable(project: Project, targets: Targets, *, force: bool = False) -> TaskResult:
    """Stop daemon and server on every host, in either topology.

    Waits a while for clients to end, then fails and lists them; with `force`, MPS terminates them.
    """

    def recipe(target: Host) -> list[Resource]:
        own = mps(project.settings, present=False, force=force, host=target)
        return [no_mps_in_other_topology(project.settings, force=force), *own]

    return convergence.converge_targets(project, targets, recipe, "mps.disable")
