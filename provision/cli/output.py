"""Where a task's words go: its one JSON document to standard output, everything for people elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from provision.core.errors import EXIT_OWN_FAILURE, Interrupted, ProvisionError, with_program

_REMEDIES = frozenset({"fix", "remedy", "note"})
"""Keys of documents whose text names commands."""


@dataclass(frozen=True)
class Output:
    """How one task prints.

    With `as_json`, standard output carries one JSON document and nothing else; with `result`, the
    task's result and no notes. With `program`, it belongs to the user's program, whose status the
    task returns; a failure of ours is 125 then. `argv0` is how the user calls us, for the commands
    that remedies name.
    """

    as_json: bool
    program: bool = False
    result: bool = False
    debug: bool = False
    argv0: str = "invoke"

    @property
    def people(self) -> TextIO:
        """The stream for people: standard error where standard output is spoken for."""
        return sys.stderr if self.as_json or self.program or self.result else sys.stdout

    @contextlib.contextmanager
    def kept_pure(self) -> Iterator[None]:
        """With `as_json`, send whatever is written to standard output meanwhile, by children too, to standard error."""
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

    def done(
        self,
        document: Mapping[str, object],
        text: str,
        exit_code: int,
        errors: Sequence[ProvisionError] = (),
    ) -> int:
        """Print the result of a task that ended by itself, to standard output however it ended; returns the exit code."""
        if self.as_json:
            extra: dict[str, object] = {"exit": exit_code} if exit_code else {}
            if self.program and exit_code:
                extra["failed_in"] = "program"
            self._document({**extra, **_spoken(document, self.argv0)})
            return exit_code
        if text:
            print(text, file=sys.stderr if self.program else sys.stdout, flush=bool(errors))
        for error in errors:
            self._tell(error)
        return exit_code

    def failed(self, error: ProvisionError) -> int:
        """Print an error of ours; returns the exit code."""
        code = (
            EXIT_OWN_FAILURE
            if self.program and error.exit_code != _INTERRUPTED
            else error.exit_code
        )
        if self.debug:
            traceback.print_exception(error, file=sys.stderr)
        self._tell(error)
        if self.as_json:
            extra: dict[str, object] = {"failed_in": "provision"} if self.program else {}
            self._document({"error": error.as_dict(), "exit": code, **extra})
        return code

    def _tell(self, error: ProvisionError) -> None:
        error.fix = with_program(error.fix, self.argv0)
        print(_three_lines(error), file=sys.stderr)

    def _document(self, document: Mapping[str, object]) -> None:
        text = json.dumps(document, ensure_ascii=False, default=str)
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # another locale, or a file name that is not UTF-8
            text = json.dumps(document, default=str)
        print(text, flush=True)


_INTERRUPTED = 130


def interrupted(where: str) -> int:
    """Tell of a Ctrl-C that came while the program started, as of any later one; returns the exit code."""
    words = sys.argv[1:]
    ours = words[: words.index("--")] if "--" in words else words
    return Output(as_json="--json" in ours).failed(Interrupted("interrupted", where=where))


def _spoken(value: Any, program: str, key: str = "") -> Any:
    """A document in which remedies name commands as the user calls them."""
    match value:
        case str():
            return with_program(value, program) if key in _REMEDIES else value
        case Mapping():
            return {name: _spoken(each, program, name) for name, each in value.items()}
        case list() | tuple():
            return [_spoken(each, program, key) for each in value]
    return value


def _three_lines(error: ProvisionError) -> str:
    """The error for people: nothing in it that a terminal would obey, its first word in red where that is wanted."""
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


def give_up_stdout() -> None:
    """The reader of standard output is gone: write to nothing from now on, so that the interpreter's last flush is quiet."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
