"""The worker: its image, built or pulled, and the container in which code runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from provision.model import Host
from provision.resource import Resource
from provision.resources import BuiltImage, Container, NoContainer, PulledImage
from provision.resources.boot import fragment
from provision.resources.gpu import DRIVER_DIR
from provision.settings import Settings

FRAGMENT = "20-worker.sh"


@dataclass(frozen=True)
class WorkerImage:
    """The image to run: a reference to pull, or a context (gzipped tar) with its digest to build under that reference."""

    reference: str
    context: bytes | None = None
    digest: str = ""


def image(built: WorkerImage) -> Resource:
    """The image on the host."""
    needs = ("docker", "registry-login")
    if built.context is None:
        return PulledImage(name="image", needs=needs, ref=built.reference)
    return BuiltImage(name="image", needs=needs, ref=built.reference, context=built.context, digest=built.digest)


def container(settings: Settings, built: WorkerImage, *, host: Host | None = None) -> Container:
    """The container as the settings describe it."""
    changes = ("driver", "driver-mount") if settings.gpu else ()
    return Container(
        name="container",
        needs=("image", "nvidia-smi") if settings.gpu else ("image",),
        on_change_of=changes,
        at_boot=True,
        container=settings.worker.name,
        image=built.reference,
        env={**mps_environment(settings), **settings.worker.env},
        volumes=tuple(settings.worker.volumes),
        shm_size=settings.worker.shm_size,
        privileged=settings.worker.privileged,
        gpu=bool(settings.gpu),
        processes=settings.worker.processes,
        driver_dir=(host.driver_dir if host else None) or DRIVER_DIR.path,
    )


def mps_environment(settings: Settings) -> dict[str, str]:
    """Where MPS clients and daemon meet. Given to every process, since one that cannot reach a daemon runs without MPS in silence."""
    return {"CUDA_MPS_PIPE_DIRECTORY": settings.mps.pipe_dir, "CUDA_MPS_LOG_DIRECTORY": settings.mps.log_dir}


def worker(settings: Settings, built: WorkerImage, *, host: Host | None = None) -> list[Resource]:
    """Image, container, and the step that starts the container again after a boot. Follows the recipe `cos`."""
    box = container(settings, built, host=host)
    return [image(built), box, fragment("worker-steps", FRAGMENT, [box])]


def no_worker(settings: Settings) -> list[Resource]:
    """The container gone, and nothing left that would start it at a boot. Its image and workspace stay."""
    gone = NoContainer(name="container", container=settings.worker.name)
    return [fragment("worker-steps", FRAGMENT, []), gone]
