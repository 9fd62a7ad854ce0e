"""MPS in the worker container, on or off. Pure."""

from __future__ import annotations

from provision.resource import Resource
from provision.resources import MpsAsChosen, MpsDaemon
from provision.resources.boot import fragment
from provision.settings import Settings

FRAGMENT = "30-mps.sh"


def mps(settings: Settings, *, present: bool = True) -> list[Resource]:
    """The daemon, and the step that starts it again after a boot."""
    daemon = MpsDaemon(
        name="mps",
        at_boot=present,
        present=present,
        container=settings.worker.name,
        thread_percentage=settings.mps.thread_percentage or 100,
    )
    return [daemon, fragment("mps-steps", FRAGMENT, [daemon])]


def no_mps() -> list[Resource]:
    """Nothing that would start the daemon at a boot. The daemon itself ends with its container."""
    return [fragment("mps-steps", FRAGMENT, [])]


def kept(settings: Settings) -> Resource:
    """MPS as it was chosen on this host: a container that was recreated gets its daemon back."""
    return MpsAsChosen(
        name="mps-as-chosen",
        needs=("container",),
        container=settings.worker.name,
        thread_percentage=settings.mps.thread_percentage or 100,
        fragment=FRAGMENT,
    )
