"""The one adapter of Invoke, second half: from a task's flags to a call of one use case, and from its end to output and exit code."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeGuard

from invoke.context import Context
from invoke.exceptions import Exit

from provision import report
from provision.cli import config
from provision.cli.flags import Body, Shape
from provision.cli.output import Output, give_up_stdout
from provision.commands.shared.targets import Targets
from provision.core import fleet
from provision.core.errors import EXIT_FAILED, Interrupted, ProvisionError, UsageError
from provision.project.project import Project
from provision.report import history
from provision.settings import Settings

_MOST = 999
"""The largest number that a flag takes: a digit too many asks for no million processes."""
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


@dataclass(frozen=True)
class Run:
    """What a task's body works with: the session, the hosts that were asked for, the words after `--`."""

    project: Project
    targets: Targets
    words: tuple[str, ...]
    confirm: Callable[[str], bool] | None
    """Asks a yes-or-no question; None where nobody can answer."""

    @property
    def settings(self) -> Settings:
        """The settings of this run."""
        return self.project.settings


def execute(shape: Shape, body: Body, context: Context, given: dict[str, Any]) -> None:
    """Run a task's body and end as Invoke expects it: by returning, or with `Exit` and our exit code."""
    output = Output(
        as_json=given.pop("json"),
        program=shape.program,
        result=shape.result,
        debug=given.pop("debug") or _invoke_debugs(),
        argv0=argv0(),
    )
    try:
        code = _run(shape, body, context, given, output)
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_stdout()
        code = EXIT_FAILED
    except OSError as error:
        give_up_stdout()
        unwritten = ProvisionError(
            "standard output could not be written", where=shape.name, why=str(error), fix="df -h"
        )
        code = replace(output, as_json=False).failed(unwritten)
    if code:
        raise Exit(code=code)


def _run(shape: Shape, body: Body, context: Context, given: dict[str, Any], output: Output) -> int:
    try:
        with output.kept_pure(), _interruptible(), _prepared(shape, context, given, output) as run:
            done = body(run, **given)
    except ProvisionError as error:
        return output.failed(error)
    except KeyboardInterrupt:
        return output.failed(Interrupted("interrupted", where=shape.name))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the last resort: no traceback unless asked for
        return output.failed(
            _refused_here(error) if _is_refusal(error) else _internal(shape, error)
        )
    return output.done(done.document, done.text, done.exit_code, done.errors)


def _is_refusal(error: Exception) -> TypeGuard[OSError]:
    """A file of this machine that cannot be had, or a disk that takes no more: nobody's mistake in the program."""
    return isinstance(error, OSError) and (
        error.filename is not None or error.errno in _DISK_ERRORS
    )


def _refused_here(error: OSError) -> ProvisionError:
    wrapped = ProvisionError(
        "this machine refuses a file",
        where=str(error.filename or ""),
        why=error.strerror or str(error),
        fix="df -h, ls -l; XDG_STATE_HOME=FOLDER keeps the state elsewhere",
    )
    wrapped.__cause__ = error
    return wrapped


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
def _interruptible() -> Iterator[None]:
    """Let a request to end (SIGTERM, a closed terminal) do what Ctrl-C does: leave a truthful recap. What nohup ignores stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    heard = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _prepared(
    shape: Shape, context: Context, given: dict[str, Any], output: Output
) -> Iterator[Run]:
    """Take the shared flags out of `given`, read the settings, open the session; what is left are the body's own flags."""
    targets = _targets({flag.name: given.pop(flag.name) for flag in shape.hosts})
    overrides = {key: text for key in shape.settings if (text := given.pop(key)) is not None}
    words = _words(shape)
    project_dir = _project_dir(context)
    state_dir = config.state_dir(os.environ)
    settings = config.load_settings(
        project_dir, os.environ, overrides, config.runtime_path(sys.argv[1:], os.environ)
    )
    project = Project(
        settings=settings,
        state_dir=state_dir,
        project_dir=project_dir,
        program_argv0=argv0(),
        stdin=given_input(),
    )
    with (
        report.reporter(
            output.people,
            title="" if shape.streams else shape.name,
            diff=targets.diff,
            brief=shape.program,
            plain=output.as_json,
            program=argv0(),
        ) as show,
        history.Journal(project.home / "runs", task=shape.name) as record,
    ):
        emit = report.fan_out(show, record)
        yield Run(
            replace(project, emit=emit),
            targets,
            words,
            None if output.as_json else _confirm_on_terminal(show),
        )


def _targets(taken: Mapping[str, Any]) -> Targets:
    return Targets(
        host=taken.get("host"),
        limit=taken.get("limit"),
        forks=number("--forks", taken.get("forks"), least=1) or fleet.DEFAULT_FORKS,
        serial=number("--serial", taken.get("serial"), least=1),
        max_fail=number("--max-fail", taken.get("max_fail"), least=0),
        check=bool(taken.get("check")),
        diff=bool(taken.get("diff")),
    )


def number(flag: str, text: str | None, *, least: int) -> int | None:
    """The whole number that a flag's text says, None when it was not given; Invoke would turn a bad one into a traceback."""
    if text is None:
        return None
    value = int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else least - 1
    if not least <= value <= _MOST:
        why = f"allowed: a whole number from {least} to {_MOST}"
        raise UsageError(
            f"{text[:20]!r} is no number for it", where=flag, why=why, fix=f"{flag}={max(least, 1)}"
        )
    return value


def _words(shape: Shape) -> tuple[str, ...]:
    """The words after `--` as they were typed: Invoke joins them into one string."""
    argv = sys.argv[1:]
    words = tuple(argv[argv.index("--") + 1 :]) if "--" in argv else ()
    if words and not shape.words:
        raise UsageError(
            "takes no words after --",
            where=shape.name,
            why=f"got: {' '.join(words)}",
            fix=f"{argv0()} --help {shape.name}",
        )
    if not words and shape.words_required:
        raise UsageError(
            f"needs {shape.words} after --",
            where=shape.name,
            why="got no words",
            fix=f"{argv0()} {shape.name} -- nvidia-smi",
        )
    return words


def _project_dir(context: Context) -> Path:
    """The folder that Invoke reads the project's settings from; the one we are in when a task is called without Invoke's program."""
    prefix = context.config._project_prefix  # noqa: SLF001 - Invoke offers no other way to ask
    return Path(prefix).absolute() if prefix else Path.cwd()


def given_input() -> int | None:
    """Where the user's program reads: what was piped to us, or a file. A terminal stays ours."""
    try:
        handle = sys.stdin.fileno()
        mode = os.fstat(handle).st_mode
    except (
        AttributeError,
        OSError,
        ValueError,
    ):  # closed, or replaced by something that is no file
        return None
    return handle if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode) else None


def _confirm_on_terminal(show: report.LineReporter) -> Callable[[str], bool] | None:
    if not sys.stdin.isatty():
        return None

    def confirm(question: str) -> bool:
        with show.paused():
            print(question, "[y/N] ", end="", file=sys.stderr, flush=True)
            return sys.stdin.readline().strip().lower() in {"y", "yes"}

    return confirm


def _invoke_debugs() -> bool:
    return logging.getLogger("invoke").isEnabledFor(logging.DEBUG)


def argv0() -> str:
    """How the program was called, for the commands that messages name: `invoke`, `inv` or `provision`."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name
