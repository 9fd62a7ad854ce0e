"""The errors of pydantic as a `SettingsError`: key, value, origin, reason and remedy. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from provision.core.errors import SettingsError
from provision.settings.levels import Merged, Path

_ALLOWED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "mapping_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
}
_NAMED_LIKE_A_SECRET = re.compile(r"passw|secret|token|credential|private|api_?key", re.IGNORECASE)
_VALUE_CHARS = 60


def settings_error(
    details: Sequence[ErrorDetails], model: type[BaseModel], merged: Merged
) -> SettingsError:
    """The error for the first problem. The remedy lists the keys of the other problems."""
    first, *others = sorted(details, key=lambda detail: detail["type"] != "extra_forbidden")
    if first["type"] == "extra_forbidden":  # a misspelt key is why its right spelling is missing
        others = [other for other in others if other["type"] != "missing"]
    error = _explain(first, model, merged)
    if others:
        keys = ", ".join(dict.fromkeys(_dotted(_path(other)) for other in others))
        error.fix += f" (then look at {keys} too)"
    return error


def _explain(detail: ErrorDetails, model: type[BaseModel], merged: Merged) -> SettingsError:
    """The error for one problem."""
    path = _path(detail)
    key, parent = _dotted(path), _dotted(path[:-1])
    where = merged.location(path) or merged.location(path[:1]) or "defaults"

    def error(what: str, why: str, fix: str) -> SettingsError:
        return SettingsError(what, where=where, why=why, fix=fix)

    if detail["type"] == "extra_forbidden":
        known = list(_model_at(model, path[:-1]).model_fields)
        written = masked(detail["input"], path)
        why = f"its value is {written}; keys of {parent} are {', '.join(known)}"
        return error(f"unknown key {key}", why, _nearest(path, known, model))
    if detail["type"] == "missing":
        return error(f"{key} is missing", f"{parent} requires it", f"set {key}")
    if detail["loc"][-1:] == ("[key]",):
        what = f"{masked(path[-1], ())} is not a valid key of {parent}"
        return error(what, f"allowed: {_allowed(detail)}", "rename it")
    if detail["type"] == "impossible":
        context = detail.get("ctx", {})
        what = f"{key} is {_shown(_value_at(merged.data, path), path)}"
        return error(what, str(context["reason"]), str(context["fix"]))
    what = f"{key} is {_shown(detail['input'], path)}"
    return error(what, f"allowed: {_allowed(detail)}", _fix(key, path, detail))


def _path(detail: ErrorDetails) -> Path:
    words = [str(word) for word in detail["loc"] if word != "[key]"]
    if detail["type"] == "impossible":
        words.append(str(detail.get("ctx", {})["key"]))
    return tuple(words)


def _dotted(path: Path) -> str:
    text = "provision"
    for word in path:
        text += f"[{word}]" if word.isdigit() else f".{word}"
    return text


def _value_at(data: object, path: Path) -> object:
    for word in path:
        data = data.get(word) if isinstance(data, Mapping) else None
    return data


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    at: type[BaseModel] = model
    for word in path:
        info = at.model_fields.get(word)
        if info is None:
            continue
        for candidate in (info.annotation, *get_args(info.annotation)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                at = candidate
    return at


def _nearest(path: Path, known: Sequence[str], model: type[BaseModel]) -> str:
    near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {_dotted((*path[:-1], near[0]))}?"
    for name in model.model_fields:
        if (
            path[-1] in _model_at(model, (name,)).model_fields
            and _model_at(model, (name,)) is not model
            and name != "hosts"
        ):
            return f"did you mean {_dotted((name, path[-1]))}?"
    return f"remove {_dotted(path)}"


def _allowed(detail: ErrorDetails) -> str:
    if detail["type"] == "value_error":
        return str(detail.get("ctx", {})["error"])
    if detail["type"] == "literal_error":
        return re.sub(r"'", "", str(detail.get("ctx", {})["expected"])).replace(" or ", ", ")
    return _ALLOWED.get(detail["type"], detail["msg"])


def _fix(key: str, path: Path, detail: ErrorDetails) -> str:
    kind, value = detail["type"], detail["input"]
    if kind == "string_type" and isinstance(value, (int, float)):
        read_as = "true or false" if isinstance(value, bool) else "a number"
        return f"write {key} in quotes: without them YAML reads {read_as}, not text"
    if kind == "literal_error" and value is False:
        return f'write {key} as "none" in quotes: YAML reads no as false'
    if kind == "int_type" and isinstance(value, str):
        return f"write {key} as digits, without quotes and without a unit"
    if kind == "tuple_type":
        return f"write {key} as a list: [{masked(value, path)}]"
    return f"change or remove {key}"


def masked(value: Any, path: Path) -> str:
    """The value as an error prints it: short and on one line.

    A value that may be confidential (in `env`, or with a key named like a secret) reads `****`.
    """
    if "env" in path[:-1] or (path and _NAMED_LIKE_A_SECRET.search(path[-1])):
        return "****"
    if isinstance(value, Mapping):
        return "{" + ", ".join(str(key) for key in value) + "}"
    text = (
        repr(value)
        if isinstance(value, str)
        else str(list(value) if isinstance(value, tuple) else value)
    )
    return text if len(text) <= _VALUE_CHARS else text[: _VALUE_CHARS - 1] + "…"


def _shown(value: Any, path: Path) -> str:
    return "empty" if value is None else masked(value, path)
