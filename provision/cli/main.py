"""The program `provision`: the same tasks as `invoke` with a tasks.py, from any folder."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from invoke.exceptions import ParseError
from invoke.program import Program

from provision.cli.environment import (
    enable_byte_code,
    hide_settings_variables,
    open_standard_streams,
)
from provision.cli.namespace import namespace


class _Program(Program):
    """Invoke's program with our namespace, which also reads the project's invoke.yaml.

    Invoke itself reads it only beside a tasks.py that it has found.
    """

    def parse_collection(self) -> None:
        enable_byte_code()
        super().parse_collection()
        self.config.set_project_location(find_project_dir(Path.cwd()))
        self.config.load_project()

    def parse_tasks(self) -> None:
        """Parse as Invoke does. Raises `ParseError`, with what to try in a line of its own."""
        try:
            super().parse_tasks()
        except ParseError as error:
            text = re.sub(r"<Argument: (\w+).*?>", r"--\1", str(error))
            raise ParseError(f"{text}\n  try: {self._remedy(error)}", error.context) from None

    def _remedy(self, error: ParseError) -> str:
        """Return the task or flag that was probably meant, and the command that lists them all."""
        from difflib import get_close_matches

        unknown = re.search("No idea what '(.*)' is", str(error))
        word = unknown[1] if unknown else ""
        task = error.context if error.context is not None and error.context.name else None
        if task is not None:
            listing = f"provision {task.name} --help"
        else:
            listing = "provision --help" if word.startswith("-") else "provision --list"
        flags = task.flag_names() if task is not None else ()
        known = flags if word.startswith("-") else tuple(self.collection.task_names)
        nearest = get_close_matches(word, known, 1)
        return f"{nearest[0]}, or {listing}" if nearest else listing

    def print_version(self) -> None:
        from importlib.metadata import version

        print(f"provision {version('provision-gpu')}")


def main() -> None:
    """Run the program on the process's command line. Raises `SystemExit`, `KeyboardInterrupt`."""
    hide_settings_variables(os.environ)
    open_standard_streams()
    program = _Program(
        namespace=namespace(), name="provision", binary="provision", binary_names=["provision"]
    )
    try:
        try:
            program.run()
        except SystemExit as end:
            if isinstance(
                end.__context__, KeyboardInterrupt
            ):  # Invoke would exit with 1 and no message
                raise KeyboardInterrupt from None
            raise
        finally:  # --help and --list raise SystemExit
            sys.stdout.flush()
    except BrokenPipeError:
        from provision.cli.output import discard_stdout

        discard_stdout()
    except Exception as error:
        from provision.cli.error_guard import explain

        code = explain(find_project_dir(Path.cwd()), error)
        if code is None:
            raise
        sys.exit(code)


def find_project_dir(start: Path) -> Path:
    """Return the nearest folder from `start` upwards with tasks or settings, otherwise `start`.

    Invoke looks for tasks in the same way.
    """
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
