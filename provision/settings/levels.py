"""Levels of settings, kept apart until they are merged, so that every value can say where it came from. Pure."""

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
    """What one source sets under `provision`: a file, a variable or a flag. `lines` maps a key's path to its line (1 = first)."""

    source: str
    data: Mapping[str, object]
    lines: Mapping[Path, int] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        """Where `path` is written, for people; the nearest key above it when it has no line of its own."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return f"{self.source}, line {self.lines[path[:length]]}"
        return self.source


@dataclass(frozen=True)
class Merged:
    """All levels as one mapping, and the level that had the last word on each key."""

    data: Mapping[str, object]
    origins: Mapping[Path, Level]

    def place(self, path: Path) -> str:
        """Where the value at `path` came from; of a key that no level sets, the empty string."""
        for length in range(len(path), 0, -1):
            level = self.origins.get(path[:length])
            if level is not None:
                return level.place(path)
        return ""


def merge(levels: Iterable[Level]) -> Merged:
    """Merge `levels`, the weakest first: mappings key by key, anything else as a whole (as Invoke does)."""
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
    """One key that text can set. `kind` is str, int, bool, tuple (a comma-separated list) or dict (which text cannot set)."""

    path: Path
    kind: type


def leaves(model: type[BaseModel], at: Path = ()) -> Iterator[Leaf]:
    """Every key of `model` and of the models in it, in the order of declaration."""
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
    """One level per variable whose name begins with `prefix` (`INVOKE_PROVISION_WORKER_BASE` sets `worker.base`).

    Raises SettingsError for a variable that maps to no key, with the nearest name.
    """
    by_name = {prefix + "_".join(leaf.path).upper(): leaf for leaf in leaves(model)}
    found = []
    for variable in sorted(
        name for name in env if name.startswith(prefix) or name == prefix.rstrip("_")
    ):
        leaf = by_name.get(variable)
        if leaf is None:
            raise _unknown_variable(variable, by_name, prefix)
        found.append(text_level(variable, leaf, env[variable]))
    return found


def _unknown_variable(variable: str, by_name: Mapping[str, Leaf], prefix: str) -> SettingsError:
    if variable == prefix.rstrip("_"):
        return _is_mapping(variable, "provision")
    models = {leaf.path[0] for leaf in by_name.values() if len(leaf.path) > 1}
    for name, leaf in by_name.items():
        if leaf.kind is dict and leaf.path[-1] not in models and variable.startswith(name + "_"):
            return _is_mapping(variable, "provision." + ".".join(leaf.path))
    near = difflib.get_close_matches(variable, by_name, n=1, cutoff=0.75)
    return SettingsError(
        "no setting has this variable",
        where=variable,
        why=f"variables are {prefix}KEY or {prefix}WORKER_KEY, one for each setting; this one maps to none",
        fix=f"did you mean {near[0]}?" if near else f"unset {variable}",
    )


def _is_mapping(source: str, key: str) -> SettingsError:
    return SettingsError(
        f"{key} cannot be set by text",
        where=source,
        why=f"{key} is a mapping of keys to values, which text does not hold",
        fix=f"write {key} into invoke.yaml, or set single keys of it",
    )


def text_level(source: str, leaf: Leaf, text: str) -> Level:
    """The level that sets `leaf` to what `text` says (a list is separated by commas); empty text means: not set."""
    value = _from_text(source, leaf, text)
    data: dict[str, object] = {leaf.path[-1]: value}
    for key in reversed(leaf.path[:-1]):
        data = {key: data}
    return Level(source, data)


def _from_text(source: str, leaf: Leaf, text: str) -> object:
    key = "provision." + ".".join(leaf.path)
    if leaf.kind is dict:
        raise _is_mapping(source, key)
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
