"""The recipe of a GPU host: GPU, Docker, driver, executable driver folder, registry login, boot.

Pure, but for the templates that `host_recipe` and `idle_texts` read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from provision import templating
from provision.core.model import Host
from provision.core.resource import Resource
from provision.recipes.user import user_resources
from provision.resources import (
    BootEnded,
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
from provision.resources.boot import fragment
from provision.resources.driver import DRIVER_DIR
from provision.settings import Settings

BOOT_UNIT = "provision-boot.service"
FRAGMENT = "10-host.sh"
_GOOGLE_REGISTRY = re.compile(r"(?:[a-z0-9-]+\.)*(?:gcr\.io|pkg\.dev)\Z")


def host_recipe(
    settings: Settings, project_dir: Path, *, host: Host | None = None
) -> list[Resource]:
    """The resources of `vm.provision`: those of a GPU host, then those of the user's own recipes.

    Raises `SettingsError` and `RecipeError` for a recipe of the user's that cannot be loaded or
    fails, and `TemplateError` for a template of the project.
    """
    unit = templating.boot_unit(project_dir=project_dir)
    is_ours = host is None or host.name not in settings.hosts
    idle = idle_texts(settings, project_dir) if is_ours else None
    extras = user_resources(settings, project_dir)
    return gpu_host(settings, host=host, boot_unit=unit, idle=idle, extras=extras)


def gpu_host(
    settings: Settings,
    *,
    host: Host | None = None,
    boot_unit: str,
    idle: Mapping[str, str] | None = None,
    extras: Sequence[Resource] = (),
) -> list[Resource]:
    """The resources of a GPU host, each after those that it depends on; `extras` come last.

    On a host that keeps its own driver (`driver: present`) the installation becomes a check.
    `boot_unit` is the text of the unit that runs the boot script. `idle` has the files of
    `idle_stop`; it is None for a host that provision did not create, which is never powered off.
    """
    checked = host is not None and host.name in settings.hosts
    gpu: list[Resource] = [Gpu(name="gpu", count=settings.gpu_count)] if settings.gpu else []
    first = [BootEnded(name="boot", unit=BOOT_UNIT, checks_user_data=checked), *gpu]
    needs = tuple(resource.name for resource in first)
    engine = DockerEngine(name="docker", needs=needs, at_boot=True)
    unit = Unit(name="boot-unit", needs=needs, unit=BOOT_UNIT, content=boot_unit, at_boot=True)
    login = RegistryLogin(
        name="registry-login", needs=needs, at_boot=True, registries=registry_hosts(settings)
    )
    steps = [*_driver_steps(settings, host, needs), login]
    stop = _idle_stop(settings, idle, needs)
    at_boot = [*stop, engine, *steps, unit, *extras]
    return [
        *first,
        engine,
        BootRunner(needs=needs),
        fragment("boot-steps", FRAGMENT, at_boot, needs=needs),
        unit,
        *stop,
        *steps,
        *_driver_proof(settings, host),
        *extras,
    ]


def idle_texts(settings: Settings, project_dir: Path | None) -> dict[str, str]:
    """The texts of `IdleStop`: script, service and timer that power a VM off after `idle_stop`."""
    files = {
        "script": "idle.sh",
        "service": "provision-idle.service.j2",
        "timer": "provision-idle.timer.j2",
    }
    values = {"limit_s": settings.idle_stop_s or 0}
    return {
        key: templating.render(name, values, project_dir=project_dir) for key, name in files.items()
    }


def _idle_stop(
    settings: Settings, idle: Mapping[str, str] | None, needs: tuple[str, ...]
) -> list[Resource]:
    """The idle timer. It is the first step of a boot: a later one that fails must not undo it."""
    if idle is None:
        return []
    wanted = settings.idle_stop_s is not None
    return [IdleStop(name="idle-stop", needs=needs, at_boot=wanted, present=wanted, texts=idle)]


def _driver_steps(settings: Settings, host: Host | None, needs: tuple[str, ...]) -> list[Resource]:
    if not settings.gpu:
        return []
    folder = _driver_dir(host)
    driver = Driver(
        name="driver",
        needs=needs,
        at_boot=True,
        version=settings.driver,
        source=host.driver if host else None,
        directory=folder,
    )
    return [driver, ExecBindMount(name="driver-mount", needs=needs, at_boot=True, path=folder)]


def _driver_proof(settings: Settings, host: Host | None) -> list[Resource]:
    if not settings.gpu:
        return []
    needs = ("driver", "driver-mount")
    return [NvidiaSmi(name="nvidia-smi", needs=needs, directory=_driver_dir(host))]


def _driver_dir(host: Host | None) -> str:
    return (host.driver_dir if host else None) or DRIVER_DIR.path


def registry_hosts(settings: Settings) -> tuple[str, ...]:
    """The registry hosts to log in to: those of `registries`, and Google's that hold an image."""
    hosts = list(settings.registries)
    for ref in (settings.worker.image, settings.worker.base_image):
        server = (ref or "").partition("/")[0]
        if _GOOGLE_REGISTRY.match(server):
            hosts.append(server)
    return tuple(dict.fromkeys(hosts or ["gcr.io"]))
