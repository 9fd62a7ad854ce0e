"""Commands in the texts of the package: each task exists and has the given flags."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from provision.cli.namespace import namespace
from tests.examples.pages import ROOT

TASKS = {name: namespace()[name] for name in namespace().task_names}
FLAGS = {
    name: {
        "--" + flag.replace("_", "-")
        for argument in task.get_arguments()
        for flag in argument.names
        if not argument.positional
    }
    for name, task in TASKS.items()
}
_CALLED = re.compile(
    r"(?:\b(?:invoke|provision) |\0 )([a-z]+\.[a-z][a-z-]*|demo|doctor)"
    r"(?=[ `\"',;.):]|\n|\Z)([^\n`]*)"
)
_END = re.compile(
    r"   |  +#|[;,)(|&]| or | and |: | later\b| takes | removes | continues | looks\b"
)
PROGRAM = "\0"


def texts() -> Iterator[tuple[str, str]]:
    """Yield (position, text) of every string literal of the package.

    The program's name in an f-string becomes NUL, any other value `…`.
    """
    for path in sorted((ROOT / "provision").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inner = {
            id(value)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for value in ast.walk(node)
            if value is not node
        }
        for node in ast.walk(tree):
            if id(node) in inner:
                continue
            if isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str)
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", _text(node)


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value):
            return str(value)
        case ast.JoinedStr(values):
            return "".join(map(_text, values))
        case ast.FormattedValue(value):
            return PROGRAM if re.search(r"argv0|\bprogram\b", ast.unparse(value)) else "…"
    return "…"


def calls() -> Iterator[tuple[str, str, str]]:
    """Yield (position, task, the words after it) of every command in a text."""
    for place, text in texts():
        for task, rest in _CALLED.findall(text):
            yield place, task, _END.split(rest)[0]


def remedies() -> Iterator[tuple[str, str]]:
    """Yield (position, text) of every `fix` argument."""
    for path in sorted((ROOT / "provision").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "fix":
                yield f"{path.relative_to(ROOT)}:{node.value.lineno}", _text(node.value)


def errors_of(task: str, rest: str) -> list[str]:
    """Return the errors of a command: an unknown task, or unknown flags."""
    if task not in TASKS:
        return ["no such task"]
    own = rest.partition(" -- ")[0].split()
    flags = [word.partition("=")[0] for word in own if word.startswith("--") and word != "--"]
    return [flag for flag in flags if flag not in FLAGS[task]]


@pytest.mark.slow
def test_commands_in_texts_exist_with_their_flags() -> None:
    found = list(calls())
    assert {task for _, task, _ in found} >= {
        "vm.create",
        "vm.gc",
        "dev.up",
        "mps.doctor",
        "vm.extend",
    }
    assert len(found) > 60
    assert [
        (place, task, fault) for place, task, rest in found for fault in errors_of(task, rest)
    ] == []


@pytest.mark.parametrize(
    ("task", "rest", "faults"),
    [
        ("vm.stop", " --host dev", ["--host"]),
        ("vm.stopp", "", ["no such task"]),
        ("dev.exec", " --clients 2 -- tool --flag", []),
        ("vm.list", " --json --name=x", ["--name"]),
    ],
)
def test_wrong_command_is_detected(task: str, rest: str, faults: list[str]) -> None:
    assert errors_of(task, rest) == faults


def test_remedies_are_complete_commands() -> None:
    """A remedy with a task begins with the program; a remedy may also be one of our flags."""
    found = dict(remedies())
    assert len(found) > 100
    assert [(place, text) for place, text in found.items() if text.split(" ")[0] in TASKS] == []
    alone = {
        place: match[0]
        for place, text in found.items()
        if (match := re.match(r"--[a-z][a-z-]+", text))
    }
    assert [
        (place, flag) for place, flag in alone.items() if flag not in set().union(*FLAGS.values())
    ] == []
    assert "--host" in alone.values()
