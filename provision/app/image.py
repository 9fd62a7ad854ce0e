"""The worker image: rendered, built."""

from __future__ import annotations

from pathlib import Path

from provision.app import converging
from provision.app.session import Done, Session, Targets
from provision.cloud import catalog
from provision.dataflow.image import Build, Copy, Family, ImageSpec, prepare, threads_per_worker
from provision.errors import UsageError
from provision.model import Host
from provision.recipes.cos import registries
from provision.recipes.worker import WorkerImage
from provision.recipes.worker import image as image_resource
from provision.resource import Resource
from provision.resources import DockerEngine, RegistryLogin
from provision.resources.container import WORKSPACE


def spec(session: Session) -> ImageSpec:
    """What the settings ask the image to be. The build context, where there is one, ends up in the workspace."""
    worker = session.settings.worker
    cores = _vcpus(session)
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


def _vcpus(session: Session) -> int:
    """The vCPUs of the machine that the settings ask for: the Dataflow job's where it names one, else the VM's."""
    settings = session.settings
    name = settings.dataflow.machine_type or catalog.machine_for(settings.gpu, settings.gpu_count, settings.machine_type)
    bundled = catalog.bundled_machine_types().get(name)
    machine = bundled[1] if bundled else catalog.parse_n1(name)
    return machine.vcpus if machine else 1


def build(session: Session) -> Build:
    """Dockerfile and context, as they would be sent."""
    context = session.settings.worker.context
    return prepare(spec(session), project_dir=session.project_dir, context_dir=session.project_dir / context if context else None)


def worker_image(session: Session) -> WorkerImage:
    """The image that the container runs: the one that the settings name, or the one that is built."""
    reference = session.settings.worker.image
    if reference is not None:
        return WorkerImage(reference)
    built = build(session)
    return WorkerImage(built.reference, built.context, built.digest)


def image_render(session: Session, output: str | None = None) -> Done:
    """The Dockerfile, on standard output or written into the folder `output`."""
    if session.settings.worker.image is not None:
        raise UsageError(
            "there is nothing to render",
            where="provision.worker.image",
            why=f"the image {session.settings.worker.image} is pulled as it is",
            fix="unset worker.image to build one",
        )
    built = build(session)
    document = {"reference": built.reference, "dockerfile": built.dockerfile, "context_bytes": len(built.context)}
    if output is None:
        return Done(document, text=built.dockerfile.rstrip("\n"))
    path = Path(output) / "Dockerfile"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(built.dockerfile, encoding="utf-8")
    return Done({**document, "path": str(path)}, text=f"wrote {path}")


def image_build(session: Session, targets: Targets) -> Done:
    """Build the image on the hosts, or pull the one that the settings name."""
    image = worker_image(session)

    def recipe(target: Host) -> list[Resource]:
        del target
        login = RegistryLogin(name="registry-login", registries=registries(session.settings))
        return [DockerEngine(name="docker"), login, image_resource(image)]

    done = converging.run(session, targets, recipe, "image.build")
    return Done({**done.document, "reference": image.reference}, done.exit_code, done.text)
