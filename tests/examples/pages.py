"""The pages of the documentation as data: their code blocks, links and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"# ([\w./-]+\.(?:py|yaml))\n")


class Block(NamedTuple):
    """A fenced block; `file` is the name on its first line, where it has one."""

    page: str
    language: str
    text: str
    file: str


def pages() -> Sequence[Path]:
    """README.md, CHANGELOG.md, and every page below docs/ and examples/."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *sorted(ROOT.glob("docs/*.md")),
        *sorted(ROOT.glob("examples/*/README.md")),
        ROOT / "lab" / "README.md",
        ROOT / "bench" / "README.md",
    ]


def name_of(page: Path) -> str:
    """The path of the page in the repository."""
    return page.relative_to(ROOT).as_posix()


def documented() -> dict[str, set[str]]:
    """The top-level keys of each task's document, as the page lists them."""
    rows = re.findall(
        r"(?m)^\| ((?:`[a-z.-]+` ?)+)\| (.*) \|$",
        (ROOT / "docs" / "json.md").read_text(encoding="utf-8"),
    )
    return {
        task: set(re.findall(r"`(\w+)`", keys))
        for tasks, keys in rows
        for task in re.findall(r"`([a-z.-]+)`", tasks)
    }


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page."""
    for language, text in _FENCED.findall(page.read_text(encoding="utf-8")):
        named = _NAMED.match(text)
        yield Block(name_of(page), language, text, named[1] if named else "")


def without_code(page: Path) -> str:
    """The page without its fenced and indented blocks."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"(?m)^ {4}.*$", "", text)
