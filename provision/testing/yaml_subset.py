"""The part of YAML that cloud-init user-data is written in: block mappings and sequences, flow sequences, scalars, `|`.

A whole YAML parser would be a dependency for one file format of which few parts occur. What is not
understood fails.
"""

from __future__ import annotations

import json
import re
from typing import Any

_KEY = re.compile(r"""("[^"]*"|'[^']*'|[^\s#\[\]{},&*!|>'"%@`-][^#:]*|-[^\s:][^:]*)\s*:(?:\s+|$)""")
_BLOCK = re.compile(r"([|>])([+-]?)(\d?)\s*(#.*)?\Z")


class YamlError(ValueError):
    """Text that is not of the part of YAML that is understood; the message names the line."""


class _Lines:
    def __init__(self, text: str) -> None:
        self.all = text.split("\n")
        self.at = 0

    def peek(self) -> tuple[int, str] | None:
        """Indentation and content of the next line that has content."""
        while self.at < len(self.all):
            line = self.all[self.at]
            stripped = line.strip()
            if stripped and not stripped.startswith("#") and stripped != "---":
                if "\t" in line[: len(line) - len(line.lstrip())]:
                    raise YamlError(f"line {self.at + 1}: a tab indents")
                return len(line) - len(line.lstrip(" ")), stripped
            self.at += 1
        return None

    def fail(self, what: str) -> YamlError:
        return YamlError(
            f"line {self.at + 1}: {what}: {self.all[min(self.at, len(self.all) - 1)].strip()[:60]!r}"
        )


def parse(text: str) -> Any:
    """The document as dicts, lists, strings, numbers, booleans and None. Raises `YamlError`."""
    lines = _Lines(text)
    if lines.peek() is None:
        return None
    value = _node(lines, 0)
    if lines.peek() is not None:
        raise lines.fail("not understood")
    return value


def _node(lines: _Lines, least: int) -> Any:
    found = lines.peek()
    if found is None or found[0] < least:
        return None
    indent, content = found
    if content == "-" or content.startswith("- "):
        return _sequence(lines, indent)
    if _KEY.match(content):
        return _mapping(lines, indent)
    lines.at += 1
    return _scalar(content, lines)


def _sequence(lines: _Lines, indent: int) -> list[Any]:
    items = []
    while (
        (found := lines.peek()) is not None
        and found[0] == indent
        and (found[1] == "-" or found[1].startswith("- "))
    ):
        rest = found[1][1:].lstrip()
        if not rest or rest.startswith("#"):
            lines.at += 1
            items.append(_node(lines, indent + 1))
            continue
        inner = indent + (len(found[1]) - len(rest))
        if _KEY.match(rest) or rest.startswith("- "):
            lines.all[lines.at] = (
                " " * inner + rest
            )  # the item's first line is the first of a block of its own
            items.append(_node(lines, inner))
        else:
            items.append(_value(lines, rest, indent))
    return items


def _mapping(lines: _Lines, indent: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    while (found := lines.peek()) is not None and found[0] == indent:
        match = _KEY.match(found[1])
        if match is None:
            raise lines.fail("a key is missing")
        key = str(_scalar(match.group(1).strip(), lines))
        if key in result:
            raise lines.fail("the key is there twice")
        rest = found[1][match.end() :].strip()
        if not rest or rest.startswith("#"):
            lines.at += 1
            following = lines.peek()
            same = following is not None and following[0] == indent and following[1].startswith("-")
            result[key] = _sequence(lines, indent) if same else _node(lines, indent + 1)
        else:
            result[key] = _value(lines, rest, indent)
    return result


def _value(lines: _Lines, text: str, indent: int) -> Any:
    """A value that starts on the current line."""
    block = _BLOCK.match(text)
    lines.at += 1
    if block:
        return _literal(lines, indent, fold=block.group(1) == ">", chomp=block.group(2))
    while text.startswith("[") and not _closed(text):
        if lines.at >= len(lines.all):
            raise lines.fail("a flow sequence does not end")
        text += " " + lines.all[lines.at].strip()
        lines.at += 1
    return _scalar(text, lines)


def _literal(lines: _Lines, indent: int, *, fold: bool, chomp: str) -> str:
    taken: list[str] = []
    depth = None
    while lines.at < len(lines.all):
        line = lines.all[lines.at]
        blank = not line.strip()
        here = len(line) - len(line.lstrip(" "))
        if not blank and depth is None:
            depth = here
        if not blank and (here <= indent or here < (depth or 0)):
            break
        taken.append("" if blank else line[depth:])
        lines.at += 1
    text = "\n".join(taken).rstrip("\n")
    if fold:
        text = re.sub(r"(?<!\n)\n(?!\n)", " ", text)
    return text if chomp == "-" else text + "\n"


def _closed(text: str) -> bool:
    depth, quote = 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        else:
            depth += {"[": 1, "]": -1}.get(char, 0)
    return depth == 0


def _scalar(text: str, lines: _Lines) -> Any:
    if text.startswith("["):
        return _flow(text, lines)
    if text.startswith('"'):
        try:
            return json.JSONDecoder().raw_decode(text)[0]
        except ValueError:
            raise lines.fail("a string in double quotes is not understood") from None
    if text.startswith("'"):
        found = re.match(r"'((?:[^']|'')*)'\s*(?:#.*)?\Z", text)
        if not found:
            raise lines.fail("a string in single quotes does not end")
        return found.group(1).replace("''", "'")
    if text[0] in "{&*!%@`":
        raise lines.fail("this kind of YAML is not understood")
    text = re.split(r"\s#", text)[0].strip()
    if text in ("true", "false"):
        return text == "true"
    if text in ("null", "~", ""):
        return None
    return int(text) if re.fullmatch(r"-?(0|[1-9]\d*)", text) else text


def _flow(text: str, lines: _Lines) -> list[Any]:
    end = text.rfind("]")
    if end < 0:
        raise lines.fail("a flow sequence does not end")
    items, current, quote, depth = [], "", "", 0
    for char in text[1:end]:
        if quote:
            quote = "" if char == quote and not current.endswith("\\") else quote
        elif char in "\"'":
            quote = char
        elif char in "[]":
            depth += 1 if char == "[" else -1
        elif char == "," and depth == 0:
            items.append(current.strip())
            current = ""
            continue
        current += char
    if current.strip():
        items.append(current.strip())
    return [_scalar(item, lines) for item in items]
