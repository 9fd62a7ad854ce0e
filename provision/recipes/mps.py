"""MPS for the worker, on or off, in either topology. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from provision.core.model import Host
from provision.core.resource import Resource
from provision.mps.daemon.compute_mode import ComputeMode, Mode
from provision.mps.daemon.daemon import MpsAsChosen, MpsDaemon
from provision.mps.daemon.outside import MpsOutside
from provision.recipes.worker import DAEMON_SUFFIX, daemon_container_name
from provision.resources.boot import fragment
from provision.resources.driver import DRIVER_DIR
from provision.settings import Settings

FRAGMENT = "30-mps.sh"
"""The boot fragment of MPS. Its presence is the host's memory that MPS was enabled."""


def mps(
    settings: Settings,
    *,
    present: bool = True,
    force: bool = False,
    host: Host | None = None,
    needs: tuple[str, ...] = (),
) -> list[Resource]:
    """The compute mode, the daemon, and the step that restores both at boot.

    `needs` are the containers' resources.
    """
    daemon = MpsDaemon(
        name="mps", needs=needs, at_boot=present, present=present, force=force, **_plan(settings)
    )
    if not present:
        return [daemon, *no_mps(settings, host=host)]
    wanted: Mode = "exclusive" if settings.mps.exclusive else "default"
    mode = replace(compute_mode(settings, wanted, host), needs=needs)
    undo = (
        replace(compute_mode(settings, "", host), name="compute-mode-as-found")
        if mode.at_boot
        else None
    )
    return [mode, daemon, fragment("mps-steps", FRAGMENT, [mode, daemon], undo=undo)]


def no_mps(settings: Settings, *, host: Host | None = None) -> list[Resource]:
    """Resources that restore the compute mode and leave no MPS step at boot.

    A daemon ends with its container.
    """
    return [compute_mode(settings, "", host), fragment("mps-steps", FRAGMENT, [])]


def mps_as_chosen(settings: Settings) -> Resource:
    """The daemon again in a container that was recreated, where MPS was enabled on the host."""
    return MpsAsChosen(
        name="mps-as-chosen", needs=("container", "siblings"), fragment=FRAGMENT, **_plan(settings)
    )


def no_mps_in_other_topology(
    settings: Settings, *, image: str = "", force: bool = False
) -> Resource:
    """No daemon in the container that the other topology has for it.

    Its clients end first, and nothing ends before `image`, that of the new containers, is on the
    host.
    """
    worker = settings.worker.name
    other = worker if settings.mps.topology == "containers" else worker + DAEMON_SUFFIX
    return MpsDaemon(
        name="mps-elsewhere",
        container=other,
        present=False,
        skip_joined=True,
        image=image,
        force=force,
    )


def programs_outside_mps(settings: Settings, *, host: Host | None = None) -> Resource:
    """A report of the programs that started before MPS did and run on without it."""
    return MpsOutside(
        name="outside",
        needs=("mps",),
        container=daemon_container_name(settings),
        worker=settings.worker.name if settings.mps.topology == "containers" else "",
        gpu=settings.mps.gpu or "",
        directory=_driver_dir(host),
    )


def compute_mode(settings: Settings, wanted: Mode, host: Host | None) -> ComputeMode:
    """The GPU's compute mode; EXCLUSIVE_PROCESS is set again at boot."""
    return ComputeMode(
        name="compute-mode",
        at_boot=wanted == "exclusive",
        wanted=wanted,
        gpu=settings.mps.gpu or "",
        directory=_driver_dir(host),
    )


def _driver_dir(host: Host | None) -> str:
    return (host.driver_dir if host else None) or DRIVER_DIR.path


def _plan(settings: Settings) -> dict[str, Any]:
    """What the settings ask of the daemon, and its container."""
    mps_settings = settings.mps
    is_apart = mps_settings.topology == "containers"
    return {
        "container": daemon_container_name(settings),
        "worker": settings.worker.name if is_apart else "",
        "thread_percentage": mps_settings.thread_percentage or 100,
        "memory_limit": mps_settings.memory_limit,
        "cpus": mps_settings.cpus,
        "gpu": mps_settings.gpu,
    }
