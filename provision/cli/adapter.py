"""The one adapter of Invoke, first half: a stock Invoke task out of a function `(run, *flags) -> Done`.

The signature that Invoke inspects is built here (`inspect` honours `__signature__`), so no task
repeats the ten flags that all share. The second half, `execution`, is imported when a task runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit
from invoke.tasks import task as invoke_task

from provision.cli.flags import Body, Shape
from provision.cli.lazy_tasks import LightTask

if TYPE_CHECKING:
    from invoke.context import Context


def command(shape: Shape, about: Mapping[str, str] | None = None) -> Callable[[Body], LightTask]:
    """Make a task of a body; `about` explains the body's own flags."""

    def decorate(body: Body) -> LightTask:
        whole = _signature(shape, body)

        def task(context: Context, /, *args: Any, **given: Any) -> None:
            try:
                from provision.cli.execution import execute

                bound = whole.bind(context, *args, **given)
                bound.apply_defaults()
                execute(
                    shape,
                    body,
                    context,
                    {key: value for key, value in bound.arguments.items() if key != "context"},
                )
            except KeyboardInterrupt:  # Invoke would end with 1 and without a word
                from provision.cli.output import interrupted

                raise Exit(code=interrupted(shape.name)) from None

        task.__name__ = body.__name__
        task.__doc__ = body.__doc__
        task.__module__ = body.__module__
        task.__signature__ = whole  # type: ignore[attr-defined]
        explained = {flag.name: flag.about for flag in shape.flags} | dict(about or {})
        made: LightTask = invoke_task(
            klass=LightTask,
            name=shape.name.rpartition(".")[2],
            auto_shortflags=False,
            help=explained,
        )(task)
        made.shape = shape
        return made

    return decorate


def _signature(shape: Shape, body: Body) -> Signature:
    own = list(signature(body).parameters.values())[1:]
    shared = (
        Parameter(flag.name, Parameter.KEYWORD_ONLY, default=flag.default) for flag in shape.flags
    )
    return Signature([Parameter("context", Parameter.POSITIONAL_ONLY), *own, *shared])
