"""The namespace of all tasks, for a project's tasks.py and for the program `provision`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from invoke.collection import Collection

from provision.cli import demo, dev, doctor, image, inventory, mock, mps, vm
from provision.cli.environment import hide_settings_variables, open_standard_streams


def namespace() -> Collection:
    """Return all tasks: one collection per noun."""
    root = Collection()
    for noun in (vm, inventory, image, dev, mps, mock):
        root.add_collection(Collection.from_module(noun))
    root.add_task(demo.demo)
    root.add_task(doctor.doctor)
    return root


def namespace_for(tasks_file: str) -> Collection:
    """Return all tasks for a project; `tasks_file` is its tasks.py, or the tasks/__init__.py.

    Add your own tasks with `add_task` and `add_collection`. Since Invoke reads its configuration
    before any task runs, this also renames the variables INVOKE_PROVISION_*, and installs an
    exception hook that explains an invalid settings file in three lines.
    """
    path = Path(tasks_file).absolute()
    hide_settings_variables(os.environ)
    open_standard_streams()
    _explain_settings_errors(path.parent.parent if path.name == "__init__.py" else path.parent)
    return namespace()


def _explain_settings_errors(project_dir: Path) -> None:
    """Install the exception hook: print the settings error, or call the previous hook."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        from provision.cli.error_guard import explain

        code = explain(project_dir, error)
        if code is None:
            previous(kind, error, trace)
        else:
            sys.exit(code)

    sys.excepthook = hook
