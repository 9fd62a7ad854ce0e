"""Runs one task: from its flags to a call of its use case, then to output and exit code."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from invoke.context import Context
from invoke.exceptions import Exit

from provision import report
from provision.cli import config
from provision.cli.command_line import (
    program_name,
    program_words,
    redirected_stdin,
    runtime_config_path,
)
from provision.cli.flag_values import parse_targets
from provision.cli.flags import TaskBody, TaskSpec
from provision.cli.output import Output, discard_stdout
from provision.cli.signals import termination_as_interrupt
from provision.commands.shared.targets import Targets
from provision.core.errors import EXIT_FAILED, Interrupted, ProvisionError, UsageError
from provision.project.project import Project
from provision.report import history
from provision.settings import Settings

_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


@dataclass(frozen=True)
class Run:
    """What a task's body works with: project, hosts to act on, the words after `--`."""

    project: Project
    targets: Targets
    words: tuple[str, ...]
    confirm: Callable[[str], bool] | None
    """Asks a yes-or-no question; None when there is no terminal to ask on."""

    @property
    def settings(self) -> Settings:
        """The settings of this run."""
        return self.project.settings


def execute(spec: TaskSpec, body: TaskBody, context: Context, flags: dict[str, Any]) -> None:
    """Run a task's body and print its result; raises Invoke's `Exit` for an exit code but 0."""
    output = Output(
        as_json=flags.pop("json"),
        runs_program=spec.runs_program,
        prints_result=spec.prints_result,
        debug=flags.pop("debug") or _is_invoke_debugging(),
        argv0=program_name(),
    )
    try:
        code = _run(spec, body, context, flags, output)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        code = EXIT_FAILED
    except OSError as error:
        discard_stdout()
        write_error = ProvisionError(
            "standard output could not be written", where=spec.name, why=str(error), fix="df -h"
        )
        code = replace(output, as_json=False).print_failure(write_error)
    if code:
        raise Exit(code=code)


def _run(
    spec: TaskSpec, body: TaskBody, context: Context, flags: dict[str, Any], output: Output
) -> int:
    """Run a task's body, print its result or failure, and return the exit code."""
    try:
        with (
            output.reserved_stdout(),
            termination_as_interrupt(),
            _prepared(spec, context, flags, output) as run,
        ):
            result = body(run, **flags)
    except ProvisionError as error:
        return output.print_failure(error)
    except KeyboardInterrupt:
        return output.print_failure(Interrupted("interrupted", where=spec.name))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the last resort: no traceback without --debug
        failure = _file_error(error) if _is_file_error(error) else _internal_error(spec, error)
        return output.print_failure(failure)
    return output.print_result(result.document, result.text, result.exit_code, result.errors)


def _is_file_error(error: Exception) -> TypeGuard[OSError]:
    """Return whether a file of this machine cannot be used, or a disk takes no more data."""
    return isinstance(error, OSError) and (
        error.filename is not None or error.errno in _DISK_ERRORS
    )


def _file_error(error: OSError) -> ProvisionError:
    wrapped = ProvisionError(
        "this machine refuses a file",
        where=str(error.filename or ""),
        why=error.strerror or str(error),
        fix="df -h, ls -l; XDG_STATE_HOME=FOLDER keeps the state elsewhere",
    )
    wrapped.__cause__ = error
    return wrapped


def _internal_error(spec: TaskSpec, error: Exception) -> ProvisionError:
    wrapped = ProvisionError(
        "an error in the program itself",
        where=spec.name,
        why=f"{type(error).__name__}: {error}",
        fix=f"{program_name()} {spec.name} --debug, and report what it prints",
    )
    wrapped.__cause__ = error
    return wrapped


@contextmanager
def _prepared(
    spec: TaskSpec, context: Context, flags: dict[str, Any], output: Output
) -> Iterator[Run]:
    """Read the settings, open the project and its reporters; yield what the body works with.

    The shared flags are taken out of `flags`; the body's own flags remain. Raises `UsageError` and
    `SettingsError`.
    """
    targets = parse_targets({flag.name: flags.pop(flag.name) for flag in spec.host_flags})
    overrides = {key: text for key in spec.settings if (text := flags.pop(key)) is not None}
    words = _checked_program_words(spec)
    project = _open_project(context, overrides)
    with (
        report.reporter(
            output.human_stream,
            title="" if spec.streams else spec.name,
            diff=targets.diff,
            brief=spec.runs_program,
            plain=output.as_json,
            program=program_name(),
        ) as reporter,
        history.RunRecorder(project.home / "runs", task=spec.name) as journal,
    ):
        emit = report.fan_out(reporter, journal)
        confirm = None if output.as_json else _confirm_on_terminal(reporter)
        yield Run(replace(project, emit=emit), targets, words, confirm)


def _open_project(context: Context, overrides: dict[str, str]) -> Project:
    project_dir = _project_dir(context)
    runtime_file = runtime_config_path(sys.argv[1:], os.environ)
    return Project(
        settings=config.load_settings(project_dir, os.environ, overrides, runtime_file),
        state_dir=config.state_dir(os.environ),
        project_dir=project_dir,
        program_argv0=program_name(),
        stdin=redirected_stdin(),
    )


def _checked_program_words(spec: TaskSpec) -> tuple[str, ...]:
    """Return the words after `--`; raises `UsageError` if the task needs some or takes none."""
    words = program_words(sys.argv[1:])
    if words and not spec.words:
        raise UsageError(
            "takes no words after --",
            where=spec.name,
            why=f"got: {' '.join(words)}",
            fix=f"{program_name()} --help {spec.name}",
        )
    if not words and spec.words_required:
        raise UsageError(
            f"needs {spec.words} after --",
            where=spec.name,
            why="got no words",
            fix=f"{program_name()} {spec.name} -- nvidia-smi",
        )
    return words


def _project_dir(context: Context) -> Path:
    """Return the folder whose settings Invoke reads; the current one without Invoke's program."""
    prefix = context.config._project_prefix  # noqa: SLF001 - Invoke has no public accessor
    return Path(prefix).absolute() if prefix else Path.cwd()


def _confirm_on_terminal(reporter: report.LineReporter) -> Callable[[str], bool] | None:
    if not sys.stdin.isatty():
        return None

    def confirm(question: str) -> bool:
        with reporter.paused():
            print(question, "[y/N] ", end="", file=sys.stderr, flush=True)
            return sys.stdin.readline().strip().lower() in {"y", "yes"}

    return confirm


def _is_invoke_debugging() -> bool:
    return logging.getLogger("invoke").isEnabledFor(logging.DEBUG)
