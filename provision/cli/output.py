"""Prints a task's result: one JSON document on standard output, or text for people."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from provision.cli.command_line import own_words
from provision.core.errors import (
    EXIT_INTERRUPTED,
    EXIT_OWN_FAILURE,
    Interrupted,
    ProvisionError,
    with_program,
)

_REMEDIES = frozenset({"fix", "remedy", "note"})
"""Keys of documents whose text names commands."""


@dataclass(frozen=True)
class Output:
    """How one task prints.

    With `as_json`, standard output is one JSON document and nothing else; with `prints_result`, it
    is the task's result without notes. With `runs_program`, it belongs to the user's program, whose
    status the task returns; this program's own failures then return 125. `argv0` is this program's
    name, for the commands in remedies.
    """

    as_json: bool
    runs_program: bool = False
    prints_result: bool = False
    debug: bool = False
    argv0: str = "invoke"

    @property
    def human_stream(self) -> TextIO:
        """The stream for notes and progress: standard error if standard output is reserved."""
        reserved = self.as_json or self.runs_program or self.prints_result
        return sys.stderr if reserved else sys.stdout

    @contextlib.contextmanager
    def reserved_stdout(self) -> Iterator[None]:
        """With `as_json`, redirect standard output to standard error, for child processes too."""
        if not self.as_json:
            yield
            return
        _flush()
        with contextlib.redirect_stdout(sys.stderr):
            saved = os.dup(1)
            os.dup2(2, 1)
            try:
                yield
            finally:
                _flush()
                os.dup2(saved, 1)
                os.close(saved)

    def print_result(
        self,
        document: Mapping[str, object],
        text: str,
        exit_code: int,
        errors: Sequence[ProvisionError] = (),
    ) -> int:
        """Print a result on standard output, its errors on standard error; return `exit_code`."""
        if self.as_json:
            extra: dict[str, object] = {"exit": exit_code} if exit_code else {}
            if self.runs_program and exit_code:
                extra["failed_in"] = "program"
            self._print_document({**extra, **_with_program(document, self.argv0)})
            return exit_code
        if text:
            print(text, file=sys.stderr if self.runs_program else sys.stdout, flush=bool(errors))
        for error in errors:
            self._print_error(error)
        return exit_code

    def print_failure(self, error: ProvisionError) -> int:
        """Print an error of this program, and return the exit code."""
        code = error.exit_code
        if self.runs_program and code != EXIT_INTERRUPTED:
            code = EXIT_OWN_FAILURE
        if self.debug:
            traceback.print_exception(error, file=sys.stderr)
        self._print_error(error)
        if self.as_json:
            extra: dict[str, object] = {"failed_in": "provision"} if self.runs_program else {}
            self._print_document({"error": error.as_dict(), "exit": code, **extra})
        return code

    def _print_error(self, error: ProvisionError) -> None:
        error.fix = with_program(error.fix, self.argv0)
        print(_error_text(error), file=sys.stderr)

    def _print_document(self, document: Mapping[str, object]) -> None:
        text = json.dumps(document, ensure_ascii=False, default=str)
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # another locale, or a file name that is not UTF-8
            text = json.dumps(document, default=str)
        print(text, flush=True)


def report_interrupt(where: str) -> int:
    """Print the error for a Ctrl-C while the program starts, and return its exit code."""
    return report_early_error(Interrupted("interrupted", where=where))


def report_early_error(error: ProvisionError) -> int:
    """Print an error from before the flags are parsed, and return its exit code."""
    return Output(as_json="--json" in own_words(sys.argv[1:])).print_failure(error)


def _with_program(value: Any, program: str, key: str = "") -> Any:
    """Replace `invoke` in the remedies of a document by the name of the user's program."""
    match value:
        case str():
            return with_program(value, program) if key in _REMEDIES else value
        case Mapping():
            return {name: _with_program(item, program, name) for name, item in value.items()}
        case list() | tuple():
            return [_with_program(item, program, key) for item in value]
    return value


def _error_text(error: ProvisionError) -> str:
    """Return the error as text without control characters; its first word is red on a terminal."""
    from provision.report.text import clean

    head = "error:"
    if (
        sys.stderr.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") != "dumb"
    ):
        head = f"\x1b[1;31m{head}\x1b[0m"
    return f"{head} " + "\n".join(clean(line) for line in str(error).split("\n"))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError, ValueError):
            stream.flush()


def discard_stdout() -> None:
    """Connect standard output to /dev/null, so that the interpreter's last flush raises nothing."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
