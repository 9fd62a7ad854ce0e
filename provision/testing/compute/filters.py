"""The part of the API's list filters that clients use: `(labels.a="b") AND (status=RUNNING)`. Pure.

Supported: `=`, `!=`, `:`, `*` at the end of a value, AND; `eq`, `ne` with a regular expression that
matches the whole field; quoted and bare values, parentheses, and terms side by side (AND). Anything
else is a 400, never ignored: a filter that matches too much would hide mistakes of a client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from provision.testing.compute.errors import invalid

_TERM = re.compile(
    r"""\(?\s*([\w.\-]+)\s*(!=|=|:|\beq\b|\bne\b)\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^\s()"']+)\s*\)?\s*(?:AND\b)?\s*"""
)


def compile_filter(expression: str) -> Callable[[Mapping[str, Any]], bool]:
    """A predicate on resources; an empty expression selects all. Raises `ApiError` 400."""
    terms: list[tuple[str, str, str]] = []
    at = 0
    text = expression.strip()
    if text.count("(") != text.count(")"):
        raise invalid(f"Invalid value for field 'filter': '{expression}'. Unbalanced parentheses.")
    while at < len(text):
        match = _TERM.match(text, at)
        if match is None or match.group(0) == "":
            raise invalid(
                f"Invalid value for field 'filter': '{expression}'. Invalid list filter expression."
            )
        terms.append((match[1], match[2], _unquoted(match[3])))
        at = match.end()
    return lambda resource: all(_holds(resource, *term) for term in terms)


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value


def _holds(resource: Mapping[str, Any], path: str, operator: str, wanted: str) -> bool:
    actual: Any = resource
    for key in path.split("."):
        actual = actual.get(key) if isinstance(actual, Mapping) else None
    text = (
        "" if actual is None else str(actual).lower() if isinstance(actual, bool) else str(actual)
    )
    if operator in ("eq", "ne"):
        return (actual is not None and re.fullmatch(wanted, text) is not None) is (operator == "eq")
    same = text.startswith(wanted[:-1]) if wanted.endswith("*") else text == wanted
    present = actual is not None
    if operator == ":":
        return present and (wanted == "*" or wanted in text)
    return (same and present) is (operator == "=")
