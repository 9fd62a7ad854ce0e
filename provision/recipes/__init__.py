"""Recipes: plain functions `(settings) -> list[Resource]`. The built-in ones, and those that the settings name."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from provision import templating
from provision.core.errors import ProvisionError, RecipeError, SettingsError
from provision.core.model import Host
from provision.core.resource import Resource
from provision.recipes.cos import cos
from provision.recipes.mps import mps
from provision.recipes.worker import WorkerImage, worker
from provision.settings import Settings

Recipe: TypeAlias = Callable[[Settings], Sequence[Resource]]

__all__ = [
    "Recipe",
    "WorkerImage",
    "cos",
    "extras",
    "host_recipe",
    "idle_texts",
    "load",
    "mps",
    "worker",
]


def load(reference: str, project_dir: Path) -> Recipe:
    """The function that `module:function` names; modules of the project folder are found too.

    Raises `SettingsError`, with the line for a module that fails while it is imported.
    """
    module_name, _, function = reference.partition(":")
    folder = str(project_dir)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    where = f"provision.recipes: {reference}"
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        fix = f"python -c 'import {module_name}'"
        raise SettingsError(
            "a recipe's module cannot be imported", where=where, why=_reason(error), fix=fix
        ) from error
    recipe = getattr(module, function, None)
    if recipe is None:
        raise SettingsError(
            "a recipe's module has no such function",
            where=where,
            why=f"{module_name} has no {function}",
        )
    if not callable(recipe):
        raise SettingsError(
            "a recipe must be a function", where=where, why=f"it is a {type(recipe).__name__}"
        )
    return recipe  # type: ignore[no-any-return]


def _reason(error: Exception) -> str:
    """What went wrong, and the last line of code that took part."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename
    ]
    place = (
        f"\n{frames[-1].filename}:{frames[-1].lineno}"
        if frames and not isinstance(error, SyntaxError)
        else ""
    )
    return f"{type(error).__name__}: {error}{place}"


def extras(settings: Settings, project_dir: Path) -> list[Resource]:
    """The resources of the user's own recipes, in the order of `recipes`. Raises `RecipeError` for one that fails."""
    return [
        resource
        for reference in settings.recipes
        for resource in _resources(reference, load(reference, project_dir), settings)
    ]


def _resources(reference: str, recipe: Recipe, settings: Settings) -> list[Resource]:
    try:
        resources = list(recipe(settings))
    except ProvisionError:
        raise
    except Exception as error:
        raise RecipeError(
            "a recipe failed",
            where=reference,
            why=_reason(error),
            fix="it must return a list of resources",
        ) from error
    for resource in resources:
        if not isinstance(resource, Resource):
            raise RecipeError(
                "a recipe returned something that is not a Resource",
                where=reference,
                why=repr(resource),
            )
    return resources


def idle_texts(settings: Settings, project_dir: Path | None) -> dict[str, str]:
    """The files that power a VM off when nobody used it for `idle_stop`: `script`, `service`, `timer`."""
    files = {
        "script": "idle.sh",
        "service": "provision-idle.service.j2",
        "timer": "provision-idle.timer.j2",
    }
    values = {"limit_s": settings.idle_stop_s or 0}
    return {
        key: templating.render(name, values, project_dir=project_dir) for key, name in files.items()
    }


def host_recipe(
    settings: Settings, project_dir: Path, *, host: Host | None = None
) -> list[Resource]:
    """What `vm.provision` brings a host to: the built-in recipe, then the user's own ones."""
    unit = templating.boot_unit(project_dir=project_dir)
    made_here = host is None or host.name not in settings.hosts
    idle = idle_texts(settings, project_dir) if made_here else None
    return cos(settings, host=host, boot_unit=unit, idle=idle, extras=extras(settings, project_dir))
