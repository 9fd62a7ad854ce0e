"""Error text and logs -> cause and remedy, by the table explanations.toml. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from provision.report.text import clean

LONGEST_LINE = 2_000
"""Characters that are looked at together: matching takes longer than in proportion to them, and a
page may be minified to one line."""
_WRITTEN_OUT = re.compile(r"\\(?:u001|x1)[bB]")
"""The escape character before a colour, as JSON and Python write it."""
_OVERLAP = 200
"""Characters that two neighbouring pieces of a longer line share: a text that is cut in one of them
is whole in the other."""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    id: str
    says: str
    words: tuple[str, ...]
    """In lower case: what holds none of them does not fit. Looking for these first takes a tenth of
    the time."""
    match: tuple[re.Pattern[str], ...]
    unless: tuple[re.Pattern[str], ...]
    cause: str
    remedy: str
    harmless: bool = False

    def may_fit(self, lower: str) -> bool:
        """False where a text, in lower case, has none of the row's words."""
        return any(word in lower for word in self.words)

    def fits(self, line: str) -> bool:
        """True where the line says what this row is about."""
        matched = self.may_fit(line.lower()) and any(each.search(line) for each in self.match)
        return matched and not any(each.search(line) for each in self.unless)


@dataclass(frozen=True)
class Match:
    """A row that fits: the first line that it was found in, and how many lines it fits."""

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


_SMALL = 800
"""Error numbers below are too common in other texts to be taken for CUDA's where CUDA is not
named."""
_NUMBER = r"(?<!HTTP )\b(?:error|failure|code|result|status|gives)\b\W{{0,4}}(?:(?:code|number)\W{{1,3}})?{code}\b(?!\.\d|\s*%)"


def _number(code: int) -> str:
    """The pattern of CUDA's error number: `Error 805`, `code=805(…)`, `cuInit gives 805`, `CUDA error #805`."""
    pattern = _NUMBER.format(code=code)
    return pattern if code >= _SMALL else rf"\b(?:\w*cuda\w*|(?-i:cu[A-Z]\w*))\b.*{pattern}"


def _row(table: Mapping[str, Any]) -> Row:
    def patterns(key: str) -> tuple[re.Pattern[str], ...]:
        return tuple(
            re.compile(pattern, re.IGNORECASE | re.ASCII) for pattern in table.get(key, ())
        )

    codes = table.get("codes", ())
    return Row(
        table["id"],
        table["says"],
        (*table["words"], *map(str, codes)),
        (
            *patterns("match"),
            *(re.compile(_number(code), re.IGNORECASE | re.ASCII) for code in codes),
        ),
        patterns("unless"),
        table["cause"],
        table["remedy"],
        table.get("harmless", False),
    )


@cache
def rows() -> Sequence[Row]:
    """Every row, in the table's order."""
    text = (
        resources.files("provision.mps").joinpath("explanations.toml").read_text(encoding="utf-8")
    )
    return tuple(_row(table) for table in tomllib.loads(text)["row"])


def explain(text: str) -> tuple[Match, ...]:
    """The rows that fit `text`, harmless ones last, else in the order in which they appear in it; each once."""
    lines = [
        clean(line) if "\x1b" in line else line
        for line in _WRITTEN_OUT.sub("\x1b", text).splitlines()
    ]
    lower = "\n".join(lines).lower()
    found = []
    for row in rows():
        pieces = (
            (number, next(filter(row.fits, _pieces(lines[number])), None))
            for number in sorted(_holders(lower, row.words))
        )
        fitting = [(number, piece) for number, piece in pieces if piece is not None]
        if fitting:
            first, piece = fitting[0]
            found.append(Match(row, piece, first + 1, len(fitting)))
    return tuple(sorted(found, key=lambda match: (match.row.harmless, match.line)))


def _holders(lower: str, words: Sequence[str]) -> set[int]:
    """The lines, counted from 0, that hold one of the words."""
    found = set()
    for word in words:
        number = start = 0
        while (at := lower.find(word, start)) >= 0:
            number += lower.count("\n", start, at)
            found.add(number)
            start = lower.find("\n", at) + 1
            if not start:
                break
            number += 1
    return found


def _pieces(raw: str) -> Sequence[str]:
    """What of a line is matched as one: a log in JSON has whole tracebacks on a line, with their line ends written out."""
    lines = (line.strip() for line in raw.split("\\n"))
    step = LONGEST_LINE - _OVERLAP
    return [
        line[start : start + LONGEST_LINE]
        for line in lines
        for start in range(0, max(1, len(line) - _OVERLAP), step)
    ]
