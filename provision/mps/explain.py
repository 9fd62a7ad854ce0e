"""Error text and logs -> cause and remedy, by the table data/explanations.toml. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

LONGEST_LINE = 2_000
"""Characters that are looked at together: matching takes longer than in proportion to them, and a page may be minified to one line."""
_OVERLAP = 200
"""Characters that two neighbouring pieces of a longer line share: a text that is cut in one of them is whole in the other."""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    id: str
    says: str
    match: tuple[re.Pattern[str], ...]
    unless: tuple[re.Pattern[str], ...]
    cause: str
    remedy: str
    harmless: bool = False

    def fits(self, line: str) -> bool:
        """True where the line says what this row is about."""
        return any(each.search(line) for each in self.match) and not any(each.search(line) for each in self.unless)


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
"""Error numbers below are too common in other texts to be taken for CUDA's where CUDA is not named."""
_NUMBER = r"(?<!HTTP )\b(?:error|failure|code|result|status|gives)\b\W{{0,4}}(?:(?:code|number)\W{{1,3}})?{code}\b(?!\.\d|\s*%)"


def _number(code: int) -> str:
    """The pattern of CUDA's error number: `Error 805`, `code=805(…)`, `cuInit gives 805`, `CUDA error #805`."""
    pattern = _NUMBER.format(code=code)
    return pattern if code >= _SMALL else rf"\b(?:\w*cuda\w*|(?-i:cu[A-Z]\w*))\b.*{pattern}"


def _row(table: Mapping[str, Any]) -> Row:
    def patterns(key: str) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern, re.IGNORECASE | re.ASCII) for pattern in table.get(key, ()))

    return Row(
        table["id"],
        table["says"],
        (*patterns("match"), *(re.compile(_number(code), re.IGNORECASE | re.ASCII) for code in table.get("codes", ()))),
        patterns("unless"),
        table["cause"],
        table["remedy"],
        table.get("harmless", False),
    )


@cache
def rows() -> Sequence[Row]:
    """Every row, in the table's order."""
    text = resources.files("provision.mps").joinpath("data/explanations.toml").read_text(encoding="utf-8")
    return tuple(_row(table) for table in tomllib.loads(text)["row"])


def explain(text: str) -> tuple[Match, ...]:
    """The rows that fit `text`, harmless ones last, else in the order in which they appear in it; each once."""
    found: dict[str, Match] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        pieces = _pieces(raw)
        for row in rows():
            piece = next(filter(row.fits, pieces), None)
            if piece is None:
                continue
            before = found.get(row.id)
            found[row.id] = Match(row, before.text, before.line, before.times + 1) if before else Match(row, piece, number)
    return tuple(sorted(found.values(), key=lambda match: (match.row.harmless, match.line)))


def _pieces(raw: str) -> Sequence[str]:
    """What of a line is matched as one: a log in JSON has whole tracebacks on a line, with their line ends written out."""
    lines = (line.strip() for line in raw.split("\\n"))
    step = LONGEST_LINE - _OVERLAP
    return [line[start : start + LONGEST_LINE] for line in lines for start in range(0, max(1, len(line) - _OVERLAP), step)]
