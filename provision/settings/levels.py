"""Levels of settings: files, variables and flags, merged so that each value has an origin. Pure."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel

from provision.core.errors import SettingsError

Path: TypeAlias = tuple[str, ...]

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Level:
    """What one source (a file, a variable or a flag) sets under `provision`.

    `lines` maps the path of a key to its line, counted from 1.
    """

    source: str
    data: Mapping[str, object]
    lines: Mapping[Path, int] = field(default_factory=dict)

    def location(self, path: Path) -> str:
        """Where `path` is written, for people: the source and the line of the key or its parent."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return f"{self.source}, line {self.lines[path[:length]]}"
        return self.source


@dataclass(frozen=True)
class Merged:
    """All levels as one mapping, and the level that set each key last."""

    data: Mapping[str, object]
    origins: Mapping[Path, Level]

    def location(self, path: Path) -> str:
        """Where the value at `path` is written; empty for a key that no level sets."""
        for length in range(len(path), 0, -1):
            level = self.origins.get(path[:length])
            if level is not None:
                return level.location(path)
        return ""


def merge(levels: Iterable[Level]) -> Merged:
    """Merge `levels`, the weakest first, as Invoke does: mappings by key, other values whole."""
    data: dict[str, object] = {}
    origins: dict[Path, Level] = {}
    for level in levels:
        _merge_into(data, origins, level, level.data, ())
    return Merged(data, origins)


def _merge_into(
    target: dict[str, object],
    origins: dict[Path, Level],
    level: Level,
    data: Mapping[str, object],
    at: Path,
) -> None:
    for key, value in data.items():
        path = (*at, str(key))
        origins[path] = level
        if isinstance(value, Mapping):
            below = target.get(key)
            target[key] = below = dict(below) if isinstance(below, Mapping) else {}
            _merge_into(below, origins, level, value, path)
        else:
            target[key] = value


# --- values that come as text: variables and flags ------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """A key of the settings and the type of its value.

    `kind` is str, int, bool, tuple (in text a list with commas) or dict (which text cannot set).
    """

    path: Path
    kind: type


def leaves(model: type[BaseModel], at: Path = ()) -> Iterator[Leaf]:
    """Yield every key of `model` and of the models in it, in the order of declaration."""
    for name, info in model.model_fields.items():
        path = (*at, name)
        kind = _kind(info.annotation)
        if issubclass(kind, BaseModel):
            yield Leaf(path, dict)
            yield from leaves(kind, path)
        else:
            yield Leaf(path, kind)


def _kind(annotation: Any) -> type:
    origin = get_origin(annotation)
    if origin is tuple or origin is dict:
        return tuple if origin is tuple else dict
    if origin in (Annotated, Union, types.UnionType):
        return _kind(get_args(annotation)[0])
    return annotation if isinstance(annotation, type) else str


def env_levels(model: type[BaseModel], env: Mapping[str, str], prefix: str) -> list[Level]:
    """A level for each variable whose name begins with `prefix`.

    `INVOKE_PROVISION_WORKER_BASE` sets `worker.base`. Raises `SettingsError` for a variable that
    stands for no key, and for a value of the wrong type.
    """
    by_name = {prefix + "_".join(leaf.path).upper(): leaf for leaf in leaves(model)}
    levels = []
    for variable in sorted(
        name for name in env if name.startswith(prefix) or name == prefix.rstrip("_")
    ):
        leaf = by_name.get(variable)
        if leaf is None:
            raise _unknown_variable(variable, by_name, prefix)
        levels.append(text_level(variable, leaf, env[variable]))
    return levels


def _unknown_variable(variable: str, by_name: Mapping[str, Leaf], prefix: str) -> SettingsError:
    if variable == prefix.rstrip("_"):
        return _mapping_error(variable, "provision")
    models = {leaf.path[0] for leaf in by_name.values() if len(leaf.path) > 1}
    for name, leaf in by_name.items():
        if leaf.kind is dict and leaf.path[-1] not in models and variable.startswith(name + "_"):
            return _mapping_error(variable, "provision." + ".".join(leaf.path))
    near = difflib.get_close_matches(variable, by_name, n=1, cutoff=0.75)
    return SettingsError(
        "no setting has this variable",
        where=variable,
        why=f"variables are {prefix}KEY or {prefix}WORKER_KEY, one for each setting; "
        "this one maps to none",
        fix=f"did you mean {near[0]}?" if near else f"unset {variable}",
    )


def _mapping_error(source: str, key: str) -> SettingsError:
    return SettingsError(
        f"{key} cannot be set by text",
        where=source,
        why=f"{key} is a mapping of keys to values, which text does not hold",
        fix=f"write {key} into invoke.yaml, or set single keys of it",
    )


def text_level(source: str, leaf: Leaf, text: str) -> Level:
    """The level that sets `leaf` to the value in `text`; an empty text leaves it unset.

    Commas separate the values of a list. Raises `SettingsError` for a value of the wrong type.
    """
    value = _from_text(source, leaf, text)
    data: dict[str, object] = {leaf.path[-1]: value}
    for key in reversed(leaf.path[:-1]):
        data = {key: data}
    return Level(source, data)


def _from_text(source: str, leaf: Leaf, text: str) -> object:
    key = "provision." + ".".join(leaf.path)
    if leaf.kind is dict:
        raise _mapping_error(source, key)
    if text == "":
        return None
    if leaf.kind is tuple:
        return tuple(word.strip() for word in text.split(",") if word.strip())
    if leaf.kind is bool:
        return _bool(source, key, text)
    if leaf.kind is int:
        return _int(source, key, text)
    return text


def _bool(source: str, key: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise SettingsError(
        f"{key} is {text!r}", where=source, why="neither true nor false", fix="write true or false"
    )


def _int(source: str, key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingsError(
            f"{key} is {text!r}",
            where=source,
            why="not a whole number",
            fix="write digits alone, such as 8",
        ) from None
