"""The recipe of the worker: its image, built or pulled, and its containers. Pure.

There are two topologies. `container`: one container, in which programs run side by side and MPS
with them. `containers`, as on Dataflow: a worker container for each SDK process, and one for the
MPS daemon, whose PID and IPC namespaces, pipe folder and logs the workers share (measured:
docs/facts.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from provision.core.model import Host
from provision.core.resource import Resource
from provision.resources import BuiltImage, Container, NoContainer, PulledImage, Siblings
from provision.resources.boot import fragment
from provision.resources.driver import DRIVER_DIR
from provision.settings import Settings

FRAGMENT = "20-worker.sh"
DAEMON_SUFFIX = "-mps"
"""Ends the name of the MPS daemon's container, and of the volume with its pipe folder."""
LOGS_SUFFIX = "-log"
"""Follows `DAEMON_SUFFIX` in the name of the volume with the daemon's logs."""


@dataclass(frozen=True)
class WorkerImage:
    """The image to run: a reference to pull, or a context to build under that reference.

    `context` is a gzipped tar, `digest` its digest.
    """

    reference: str
    context: bytes | None = None
    digest: str = ""


def worker(settings: Settings, image: WorkerImage, *, host: Host | None = None) -> list[Resource]:
    """Image, containers, and the boot step that starts them. Follows the recipe of the host."""
    containers = worker_containers(settings, image, host=host)
    return [image_resource(image), *containers, fragment("worker-steps", FRAGMENT, containers)]


def worker_without_image(
    settings: Settings, image: WorkerImage, *, host: Host | None = None, after: tuple[str, ...] = ()
) -> list[Resource]:
    """Containers and boot step, on a host that has the image and the driver.

    The containers wait for the resources named in `after`.
    """
    containers = worker_containers(settings, image, host=host)
    names = {container.name for container in containers}
    alone = [
        replace(
            container,
            needs=(*after, *(need for need in container.needs if need in names)),
            on_change_of=(),
        )
        for container in containers
    ]
    return [*alone, fragment("worker-steps", FRAGMENT, containers)]


def no_worker(settings: Settings) -> list[Resource]:
    """No containers, and no boot step that starts one. Image and workspace stay."""
    first = NoContainer(name="container", container=settings.worker.name)
    none = Container(name="none", container=settings.worker.name, image="")
    siblings = Siblings(name="siblings", first=none)
    boot_step = fragment("worker-steps", FRAGMENT, [])
    return [boot_step, siblings, first, _no_daemon_container(settings)]


def image_resource(image: WorkerImage) -> Resource:
    """The image on the host."""
    needs = ("docker", "registry-login")
    if image.context is None:
        return PulledImage(name="image", needs=needs, ref=image.reference)
    return BuiltImage(
        name="image", needs=needs, ref=image.reference, context=image.context, digest=image.digest
    )


def worker_containers(
    settings: Settings, image: WorkerImage, *, host: Host | None = None
) -> list[Resource]:
    """Every container of the topology, each after those that it depends on.

    The containers that only the other topology has are to be absent.
    """
    first = first_container(settings, image, host=host)
    siblings = Siblings(
        name="siblings",
        needs=("container",),
        at_boot=bool(first.joins),
        first=first,
        count=settings.worker.processes,
    )
    if not first.joins:
        return [first, siblings, _no_daemon_container(settings, needs=("container", "siblings"))]
    needs = tuple(name for name in first.needs if name != "mps-container")
    daemon = replace(
        first, name="mps-container", container=first.joins, needs=needs, joins="", shares=True
    )
    return [daemon, first, replace(siblings, on_change_of=first.on_change_of)]


def first_container(
    settings: Settings, image: WorkerImage, *, host: Host | None = None
) -> Container:
    """The first worker container as the settings describe it."""
    apart = settings.mps.topology == "containers"
    outside = ("image", "nvidia-smi") if settings.gpu else ("image",)
    shared = [f"{volume}:{folder}" for volume, folder in _shared_volumes(settings).items()]
    return Container(
        name="container",
        needs=(*outside, "mps-container") if apart else outside,
        on_change_of=("driver", "driver-mount") if settings.gpu else (),
        at_boot=True,
        container=settings.worker.name,
        image=image.reference,
        env={**mps_environment(settings), **settings.worker.env},
        volumes=(*settings.worker.volumes, *(shared if apart else ())),
        shm_size=settings.worker.shm_size,
        privileged=settings.worker.privileged,
        gpu=bool(settings.gpu),
        processes=settings.worker.processes,
        driver_dir=(host.driver_dir if host else None) or DRIVER_DIR.path,
        joins=settings.worker.name + DAEMON_SUFFIX if apart else "",
    )


def daemon_container_name(settings: Settings) -> str:
    """The name of the container in which the MPS daemon runs."""
    return settings.worker.name + (DAEMON_SUFFIX if settings.mps.topology == "containers" else "")


def mps_environment(settings: Settings) -> dict[str, str]:
    """The variables by which MPS clients and daemon find each other.

    Every process gets them: a client that cannot reach a daemon runs without MPS and does not
    report it.
    """
    return {
        "CUDA_MPS_PIPE_DIRECTORY": settings.mps.pipe_dir,
        "CUDA_MPS_LOG_DIRECTORY": settings.mps.log_dir,
    }


def _no_daemon_container(settings: Settings, *, needs: tuple[str, ...] = ()) -> NoContainer:
    name = settings.worker.name + DAEMON_SUFFIX
    workspace = Container(name="none", container=name, image="").work_volume
    volumes = (*_shared_volumes(settings), workspace)
    return NoContainer(name="mps-container", needs=needs, container=name, volumes=volumes)


def _shared_volumes(settings: Settings) -> dict[str, str]:
    """The volumes that the daemon's container shares with the workers, and where each is mounted.

    One holds the daemon's sockets, the other its logs.
    """
    name, mps = settings.worker.name + DAEMON_SUFFIX, settings.mps
    logs = {} if mps.log_dir == mps.pipe_dir else {name + LOGS_SUFFIX: mps.log_dir}
    return {name: mps.pipe_dir, **logs}
