"""Tasks and arguments that are cheap to copy: Invoke deep-copies every task and every flag several times per command.

With two dozen tasks of ten flags each that is a third of what `invoke --list` may cost beyond
Invoke itself. Nothing in them is ever changed in place but the two attributes that are copied here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from invoke.parser.argument import Argument
from invoke.tasks import Task

if TYPE_CHECKING:
    from provision.cli.flags import Shape


class LightArgument(Argument):
    """An argument whose copy shares what is never changed."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made


class LightTask(Task[Any]):
    """A task of light arguments whose copy shares its body."""

    shape: Shape
    """What it takes and how it ends; the reference in docs/ is made of it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, help=dict(self.help))
        return made

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """What Invoke makes of the signature, as light arguments; it uses `help` up, which is kept here for the next time."""
        explained = dict(self.help)
        made = super().get_arguments(ignore_unknown_help=ignore_unknown_help)
        self.help = explained
        for argument in made:
            argument.__class__ = LightArgument
        return made
