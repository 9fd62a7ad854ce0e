"""A part of Go's text/template: fields, index, json, range, if, with, println and the like."""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import Any

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`|[^\s"`()]+|[()]')
_ACTION = re.compile(r"{{-?\s*(.*?)\s*-?}}", re.DOTALL)


class TemplateError(Exception):
    """The template does not parse, or names an unknown field."""


def render(template: str, data: Any) -> str:
    """The template applied to `data`, which is plain JSON. Raises `TemplateError`."""
    pieces = _split(template)
    text, rest = _block(pieces, 0, data)
    if rest != len(pieces):
        raise TemplateError("template parsing error: unexpected {{end}}")
    return text


def _split(template: str) -> list[tuple[str, str]]:
    pieces = []
    position = 0
    for found in _ACTION.finditer(template):
        pieces.append(("text", template[position : found.start()]))
        pieces.append(("action", found.group(1)))
        position = found.end()
    rest = template[position:]
    if "{{" in rest:
        raise TemplateError("template parsing error: template: :1: unclosed action")
    pieces.append(("text", rest))
    return pieces


def _block(pieces: list[tuple[str, str]], at: int, dot: Any) -> tuple[str, int]:
    """(text up to the matching end or else, index of that action or of the end)."""
    out = []
    while at < len(pieces):
        kind, body = pieces[at]
        word = "" if kind == "text" or not body else body.split(None, 1)[0]
        if kind == "text":
            out.append(body)
        elif word in ("end", "else"):
            return "".join(out), at
        elif word in ("range", "if", "with"):
            text, at = _compound(pieces, at, dot, word, body.split(None, 1)[1])
            out.append(text)
        else:
            out.append(_show(_pipeline(body, dot)))
        at += 1
    return "".join(out), at


def _compound(
    pieces: list[tuple[str, str]], at: int, dot: Any, word: str, expression: str
) -> tuple[str, int]:
    value = _pipeline(expression, dot)
    if word == "range":
        values = list(value.values()) if isinstance(value, dict) else list(value or [])
        inside = values
    else:
        inside = [value if word == "with" else dot] if value else []
    parts = [_block(pieces, at + 1, item)[0] for item in inside]
    _, stop = _block(pieces, at + 1, _Anything())
    if stop < len(pieces) and pieces[stop][1].startswith("else"):
        other, end = _block(pieces, stop + 1, dot if not inside else _Anything())
        if not inside:
            parts = [other]
        stop = end
    if stop >= len(pieces):
        raise TemplateError("template parsing error: template: :1: unexpected EOF")
    return "".join(parts), stop


class _Anything(dict):  # type: ignore[type-arg]
    """The data for a block that is skipped: it has every field."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())


def _pipeline(text: str, dot: Any) -> Any:
    value: Any = None
    for number, part in enumerate(_pipes(text)):
        words = [found.group(0) for found in _TOKEN.finditer(part)]
        value = _call(words, dot, [value] if number else [])
    return value


def _pipes(text: str) -> list[str]:
    parts, current, quote = [], "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in '"`':
            quote = char
        elif char == "|":
            parts.append(current)
            current = ""
            continue
        current += char
    return [*parts, current]


def _call(words: list[str], dot: Any, extra: list[Any]) -> Any:
    if not words:
        raise TemplateError("template parsing error: template: :1: missing value for command")
    name = words[0]
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*_values(words[1:], dot), *extra)
    if name.startswith((".", '"', "`", "(")) or name.isdigit():
        return _values(words, dot)[0]
    raise TemplateError(f'template parsing error: template: :1: function "{name}" not defined')


def _values(words: list[str], dot: Any) -> list[Any]:
    values: list[Any] = []
    at = 0
    while at < len(words):
        if words[at] == "(":
            depth, stop = 1, at + 1
            while stop < len(words) and depth:
                depth += {"(": 1, ")": -1}.get(words[stop], 0)
                stop += 1
            value = _call(words[at + 1 : stop - 1], dot, [])
            at = stop
            if at < len(words) and words[at].startswith(".") and words[at] != ".":
                value = _field(value, words[at])
                at += 1
            values.append(value)
            continue
        values.append(_literal(words[at], dot))
        at += 1
    return values


def _literal(word: str, dot: Any) -> Any:
    if word.startswith('"'):
        return json.loads(word)
    if word.startswith("`"):
        return word[1:-1]
    if word.lstrip("-").isdigit():
        return int(word)
    if word.startswith("."):
        return _field(dot, word)
    raise TemplateError(f"template parsing error: template: :1: bad word {word!r}")


def _field(value: Any, path: str) -> Any:
    for name in path.split("."):
        if not name:
            continue
        if isinstance(value, dict):
            if name not in value:
                raise TemplateError(
                    f'template: :1:2: executing "" at <{path}>: map has no entry for key "{name}"'
                )
            value = value[name]
        else:
            raise TemplateError(
                f'template: :1:2: executing "" at <{path}>: nil data; no entry for key "{name}"'
            )
    return value


def _index(container: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(container, _Anything):
            return container
        if isinstance(container, dict):
            container = container.get(key, "")
        elif container is None:
            container = ""
        else:
            try:
                container = container[key]
            except (IndexError, TypeError) as error:
                raise TemplateError(
                    'template: :1:2: executing "" at <index>: error calling index: '
                    f"index out of range: {key}"
                ) from error
    return container


def _println(*values: Any) -> str:
    return " ".join(_show(value) for value in values) + "\n"


_FUNCTIONS: dict[str, Any] = {
    "index": _index,
    "json": lambda value: json.dumps(value, separators=(",", ":")),
    "len": len,
    "println": _println,
    "print": lambda *values: "".join(_show(value) for value in values),
    "join": lambda values, separator: separator.join(values),
    "upper": lambda value: value.upper(),
    "lower": lambda value: value.lower(),
    "eq": lambda left, *rights: left in rights,
    "ne": lambda left, right: left != right,
    "not": lambda value: not value,
}


def _show(value: Any) -> str:
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{_show(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(_show(item) for item in value) + "]"
    return str(value)
