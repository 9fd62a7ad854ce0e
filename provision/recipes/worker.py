"""The worker: its image, built or pulled, and the container, or containers, in which code runs. Pure.

Two topologies. `container`: one container, in which programs run side by side and MPS with them.
`containers`, as Dataflow has it: one worker container for each SDK process, and one for the MPS
daemon, whose PID and IPC namespaces, pipe folder and logs the workers share (measured:
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
"""What the name of the MPS daemon's container ends with, and of the volume with its pipe folder."""
LOGS_SUFFIX = "-log"
"""What the name of the volume with its logs ends with, after that."""


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
    return BuiltImage(
        name="image", needs=needs, ref=built.reference, context=built.context, digest=built.digest
    )


def container(settings: Settings, built: WorkerImage, *, host: Host | None = None) -> Container:
    """The first worker container as the settings describe it."""
    apart = settings.mps.topology == "containers"
    changes = ("driver", "driver-mount") if settings.gpu else ()
    shared = (
        tuple(f"{volume}:{folder}" for volume, folder in _shared(settings).items()) if apart else ()
    )
    outside = ("image", "nvidia-smi") if settings.gpu else ("image",)
    return Container(
        name="container",
        needs=(*outside, "mps-container") if apart else outside,
        on_change_of=changes,
        at_boot=True,
        container=settings.worker.name,
        image=built.reference,
        env={**mps_environment(settings), **settings.worker.env},
        volumes=(*settings.worker.volumes, *shared),
        shm_size=settings.worker.shm_size,
        privileged=settings.worker.privileged,
        gpu=bool(settings.gpu),
        processes=settings.worker.processes,
        driver_dir=(host.driver_dir if host else None) or DRIVER_DIR.path,
        joins=settings.worker.name + DAEMON_SUFFIX if apart else "",
    )


def containers(
    settings: Settings, built: WorkerImage, *, host: Host | None = None
) -> list[Resource]:
    """Every container of the topology, in the order in which they depend on one another; those of the other one are gone."""
    first = container(settings, built, host=host)
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
    own = replace(
        first, name="mps-container", container=first.joins, needs=needs, joins="", shares=True
    )
    return [own, first, replace(siblings, on_change_of=first.on_change_of)]


def containers_alone(
    settings: Settings, built: WorkerImage, *, host: Host | None = None, after: tuple[str, ...] = ()
) -> list[Resource]:
    """The containers, with their step at a boot, on a host whose image and driver are as they should be; they wait for `after`."""
    boxes = containers(settings, built, host=host)
    names = {box.name for box in boxes}
    alone = [
        replace(
            box, needs=(*after, *(need for need in box.needs if need in names)), on_change_of=()
        )
        for box in boxes
    ]
    return [*alone, fragment("worker-steps", FRAGMENT, boxes)]


def daemon_container(settings: Settings) -> str:
    """The container in which the MPS daemon runs."""
    return settings.worker.name + (DAEMON_SUFFIX if settings.mps.topology == "containers" else "")


def mps_environment(settings: Settings) -> dict[str, str]:
    """Where MPS clients and daemon meet. Given to every process, since one that cannot reach a daemon runs without MPS in silence."""
    return {
        "CUDA_MPS_PIPE_DIRECTORY": settings.mps.pipe_dir,
        "CUDA_MPS_LOG_DIRECTORY": settings.mps.log_dir,
    }


def worker(settings: Settings, built: WorkerImage, *, host: Host | None = None) -> list[Resource]:
    """Image, containers, and the step that starts them again after a boot. Follows the recipe `cos`."""
    boxes = containers(settings, built, host=host)
    return [image(built), *boxes, fragment("worker-steps", FRAGMENT, boxes)]


def _no_daemon_container(settings: Settings, *, needs: tuple[str, ...] = ()) -> NoContainer:
    name = settings.worker.name + DAEMON_SUFFIX
    own = Container(name="none", container=name, image="").work_volume
    return NoContainer(
        name="mps-container", needs=needs, container=name, volumes=(*_shared(settings), own)
    )


def _shared(settings: Settings) -> dict[str, str]:
    """Volumes that the daemon's container shares with the workers, and the folder of each: its sockets, and its logs."""
    name, mps = settings.worker.name + DAEMON_SUFFIX, settings.mps
    logs = {} if mps.log_dir == mps.pipe_dir else {name + LOGS_SUFFIX: mps.log_dir}
    return {name: mps.pipe_dir, **logs}


def no_worker(settings: Settings) -> list[Resource]:
    """The containers gone, and nothing left that would start one at a boot. Image and workspace stay."""
    gone = NoContainer(name="container", container=settings.worker.name)
    nobody = Siblings(
        name="siblings", first=Container(name="none", container=settings.worker.name, image="")
    )
    return [fragment("worker-steps", FRAGMENT, []), nobody, gone, _no_daemon_container(settings)]
