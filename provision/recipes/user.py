"""The user's own recipes: the functions that the setting `recipes` names."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from provision.core.errors import ProvisionError, RecipeError, SettingsError
from provision.core.resource import Resource
from provision.settings import Settings

Recipe: TypeAlias = Callable[[Settings], Sequence[Resource]]


def user_resources(settings: Settings, project_dir: Path) -> list[Resource]:
    """The resources of the user's own recipes, in the order of `recipes`.

    Raises `SettingsError` for a recipe that cannot be loaded and `RecipeError` for one that fails.
    """
    return [
        resource
        for reference in settings.recipes
        for resource in _call_recipe(reference, load_recipe(reference, project_dir), settings)
    ]


def load_recipe(reference: str, project_dir: Path) -> Recipe:
    """The function that `module:function` names; the module may lie in the project's folder.

    Raises `SettingsError` where there is no such function. For a module that fails while it is
    imported, the error has the line.
    """
    module_name, _, function = reference.partition(":")
    folder = str(project_dir)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    where = f"provision.recipes: {reference}"
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise SettingsError(
            "a recipe's module cannot be imported",
            where=where,
            why=_reason(error),
            fix=f"python -c 'import {module_name}'",
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


def _call_recipe(reference: str, recipe: Recipe, settings: Settings) -> list[Resource]:
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


def _reason(error: Exception) -> str:
    """The text of the error, and the file and line of the user's code that raised it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename
    ]
    if not frames or isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    return f"{type(error).__name__}: {error}\n{frames[-1].filename}:{frames[-1].lineno}"
