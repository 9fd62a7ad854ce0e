"""Makes Invoke tasks out of functions `(run, *flags) -> TaskResult`.

The signature that Invoke inspects is built here (`inspect` honours `__signature__`), so that no
task repeats the flags that all tasks share. `execution` runs the task; it is imported only then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit
from invoke.parser.argument import Argument
from invoke.tasks import Task
from invoke.tasks import task as invoke_task

from provision.cli.flags import TaskBody, TaskSpec

if TYPE_CHECKING:
    from invoke.context import Context


class CommandTask(Task[Any]):
    """An Invoke task that knows its `TaskSpec`, from which docs/tasks.md is generated."""

    spec: TaskSpec

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Return the task's arguments with their help, also when called again.

        Invoke's method removes the entries of `help` that it has used.
        """
        explanations = dict(self.help)
        arguments = super().get_arguments(ignore_unknown_help=ignore_unknown_help)
        self.help = explanations
        return arguments


def command(
    spec: TaskSpec, about: Mapping[str, str] | None = None
) -> Callable[[TaskBody], CommandTask]:
    """Return a decorator that makes a task of a body; `about` explains the body's own flags."""

    def decorate(body: TaskBody) -> CommandTask:
        full_signature = _full_signature(spec, body)

        def task(context: Context, /, *args: Any, **kwargs: Any) -> None:
            try:
                from provision.cli.execution import execute

                bound = full_signature.bind(context, *args, **kwargs)
                bound.apply_defaults()
                flags = {key: value for key, value in bound.arguments.items() if key != "context"}
                execute(spec, body, context, flags)
            except KeyboardInterrupt:  # Invoke would end with 1 and without a message
                from provision.cli.output import report_interrupt

                raise Exit(code=report_interrupt(spec.name)) from None

        task.__name__ = body.__name__
        task.__doc__ = body.__doc__
        task.__module__ = body.__module__
        task.__signature__ = full_signature  # type: ignore[attr-defined]
        command_task: CommandTask = invoke_task(
            klass=CommandTask,
            name=spec.name.rpartition(".")[2],
            auto_shortflags=False,
            help={flag.name: flag.about for flag in spec.flags} | dict(about or {}),
        )(task)
        command_task.spec = spec
        return command_task

    return decorate


def _full_signature(spec: TaskSpec, body: TaskBody) -> Signature:
    own = list(signature(body).parameters.values())[1:]
    shared = (
        Parameter(flag.name, Parameter.KEYWORD_ONLY, default=flag.default) for flag in spec.flags
    )
    return Signature([Parameter("context", Parameter.POSITIONAL_ONLY), *own, *shared])
