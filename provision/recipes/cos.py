"""The GPU host: GPU, Docker, driver, executable driver folder, registry login, and all of it again after a boot. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from provision.core.model import Host
from provision.core.resource import Resource
from provision.resources import (
    BootRunner,
    DockerEngine,
    Driver,
    ExecBindMount,
    Gpu,
    IdleStop,
    NvidiaSmi,
    RegistryLogin,
    Unit,
)
from provision.resources.boot import BootEnded, fragment
from provision.resources.driver import DRIVER_DIR
from provision.settings import Settings

BOOT_UNIT = "provision-boot.service"
_GOOGLE_REGISTRY = re.compile(r"(?:[a-z0-9-]+\.)*(?:gcr\.io|pkg\.dev)\Z")


def cos(
    settings: Settings,
    *,
    host: Host | None = None,
    boot_unit: str,
    idle: Mapping[str, str] | None = None,
    extras: Sequence[Resource] = (),
) -> list[Resource]:
    """A Container-Optimized OS host with a GPU, in the order in which its parts depend on one another.

    On a host with a driver of its own (`driver: present`) the installation becomes a check.
    `boot_unit` is the text of the unit that runs the boot script, `idle` the files of `idle_stop`
    for a VM that was made here (no other host is ever powered off by us); `extras` are the user's
    own resources, which come last.
    """
    gpu: list[Resource] = [Gpu(name="gpu", count=settings.gpu_count)] if settings.gpu else []
    first = [
        BootEnded(
            name="boot",
            unit=BOOT_UNIT,
            checks_user_data=host is not None and host.name in settings.hosts,
        ),
        *gpu,
    ]
    needs = tuple(resource.name for resource in first)
    engine = DockerEngine(name="docker", needs=needs, at_boot=True)
    login = RegistryLogin(
        name="registry-login", needs=needs, at_boot=True, registries=registries(settings)
    )
    unit = Unit(name="boot-unit", needs=needs, unit=BOOT_UNIT, content=boot_unit, at_boot=True)
    steps = [*_gpu_steps(settings, host, needs), login]
    runner = BootRunner(needs=needs)
    stop = _idle_stop(settings, idle, needs)
    boot_steps = fragment(
        "boot-steps", "10-host.sh", [*stop, engine, *steps, unit, *extras], needs=needs
    )
    return [
        *first,
        engine,
        runner,
        boot_steps,
        unit,
        *stop,
        *steps,
        *_proof(settings, host),
        *extras,
    ]


def _idle_stop(
    settings: Settings, idle: Mapping[str, str] | None, needs: tuple[str, ...]
) -> list[Resource]:
    """First of the boot's steps: a boot that fails later must not leave a VM that nobody uses and nothing stops."""
    if idle is None:
        return []
    wanted = settings.idle_stop_s is not None
    return [IdleStop(name="idle-stop", needs=needs, at_boot=wanted, present=wanted, texts=idle)]


def _gpu_steps(settings: Settings, host: Host | None, needs: tuple[str, ...]) -> list[Resource]:
    if not settings.gpu:
        return []
    folder = _driver_dir(host)
    source = host.driver if host else None
    return [
        Driver(
            name="driver",
            needs=needs,
            at_boot=True,
            version=settings.driver,
            source=source,
            directory=folder,
        ),
        ExecBindMount(name="driver-mount", needs=needs, at_boot=True, path=folder),
    ]


def _proof(settings: Settings, host: Host | None) -> list[Resource]:
    if not settings.gpu:
        return []
    return [
        NvidiaSmi(name="nvidia-smi", needs=("driver", "driver-mount"), directory=_driver_dir(host))
    ]


def _driver_dir(host: Host | None) -> str:
    return (host.driver_dir if host else None) or DRIVER_DIR.path


def registries(settings: Settings) -> tuple[str, ...]:
    """The registry hosts to log in to: those of the settings, and those of the worker's images where Google runs them."""
    wanted = list(settings.registries)
    for ref in (settings.worker.image, settings.worker.base_image):
        server = (ref or "").partition("/")[0]
        if _GOOGLE_REGISTRY.match(server):
            wanted.append(server)
    return tuple(dict.fromkeys(wanted or ["gcr.io"]))
