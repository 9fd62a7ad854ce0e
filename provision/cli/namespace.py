"""The namespace of all tasks, for a project's tasks.py and for the program `provision`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from invoke.collection import Collection

from provision.cli import demo, dev, doctor, image, inventory, mock, mps, vm
from provision.cli.environment import hide_environment, ready_streams


def namespace() -> Collection:
    """All tasks: one collection per noun."""
    root = Collection()
    for noun in (vm, inventory, image, dev, mps, mock):
        root.add_collection(Collection.from_module(noun))
    root.add_task(demo.demo)
    root.add_task(doctor.doctor)
    return root


def namespace_for(tasks_file: str) -> Collection:
    """All tasks for the project whose tasks file this is; tasks of your own are added with `add_task` and `add_collection`.

    Two things are arranged in passing, since Invoke reads configuration before any task runs:
    variables INVOKE_PROVISION_* are taken out of its sight, and when it fails on a settings file,
    the error is told in three lines instead of a traceback.
    """
    path = Path(tasks_file).absolute()
    project_dir = path.parent.parent if path.name == "__init__.py" else path.parent
    hide_environment(os.environ)
    ready_streams()
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        from provision.cli.error_guard import explain

        code = explain(project_dir, error)
        if code is None:
            previous(kind, error, trace)
        else:
            sys.exit(code)

    sys.excepthook = hook
    return namespace()
