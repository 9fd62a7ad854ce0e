"""The program `provision`: the same tasks as `invoke` with a tasks.py, from any folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from invoke.program import Program

from provision.cli.environment import hide_environment, keep_byte_code, ready_streams
from provision.cli.namespace import namespace


class _Program(Program):
    """Invoke's program with our namespace; it reads the project's own invoke.yaml, which Invoke does only for a tasks.py that it found."""

    def parse_collection(self) -> None:
        keep_byte_code()
        super().parse_collection()
        self.config.set_project_location(project_dir(Path.cwd()))
        self.config.load_project()

    def print_version(self) -> None:
        from importlib.metadata import version

        print(f"provision {version('provision-gpu')}")


def main() -> None:
    """Run the program on the process's own command line and exit."""
    hide_environment(os.environ)
    ready_streams()
    program = _Program(
        namespace=namespace(), name="provision", binary="provision", binary_names=["provision"]
    )
    try:
        try:
            program.run()
        except SystemExit as end:
            if isinstance(end.__context__, KeyboardInterrupt):  # of which Invoke makes a silent 1
                raise KeyboardInterrupt from None
            raise
        finally:  # --help and --list end by SystemExit
            sys.stdout.flush()
    except BrokenPipeError:
        from provision.cli.output import give_up_stdout

        give_up_stdout()
    except Exception as error:
        from provision.cli.error_guard import explain

        code = explain(project_dir(Path.cwd()), error)
        if code is None:
            raise
        sys.exit(code)


def project_dir(start: Path) -> Path:
    """The project's folder: the nearest from `start` upwards that holds tasks or settings (so Invoke looks for tasks), else `start`."""
    names = (
        "tasks.py",
        "tasks/__init__.py",
        "invoke.yaml",
        "invoke.yml",
        "invoke.json",
        "invoke.py",
    )
    return next(
        (
            folder
            for folder in (start, *start.parents)
            if any((folder / name).is_file() for name in names)
        ),
        start,
    )
