"""MPS for the worker, on or off, in either topology. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from provision.core.model import Host
from provision.core.resource import Resource
from provision.mps.daemon.compute_mode import ComputeMode
from provision.mps.daemon.daemon import MpsAsChosen, MpsDaemon
from provision.mps.daemon.outside import MpsOutside
from provision.recipes.worker import DAEMON_SUFFIX, daemon_container_name
from provision.resources.boot import fragment
from provision.resources.driver import DRIVER_DIR
from provision.settings import Settings

FRAGMENT = "30-mps.sh"


def _plan(settings: Settings) -> dict[str, Any]:
    """What the settings ask of the daemon, and where it lives."""
    mps, worker = settings.mps, settings.worker.name
    return {
        "container": daemon_container_name(settings),
        "worker": worker if mps.topology == "containers" else "",
        "thread_percentage": mps.thread_percentage or 100,
        "memory_limit": mps.memory_limit,
        "cpus": mps.cpus,
        "gpu": mps.gpu,
    }


def mps(
    settings: Settings,
    *,
    present: bool = True,
    force: bool = False,
    host: Host | None = None,
    needs: tuple[str, ...] = (),
) -> list[Resource]:
    """The compute mode, the daemon, and the step that brings both back after a boot; `needs` are the containers."""
    daemon = MpsDaemon(
        name="mps", needs=needs, at_boot=present, present=present, force=force, **_plan(settings)
    )
    if not present:
        return [daemon, *no_mps(settings, host=host)]
    mode = replace(
        compute_mode(settings, "exclusive" if settings.mps.exclusive else "default", host),
        needs=needs,
    )
    as_found = (
        replace(compute_mode(settings, "", host), name="compute-mode-as-found")
        if mode.at_boot
        else None
    )
    return [mode, daemon, fragment("mps-steps", FRAGMENT, [mode, daemon], undo=as_found)]


def outside(settings: Settings, *, host: Host | None = None) -> Resource:
    """Programs that go on without MPS, which began before it did."""
    return MpsOutside(
        name="outside",
        needs=("mps",),
        container=daemon_container_name(settings),
        worker=settings.worker.name if settings.mps.topology == "containers" else "",
        gpu=settings.mps.gpu or "",
        directory=(host.driver_dir if host else None) or DRIVER_DIR.path,
    )


def compute_mode(settings: Settings, wanted: Any, host: Host | None) -> ComputeMode:
    """The GPU's compute mode, as `ComputeMode` says."""
    folder = (host.driver_dir if host else None) or DRIVER_DIR.path
    return ComputeMode(
        name="compute-mode",
        at_boot=wanted == "exclusive",
        wanted=wanted,
        gpu=settings.mps.gpu or "",
        directory=folder,
    )


def no_mps(settings: Settings, *, host: Host | None = None) -> list[Resource]:
    """The compute mode as it was found, and nothing that would start MPS at a boot. A daemon ends with its container."""
    return [compute_mode(settings, "", host), fragment("mps-steps", FRAGMENT, [])]


def elsewhere(settings: Settings, *, image: str = "", force: bool = False) -> Resource:
    """No daemon where the other topology has one; its clients have to leave first, and the `image` that is to follow has to be there."""
    other = (
        settings.worker.name
        if settings.mps.topology == "containers"
        else settings.worker.name + DAEMON_SUFFIX
    )
    return MpsDaemon(
        name="mps-elsewhere", container=other, present=False, alone=True, image=image, force=force
    )


def kept(settings: Settings) -> Resource:
    """MPS as it was chosen on this host: a container that was recreated gets its daemon back."""
    return MpsAsChosen(
        name="mps-as-chosen", needs=("container", "siblings"), fragment=FRAGMENT, **_plan(settings)
    )
