"""dev.devcontainer: devcontainer.json for the worker container."""

from __future__ import annotations

from provision import templating
from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.shared.worker_image import worker_image
from provision.core.model import Facts
from provision.project.project import Project
from provision.recipes.worker import first_container
from provision.resources.container import WORKSPACE


def dev_devcontainer(project: Project, targets: Targets) -> TaskResult:
    """Render devcontainer.json with the options of the container that `dev.up` starts."""
    target = host_access.resolve_host(project, targets)
    worker = first_container(project.settings, worker_image(project), host=target)
    options = worker.editor_options(Facts(), gpu_count=project.settings.gpu_count)
    text = templating.devcontainer(
        name=worker.container,
        image=worker.image,
        options=[str(option) for option in options],
        volume=worker.work_volume,
        folder=WORKSPACE,
        project_dir=project.project_dir,
    )
    return TaskResult({"devcontainer": text}, text=text.rstrip("\n"))
