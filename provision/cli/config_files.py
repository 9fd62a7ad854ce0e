"""Reads one of Invoke's configuration files: the settings under `provision`, with their lines."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import invoke.util

from provision.core.errors import SettingsError
from provision.settings import Level

KEY = "provision"


def read_file(path: Path) -> Level:
    """Return what a file sets under `provision`.

    Raises `SettingsError` with line and column when the file cannot be read or parsed.
    """
    source = _display_path(path)
    try:
        text = path.read_text(encoding="utf-8") if path.suffix != ".py" else ""
    except OSError as error:
        raise SettingsError(
            "cannot be read", where=source, why=error.strerror or str(error), fix=f"ls -l {source}"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            "is not text", where=source, why=str(error), fix="save it as UTF-8"
        ) from error
    lines: dict[tuple[str, ...], int] = {}
    if path.suffix == ".py":
        content: Any = _read_python(path, source)
    elif path.suffix == ".json":
        content = _read_json(text, source)
    else:
        content, lines = _read_yaml(text, source)
    return Level(source, _provision_section(content, source), lines)


def _display_path(path: Path) -> str:
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _provision_section(content: Any, source: str) -> Mapping[str, object]:
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise SettingsError(
            "holds no settings",
            where=source,
            why="its top level is not a mapping of keys to values",
            fix=f"begin with {KEY}:",
        )
    section = content.get(KEY)
    if section is not None and not isinstance(section, Mapping):
        raise SettingsError(
            f"{KEY} is {section!r}",
            where=source,
            why="allowed: a mapping of keys to values",
            fix=f"indent the keys under {KEY}:",
        )
    return section or {}


def _read_python(path: Path, source: str) -> dict[str, object]:
    try:
        variables = runpy.run_path(str(path))
    except Exception as error:  # user code may raise anything
        line = getattr(error, "lineno", None) or _line_in(path, error)
        why = f"{type(error).__name__}: {error}"
        raise SettingsError(
            "fails when it is run", where=f"{source}, line {line}", why=why, fix=f"python3 {source}"
        ) from error
    public = {name: value for name, value in variables.items() if not name.startswith("__")}
    module = next((name for name, value in public.items() if isinstance(value, ModuleType)), None)
    if module is not None:
        why = f"the module {module} stands at its top level, which Invoke cannot hold as a setting"
        raise SettingsError(
            "is refused by Invoke", where=source, why=why, fix=f"end the file with: del {module}"
        )
    return public


def _line_in(path: Path, error: Exception) -> int:
    trace, line = error.__traceback__, 1
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _read_json(text: str, source: str) -> Any:
    try:
        return json.loads(text) if text.strip() else None
    except json.JSONDecodeError as error:
        position = f"{source}, line {error.lineno}, column {error.colno}"
        raise SettingsError(
            "is not JSON", where=position, why=error.msg, fix=f"python3 -m json.tool {source}"
        ) from error


def _read_yaml(text: str, source: str) -> tuple[Any, dict[tuple[str, ...], int]]:
    """Parse with Invoke's own parser, so that Invoke and this toolkit read the same from a file."""
    yaml: Any = vars(invoke.util)["yaml"]
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines = {} if node is None else dict(_key_lines(node, source))
        return (None if node is None else loader.construct_document(node)), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
        why = "; ".join(filter(None, (error.context, error.problem)))
        raise SettingsError(
            "is not YAML",
            where=position,
            why=why,
            fix="mend that line; YAML indents with spaces alone",
        ) from error
    except yaml.YAMLError as error:
        raise SettingsError(
            "is not YAML",
            where=source,
            why=" ".join(str(error).split()),
            fix="save it as UTF-8 text",
        ) from error


def _key_lines(root: Any, source: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield (path under `provision`, line) of each key.

    Raises `SettingsError` for a duplicate key, where YAML silently drops the first.
    """
    todo: list[tuple[tuple[str, ...], Any]] = [((), root)]
    visited: set[int] = set()  # an alias may lead to the same node twice
    while todo:
        parent, node = todo.pop()
        if id(node) in visited or not isinstance(node.value, list):
            continue
        visited.add(id(node))
        first_lines: dict[str, int] = {}
        for key, value in (pair for pair in node.value if isinstance(pair, tuple)):
            name, line = str(key.value), key.start_mark.line + 1
            path = (*parent, name)
            if path[0] != KEY or name == "<<":
                continue
            if name in first_lines:
                raise SettingsError(
                    f"{'.'.join(path)} is set twice",
                    where=f"{source}, line {line}",
                    why=f"it is also set in line {first_lines[name]}",
                    fix="keep one",
                )
            first_lines[name] = line
            yield path[1:], line
            todo.append((path, value))
