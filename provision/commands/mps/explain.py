"""mps.explain: causes and remedies for an error text or a log."""

from __future__ import annotations

import codecs
import sys
from dataclasses import replace
from pathlib import Path

from provision.commands.shared.result import TaskResult
from provision.core.errors import EXIT_FAILED, UsageError
from provision.mps.explain import Match, explain
from provision.project.project import Project
from provision.report.checks import columns, wrapped
from provision.report.text import clean

_LARGEST_BYTES = 64 << 20
"""How much of a file or of standard input is read."""
_INDENT = 10


def mps_explain(project: Project, text: str | None, file: str | None) -> TaskResult:
    """Causes and remedies for `text`, or for the contents of `file` (`-`: standard input).

    Exit status 1 when nothing in it is known. Raises `UsageError` unless exactly one of the two is
    given, and when the file cannot be read.
    """
    content = _content(project, text, file)
    matches = [
        replace(match, row=replace(match.row, remedy=project.with_program_name(match.row.remedy)))
        for match in explain(content)
    ]
    document = {"matches": [match.as_dict() for match in matches]}
    if matches:
        found = "\n\n".join("\n".join(_match_lines(match)) for match in matches)
        return TaskResult(document, 0, found)
    if not content.strip():
        return TaskResult(document, EXIT_FAILED, "there is no text to explain")
    advice = f"{project.program_argv0} mps.doctor checks the host itself"
    return TaskResult(document, EXIT_FAILED, f"nothing in it is known; {advice}")


def _content(project: Project, text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        raise UsageError(
            "needs a text or a file, and not both",
            where="mps.explain",
            why="--text is the text itself, --file where it is read from, - for standard input",
            fix=f"{project.program_argv0} mps.explain --text 'Error 805'",
        )
    if text is not None:
        return text
    try:
        if file == "-":
            return _decoded(sys.stdin.buffer.read(_LARGEST_BYTES))
        with Path(str(file)).expanduser().open("rb") as opened:
            return _decoded(opened.read(_LARGEST_BYTES))
    except OSError as error:
        raise UsageError(
            "the file cannot be read",
            where=str(file),
            why=error.strerror or str(error),
            fix="--file - reads it from a pipe",
        ) from error


def _decoded(data: bytes) -> str:
    """The text, in the encoding of its byte order mark; UTF-8 without one.

    PowerShell writes UTF-16 into a file.
    """
    marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if marked else "utf-8-sig", "replace")


def _match_lines(match: Match) -> list[str]:
    """The line that was found, its number, its cause and its remedy."""
    width = columns()
    line = clean(match.text)
    repeated = f", {match.times} lines" if match.times > 1 else ""
    parts = (("cause", match.row.cause), ("remedy", match.row.remedy))
    return [
        line if len(line) <= width else f"{line[: width - 1]}…",
        f"  {'line':<{_INDENT - 2}}{match.line}{repeated}",
        *(
            f"  {label:<{_INDENT - 2}}" + "\n".join(wrapped(text, _INDENT, width=width))
            for label, text in parts
        ),
    ]
