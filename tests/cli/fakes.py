"""Builds fake modules for `provision.commands` from what provision/cli imports."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_FAKES = Path(__file__).with_name("fake_commands.py")
_CLI = Path(__file__).parents[2] / "provision" / "cli"


def fake_modules() -> dict[str, ModuleType]:
    """Return a fake of each module of `provision.commands` that provision/cli imports from."""
    fakes = runpy.run_path(str(_FAKES))
    modules: dict[str, ModuleType] = {}
    for module, name in _imported():
        made = modules.setdefault(module, ModuleType(module))
        if name in fakes:
            setattr(made, name, fakes[name])
    return modules


def _imported() -> Iterator[tuple[str, str]]:
    for path in _CLI.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "provision.commands."
            ):
                yield from ((str(node.module), alias.name) for alias in node.names)
