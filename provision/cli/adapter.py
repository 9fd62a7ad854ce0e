"""The one adapter of Invoke: from a task's flags to a call of one use case, and from its end to output and exit code.

A task is a function `(run, *flags) -> Done`. `command` gives it the flags that all tasks share and makes it a stock Invoke
task: the signature that Invoke inspects is built here (`inspect` honours `__signature__`), so no task repeats ten parameters.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task
from invoke.tasks import task as invoke_task

from provision.cli import flags
from provision.errors import EXIT_FAILED, Interrupted, ProvisionError, UsageError

if TYPE_CHECKING:
    from provision.app import Done, Session, Targets
    from provision.cli.output import Output
    from provision.settings import Settings

Body: TypeAlias = Callable[..., "Done"]


@dataclass(frozen=True)
class Run:
    """What a task's body works with: the session, the hosts that were asked for, the words after `--`."""

    session: Session
    targets: Targets
    words: tuple[str, ...]
    confirm: Callable[[str], bool] | None
    """Asks a yes-or-no question; None where nobody can answer."""

    @property
    def settings(self) -> Settings:
        """The settings of this run."""
        return self.session.settings


@dataclass(frozen=True)
class Shape:
    """What a task takes beside its own flags."""

    name: str
    targets: bool
    words: str
    words_required: bool
    program: bool
    settings: tuple[str, ...]


def command(
    name: str,
    *,
    targets: bool = False,
    words: str = "",
    words_required: bool = False,
    program: bool = False,
    settings: tuple[str, ...] = (),
    about: Mapping[str, str] | None = None,
) -> Callable[[Body], Task[Any]]:
    """Make a task of a body.

    `name` is the task's full name (`vm.create`); `targets` adds the flags that choose hosts; `words` says what the words
    after `--` are ("" = none are taken); `program` marks tasks that return the status of the user's program; `settings`
    names settings that have a flag of the same name here; `about` explains the body's own flags.
    """
    shape = Shape(name, targets, words, words_required, program, settings)

    def decorate(body: Body) -> Task[Any]:
        own = list(inspect.signature(body).parameters.values())[1:]
        shared = (*settings_flags(shape), *(flags.TARGETS if targets else ()), *flags.COMMON)
        signature = inspect.Signature(
            [
                inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY),
                *own,
                *(inspect.Parameter(flag.name, inspect.Parameter.KEYWORD_ONLY, default=flag.default) for flag in shared),
            ]
        )

        def task(context: Context, /, *args: Any, **given: Any) -> None:
            bound = signature.bind(context, *args, **given)
            bound.apply_defaults()
            _execute(shape, body, context, {key: value for key, value in bound.arguments.items() if key != "context"})

        task.__name__ = body.__name__
        task.__doc__ = body.__doc__
        task.__module__ = body.__module__
        task.__signature__ = signature  # type: ignore[attr-defined]
        explained = {flag.name: flag.about for flag in shared} | dict(about or {})
        made: Task[Any] = invoke_task(name=name.rpartition(".")[2], auto_shortflags=False, help=explained)(task)
        return made

    return decorate


def settings_flags(shape: Shape) -> tuple[flags.Flag, ...]:
    """A flag for each setting that the task lets be overridden."""
    return tuple(flags.Flag(key, f"instead of the setting provision.{key}") for key in shape.settings)


def _execute(shape: Shape, body: Body, context: Context, given: dict[str, Any]) -> None:
    from provision.cli.output import Output, give_up_stdout

    output = Output(as_json=given.pop("json"), program=shape.program, debug=given.pop("debug") or _invoke_debugs())
    try:
        code = _run(shape, body, context, given, output)
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_stdout()
        code = EXIT_FAILED
    if code:
        raise Exit(code=code)


def _run(shape: Shape, body: Body, context: Context, given: dict[str, Any], output: Output) -> int:
    try:
        with output.kept_pure(), _prepared(shape, context, given, output) as run:
            done = body(run, **given)
        return output.done(done.document, done.text, done.exit_code)
    except ProvisionError as error:
        return output.failed(error)
    except KeyboardInterrupt:
        return output.failed(Interrupted("interrupted", where=shape.name))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the last resort: no traceback unless asked for
        return output.failed(_internal(shape, error))


def _internal(shape: Shape, error: Exception) -> ProvisionError:
    wrapped = ProvisionError(
        "an error in the program itself",
        where=shape.name,
        why=f"{type(error).__name__}: {error}",
        fix=f"{argv0()} {shape.name} --debug, and report what it prints",
    )
    wrapped.__cause__ = error
    return wrapped


@contextmanager
def _prepared(shape: Shape, context: Context, given: dict[str, Any], output: Output) -> Iterator[Run]:
    """Take the shared flags out of `given`, read the settings, open the session; what is left are the body's own flags."""
    taken = {flag.name: given.pop(flag.name) for flag in flags.TARGETS} if shape.targets else {}
    overrides = {key: text for key in shape.settings if (text := given.pop(key)) is not None}
    words = _words(shape)
    from provision import app, journal, report
    from provision.cli import config

    targets = flags.targets(taken)
    project_dir = _project_dir(context)
    runtime = config.runtime_path(sys.argv[1:], os.environ)
    state_dir = config.state_dir(os.environ)
    settings = config.load_settings(project_dir, os.environ, overrides, runtime)
    with (
        report.reporter(output.people, diff=targets.diff, brief=shape.program, plain=output.as_json) as show,
        journal.Journal(state_dir / "journal", task=shape.name, project_dir=project_dir) as record,
    ):
        session = app.Session(
            settings=settings,
            state_dir=state_dir,
            project_dir=project_dir,
            emit=report.fan_out(show, record),
            program_argv0=argv0(),
        )
        yield Run(session, targets, words, None if output.as_json else _confirm_on_terminal())


def _words(shape: Shape) -> tuple[str, ...]:
    """The words after `--` as they were typed: Invoke joins them into one string."""
    argv = sys.argv[1:]
    words = tuple(argv[argv.index("--") + 1 :]) if "--" in argv else ()
    if words and not shape.words:
        raise UsageError("takes no words after --", where=shape.name, why=f"got: {' '.join(words)}", fix=f"{argv0()} --help {shape.name}")
    if not words and shape.words_required:
        raise UsageError(f"needs {shape.words} after --", where=shape.name, why="got no words", fix=f"{argv0()} {shape.name} -- nvidia-smi")
    return words


def _project_dir(context: Context) -> Path:
    """The folder that Invoke reads the project's settings from; the one we are in when a task is called without Invoke's program."""
    prefix = context.config._project_prefix  # noqa: SLF001 - Invoke offers no other way to ask
    return Path(prefix).absolute() if prefix else Path.cwd()


def _confirm_on_terminal() -> Callable[[str], bool] | None:
    if not sys.stdin.isatty():
        return None

    def confirm(question: str) -> bool:
        print(question, "[y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    return confirm


def _invoke_debugs() -> bool:
    import logging

    return logging.getLogger("invoke").isEnabledFor(logging.DEBUG)


def argv0() -> str:
    """How the program was called, for the commands that messages name: `invoke`, `inv` or `provision`."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name
