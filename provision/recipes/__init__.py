"""Recipes: functions from settings to the resources of a host, in order."""

from __future__ import annotations

from provision.recipes.host import gpu_host, host_recipe, idle_texts
from provision.recipes.mps import mps
from provision.recipes.user import Recipe, load_recipe, user_resources
from provision.recipes.worker import WorkerImage, worker

__all__ = [
    "Recipe",
    "WorkerImage",
    "gpu_host",
    "host_recipe",
    "idle_texts",
    "load_recipe",
    "mps",
    "user_resources",
    "worker",
]
