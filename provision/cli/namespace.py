"""The namespace of all tasks, for a project's tasks.py and for the program `provision`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from invoke.collection import Collection

from provision.cli import demo, dev, image, mock, mps, vm
from provision.cli.config import hide_environment
from provision.cli.shield import explain_and_exit


def namespace() -> Collection:
    """All tasks: one collection per noun."""
    root = Collection()
    for noun in (vm, image, dev, mps, mock):
        root.add_collection(Collection.from_module(noun))
    root.add_task(demo.demo)
    return root


def namespace_for(tasks_file: str) -> Collection:
    """All tasks for the project whose tasks file this is; tasks of your own are added with `add_task` and `add_collection`.

    Two things are arranged in passing, since Invoke reads configuration before any task runs: variables INVOKE_PROVISION_*
    are taken out of its sight, and when it fails on a settings file, the error is told in three lines instead of a traceback.
    """
    path = Path(tasks_file).absolute()
    project_dir = path.parent.parent if path.name == "__init__.py" else path.parent
    hide_environment(os.environ)
    sys.excepthook = partial(explain_and_exit, project_dir, sys.excepthook)
    return namespace()
