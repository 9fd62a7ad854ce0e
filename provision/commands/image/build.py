"""The worker image: rendered, built."""

from __future__ import annotations

from pathlib import Path

from provision.cloud.market import catalog
from provision.commands.shared import convergence
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import UsageError
from provision.core.model import Host
from provision.core.resource import Resource
from provision.image.dockerfile import Build, Copy, Family, ImageSpec, prepare, threads_per_worker
from provision.project.project import Project
from provision.recipes.host import registry_hosts
from provision.recipes.worker import WorkerImage, image_resource
from provision.resources import DockerEngine, RegistryLogin
from provision.resources.container import WORKSPACE


def spec(project: Project) -> ImageSpec:
    """What the settings ask the image to be. The build context, where there is one, ends up in the workspace."""
    worker = project.settings.worker
    cores = _vcpus(project)
    return ImageSpec(
        family=Family(worker.base),
        python=worker.python,
        beam=worker.beam,
        base_image=worker.base_image,
        apt=tuple(worker.apt),
        requirements="".join(f"{line}\n" for line in worker.requirements),
        env=dict(worker.env),
        threads=threads_per_worker(cores, worker.processes or cores),
        copies=(Copy(".", WORKSPACE),) if worker.context else (),
    )


def _vcpus(project: Project) -> int:
    """The vCPUs of the machine that the settings ask for: the Dataflow job's where it names one, else the VM's."""
    settings = project.settings
    name = settings.dataflow.machine_type or catalog.machine_for(
        settings.gpu, settings.gpu_count, settings.machine_type
    )
    bundled = catalog.bundled_machine_types().get(name)
    machine = bundled[1] if bundled else catalog.parse_n1(name)
    return machine.vcpus if machine else 1


def build(project: Project) -> Build:
    """Dockerfile and context, as they would be sent."""
    context = project.settings.worker.context
    return prepare(
        spec(project),
        project_dir=project.project_dir,
        context_dir=project.project_dir / context if context else None,
    )


def worker_image(project: Project) -> WorkerImage:
    """The image that the container runs: the one that the settings name, or the one that is built."""
    reference = project.settings.worker.image
    if reference is not None:
        return WorkerImage(reference)
    built = build(project)
    return WorkerImage(built.reference, built.context, built.digest)


def image_render(project: Project, output: str | None = None) -> TaskResult:
    """The Dockerfile, on standard output or written into the folder `output`."""
    if project.settings.worker.image is not None:
        raise UsageError(
            "there is nothing to render",
            where="provision.worker.image",
            why=f"the image {project.settings.worker.image} is pulled as it is",
            fix="unset worker.image to build one",
        )
    built = build(project)
    document = {
        "reference": built.reference,
        "dockerfile": built.dockerfile,
        "context_bytes": len(built.context),
    }
    if output is None:
        return TaskResult(document, text=built.dockerfile.rstrip("\n"))
    path = Path(output) / "Dockerfile"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(built.dockerfile, encoding="utf-8")
    return TaskResult({**document, "path": str(path)}, text=f"wrote {path}")


def image_build(project: Project, targets: Targets) -> TaskResult:
    """Build the image on the hosts, or pull the one that the settings name."""
    image = worker_image(project)

    def recipe(target: Host) -> list[Resource]:
        del target
        login = RegistryLogin(name="registry-login", registries=registry_hosts(project.settings))
        return [DockerEngine(name="docker"), login, image_resource(image)]

    done = convergence.run(project, targets, recipe, "image.build")
    return TaskResult({**done.document, "reference": image.reference}, done.exit_code, done.text)
