"""image.build: build the worker image on the hosts, or pull it."""

from __future__ import annotations

from provision.commands.shared import convergence
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.shared.worker_image import worker_image
from provision.core.model import Host
from provision.core.resource import Resource
from provision.project.project import Project
from provision.recipes.host import registry_hosts
from provision.recipes.worker import image_resource
from provision.resources import DockerEngine, RegistryLogin


def image_build(project: Project, targets: Targets) -> TaskResult:
    """Build the image on the hosts, or pull the one that the settings name."""
    image = worker_image(project)

    def recipe(target: Host) -> list[Resource]:
        del target
        login = RegistryLogin(name="registry-login", registries=registry_hosts(project.settings))
        return [DockerEngine(name="docker"), login, image_resource(image)]

    result = convergence.converge_targets(project, targets, recipe, "image.build")
    document = {**result.document, "reference": image.reference}
    return TaskResult(document, result.exit_code, result.text)
