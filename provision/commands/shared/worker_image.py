"""The worker image that the settings describe: its Dockerfile and build context, its reference."""

from __future__ import annotations

from provision.cloud.market import catalog
from provision.cloud.market.machine_choice import choose_machine_type
from provision.core.worker_environment import threads_per_worker
from provision.image.dockerfile import Build, Copy, Family, ImageSpec, prepare
from provision.project.project import Project
from provision.recipes.worker import WorkerImage
from provision.resources.container import WORKSPACE


def worker_image(project: Project) -> WorkerImage:
    """The image of the worker container: the one that the settings name, or the one to build.

    Reads the files of the build context.
    """
    reference = project.settings.worker.image
    if reference is not None:
        return WorkerImage(reference)
    build = prepare_build(project)
    return WorkerImage(build.reference, build.context, build.digest)


def prepare_build(project: Project) -> Build:
    """Dockerfile and context of the image, as they are sent to a host."""
    context = project.settings.worker.context
    return prepare(
        _image_spec(project),
        project_dir=project.project_dir,
        context_dir=project.project_dir / context if context else None,
    )


def _image_spec(project: Project) -> ImageSpec:
    """The image as the settings describe it. The build context is copied into the workspace."""
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
    """The vCPUs of the Dataflow job's machine type where it is set, else those of the VM's."""
    settings = project.settings
    name = settings.dataflow.machine_type or choose_machine_type(
        settings.gpu, settings.gpu_count, settings.machine_type
    )
    bundled = catalog.bundled_machine_types().get(name)
    machine = bundled[1] if bundled else catalog.parse_n1(name)
    return machine.vcpus if machine else 1
