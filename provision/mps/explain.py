"""Causes and remedies of error texts and logs, from the table explanations.toml. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from provision.report.text import clean

LONGEST_PIECE = 2_000
"""The most characters that are matched at once. Matching takes more than proportional time, and a
page may be minified to one line."""
_OVERLAP = 200
"""Characters that two neighbouring pieces of a longer line share, so that a text at the border of
one is complete in the other."""
_ESCAPE_SEQUENCE = re.compile(r"\\(?:u001|x1)[bB]")
"""The escape character before a colour, as JSON and Python write it."""
_LEAST_UNAMBIGUOUS_CODE = 800
"""Lower error numbers are common in other texts: they match in lines about CUDA alone."""
_CODE_PATTERN = (
    r"(?<!HTTP )\b(?:error|failure|code|result|status|gives)\b"
    r"\W{{0,4}}(?:(?:code|number)\W{{1,3}})?{code}\b(?!\.\d|\s*%)"
)


@dataclass(frozen=True)
class Row:
    """One row of the table: patterns, cause and remedy."""

    id: str
    says: str
    """The error as documentation shows it."""
    words: tuple[str, ...]
    """Lower-case words, of which every matching line contains one. Looking for them first takes a
    tenth of the time of the patterns."""
    match: tuple[re.Pattern[str], ...]
    unless: tuple[re.Pattern[str], ...]
    cause: str
    remedy: str
    harmless: bool = False

    def has_word(self, lower: str) -> bool:
        """True where a lower-case text contains one of the row's words."""
        return any(word in lower for word in self.words)

    def matches(self, line: str) -> bool:
        """True where a pattern of `match` is found in the line and none of `unless`."""
        is_matched = self.has_word(line.lower()) and any(
            pattern.search(line) for pattern in self.match
        )
        return is_matched and not any(pattern.search(line) for pattern in self.unless)


@dataclass(frozen=True)
class Match:
    """A row that matches a text: the first matching line, and the number of matching lines."""

    row: Row
    text: str
    line: int
    times: int = 1

    def as_dict(self) -> dict[str, Any]:
        """The match as `--json` prints it."""
        return {
            "text": self.text,
            "cause": self.row.cause,
            "remedy": self.row.remedy,
            "id": self.row.id,
            "harmless": self.row.harmless,
            "line": self.line,
            "times": self.times,
        }


def explain(text: str) -> tuple[Match, ...]:
    """The rows that match `text`, each once, ordered by first line; harmless ones last."""
    lines = [
        clean(line) if "\x1b" in line else line
        for line in _ESCAPE_SEQUENCE.sub("\x1b", text).splitlines()
    ]
    lower = "\n".join(lines).lower()
    matches = []
    for row in rows():
        first_pieces = (
            (number, next(filter(row.matches, _pieces(lines[number])), None))
            for number in sorted(_lines_with(lower, row.words))
        )
        matching = [(number, piece) for number, piece in first_pieces if piece is not None]
        if matching:
            number, piece = matching[0]
            matches.append(Match(row, piece, number + 1, len(matching)))
    return tuple(sorted(matches, key=lambda match: (match.row.harmless, match.line)))


def _lines_with(lower: str, words: Sequence[str]) -> set[int]:
    """The numbers, from 0, of the lines of a lower-case text that contain one of the words."""
    numbers = set()
    for word in words:
        number = start = 0
        while (position := lower.find(word, start)) >= 0:
            number += lower.count("\n", start, position)
            numbers.add(number)
            start = lower.find("\n", position) + 1
            if not start:
                break
            number += 1
    return numbers


def _pieces(raw: str) -> Sequence[str]:
    r"""The pieces of a line that are matched one by one.

    A line is divided at `\n` written out, since a log in JSON has whole tracebacks on a line, and
    every `LONGEST_PIECE` characters.
    """
    lines = (line.strip() for line in raw.split("\\n"))
    step = LONGEST_PIECE - _OVERLAP
    return [
        line[start : start + LONGEST_PIECE]
        for line in lines
        for start in range(0, max(1, len(line) - _OVERLAP), step)
    ]


# --- the table ------------------------------------------------------------------------------------


@cache
def rows() -> Sequence[Row]:
    """Every row, in the order of the table."""
    text = (Path(__file__).parent / "explanations.toml").read_text(encoding="utf-8")
    return tuple(_row(entry) for entry in tomllib.loads(text)["row"])


def _row(entry: Mapping[str, Any]) -> Row:
    codes = entry.get("codes", ())
    return Row(
        id=entry["id"],
        says=entry["says"],
        words=(*entry["words"], *map(str, codes)),
        match=_compiled([*entry.get("match", ()), *map(_code_pattern, codes)]),
        unless=_compiled(entry.get("unless", ())),
        cause=entry["cause"],
        remedy=entry["remedy"],
        harmless=entry.get("harmless", False),
    )


def _compiled(patterns: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE | re.ASCII) for pattern in patterns)


def _code_pattern(code: int) -> str:
    """The pattern of a CUDA error number: `Error 805`, `code=805(…)`, `cuInit gives 805`."""
    pattern = _CODE_PATTERN.format(code=code)
    if code >= _LEAST_UNAMBIGUOUS_CODE:
        return pattern
    return rf"\b(?:\w*cuda\w*|(?-i:cu[A-Z]\w*))\b.*{pattern}"
