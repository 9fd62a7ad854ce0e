"""Recipes: plain functions `(settings) -> list[Resource]`. The built-in ones, and those that the settings name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from provision import templating
from provision.errors import RecipeError, SettingsError
from provision.model import Host
from provision.recipes.cos import cos
from provision.recipes.mps import mps
from provision.recipes.worker import WorkerImage, worker
from provision.resource import Resource
from provision.settings import Settings

Recipe: TypeAlias = Callable[[Settings], Sequence[Resource]]

__all__ = ["Recipe", "WorkerImage", "cos", "extras", "host_recipe", "load", "mps", "worker"]


def load(reference: str, project_dir: Path) -> Recipe:
    """The function that `module:function` names; modules of the project folder are found too. Raises `SettingsError`."""
    module_name, _, function = reference.partition(":")
    folder = str(project_dir)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        recipe = getattr(importlib.import_module(module_name), function)
    except ImportError as error:
        raise SettingsError(
            "a recipe's module cannot be imported",
            where=f"provision.recipes: {reference}",
            why=str(error),
            fix=f"python -c 'import {module_name}'",
        ) from error
    except AttributeError as error:
        raise SettingsError("a recipe's module has no such function", where=f"provision.recipes: {reference}", why=str(error)) from error
    if not callable(recipe):
        raise SettingsError("a recipe must be a function", where=f"provision.recipes: {reference}", why=f"it is a {type(recipe).__name__}")
    return recipe  # type: ignore[no-any-return]


def extras(settings: Settings, project_dir: Path) -> list[Resource]:
    """The resources of the user's own recipes, in the order of `recipes`."""
    found: list[Resource] = []
    for reference in settings.recipes:
        resources = load(reference, project_dir)(settings)
        for resource in resources:
            if not isinstance(resource, Resource):
                raise RecipeError("a recipe returned something that is not a Resource", where=reference, why=repr(resource))
            found.append(resource)
    return found


def host_recipe(settings: Settings, project_dir: Path, *, host: Host | None = None) -> list[Resource]:
    """What `vm.provision` brings a host to: the built-in recipe, then the user's own ones."""
    unit = templating.boot_unit(project_dir=project_dir)
    return cos(settings, host=host, boot_unit=unit, extras=extras(settings, project_dir))
