"""The table of commands, and helpers that all commands share."""

from __future__ import annotations

from collections.abc import Callable

from .go_template import TemplateError, render
from .store import DockerError, Store

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import Any

Words = list[str]
Command = Callable[[Store, Words], int]
COMMANDS: dict[str, Command] = {}


def command(*names: str) -> Callable[[Command], Command]:
    """Register a function as the command of these names."""

    def register(function: Command) -> Command:
        COMMANDS.update(dict.fromkeys(names, function))
        return function

    return register


def check_count(name: str, words: Words, least: int, most: int | None = None) -> None:
    """Raise `DockerError` when there are too few or too many arguments."""
    if len(words) < least or (most is not None and len(words) > most):
        count = f"exactly {least}" if least == most else f"at least {least}"
        plural = "s" if least != 1 else ""
        raise DockerError(
            f"\"docker {name}\" requires {count} argument{plural}.\nSee 'docker {name} --help'."
        )


def apply_format(template: str, data: Any) -> str:
    """The data in the format of `--format`. Raises `DockerError` for a bad template."""
    try:
        return render(template.removeprefix("table "), data)
    except TemplateError as error:
        raise DockerError(str(error)) from error
