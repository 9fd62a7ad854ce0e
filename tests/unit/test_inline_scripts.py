"""Every shell text that a module hands to `script` as a literal: parsed by three shells, linted."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.shells.shells import Shell
from tests.unit.shelltexts import shellchecked, unparsed

PACKAGE = Path(__file__).parents[2] / "provision"
EXCLUDED = ("SC2329",)
"""Functions that are shared by several scripts are not all called by each."""


class Text:
    """A shell text, and the variables that its script binds."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.bound: set[str] = set()
        self.are_all_known = True

    def bind(self, call: ast.Call, *, is_extended: bool) -> None:
        """Note the bindings of a call. Those of `**bindings` and `with_bindings` are not known."""
        self.bound |= {each.arg for each in call.keywords if each.arg}
        self.are_all_known &= all(each.arg for each in call.keywords) and not is_extended


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Every call of `script`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="script"), args=[_, *_]):
                yield node


def constants(tree: ast.Module) -> Mapping[str, str]:
    """The names of a module that are bound to a string literal."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(node.value.value, str):
                found |= dict.fromkeys(names, node.value.value)
    return found


def texts_of(tree: ast.Module) -> Mapping[str, Text]:
    """The texts of a module: of `script("…")` by line, of `script(_NAME)` by name.

    A constant that is bound to a variable is a text for another shell, unless it is one word.
    """
    known = constants(tree)
    extended = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "with_bindings"
    }
    found: dict[str, Text] = {}
    for call in calls(tree):
        source = call.args[0]
        if isinstance(source, ast.Constant) and isinstance(source.value, str):
            found[f"line {call.lineno}"] = text = Text(source.value)
            text.bind(call, is_extended=id(call) in extended)
        elif isinstance(source, ast.Name) and source.id in known:
            text = found.setdefault(source.id, Text(known[source.id]))
            text.bind(call, is_extended=id(call) in extended)
        for word in call.keywords:
            if isinstance(word.value, ast.Name) and " " in known.get(word.value.id, ""):
                found.setdefault(word.value.id, Text(known[word.value.id]))
    return found


@cache
def texts() -> Mapping[str, Text]:
    return {
        f"{path.relative_to(PACKAGE).as_posix()}:{name}": text
        for path in sorted(PACKAGE.rglob("*.py"))
        if "script(" in (source := path.read_text(encoding="utf-8"))
        for name, text in texts_of(ast.parse(source)).items()
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Each text as a file in which the bound variables are set."""
    folder = tmp_path_factory.mktemp("texts")
    files = []
    for name, text in texts().items():
        file = folder / f"{name.replace('/', '.').replace(':', '.').replace(' ', '-')}.sh"
        head = "" if text.are_all_known else "# shellcheck disable=SC2154\n"
        names = " ".join(["R", "because", *sorted(text.bound)])
        file.write_text(f"{head}export {names}\n{text.source}", encoding="utf-8")
        files.append(str(file))
    return files


def test_texts_of_every_kind_are_found() -> None:
    module = """
_RUN = 'echo "$word"'
_BODY = "exec sh"
_WORD = "word"
script(_RUN, word=_WORD, body=_BODY)
script("echo", **more)
"""
    found = texts_of(ast.parse(module))
    assert set(found) == {"_RUN", "_BODY", "line 6"}
    assert found["_RUN"].bound == {"word", "body"}
    assert not found["line 6"].are_all_known
    assert texts()


def test_every_shell_parses_every_text(shell: Shell, written: list[str]) -> None:
    assert unparsed(shell, written) == ""


@pytest.mark.lint
def test_shellcheck_accepts_every_text(written: list[str]) -> None:
    assert shellchecked(written, *EXCLUDED) == ""
