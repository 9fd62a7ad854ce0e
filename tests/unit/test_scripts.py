"""Every shell text of the package, under every shell and shellcheck: what the cases of tests/data do not reach, too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.shells.worlds import World
from tests.unit.shelltexts import shellchecked, unparsed

PACKAGE = Path(__file__).parents[2] / "provision"
EXCLUDED = (
    "SC2329",
)  # a prelude that several share holds functions that one of them does not call
MEANT = {
    "mps/status/inside.py:ALIVE": (
        "SC2034",
    ),  # its prelude names a folder that it does not look into
}
"""What a rule would find in one text alone."""
NO_SHELL = {
    "image/context.py:DEFAULT_IGNORE": "patterns of a .dockerignore",
    "mps/status/inside.py:_PRELUDE": "a part of the others",
    "mps/status/inside.py:_ENDING": "likewise",
    "testing/docker/build.py:_BUILDKIT_MISSING": "a message of docker",
    "testing/docker/build.py:_DEPRECATED": "a message of docker",
    "testing/docker/container_start.py:_GPUS_FLAG_FAILED": "a message of docker",
    "testing/host/filesystem.py:OS_RELEASE": "a file of the mock",
    "testing/mps/messages.py:REFUSED": "what the control tool says",
}
"""Texts of several lines that are neither shell nor Python."""
HANDED_ON = frozenset({"body", "end", "prove", "note"})
"""Bindings that are scripts themselves, for another shell."""


MAY_HOLD = re.compile(r'^\w+(?:: \w+)? = (?:r?"""|\(|.*\\n)|\bscript\(', re.MULTILINE)
"""A module without it is not read: a text of several lines begins so, or lies in a call."""


class Text:
    """A shell text, and the variables that its script gives it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.bound: set[str] = set()
        self.rules: set[str] = set()
        """Those that cannot be asked."""

    def bind(self, call: ast.Call) -> None:
        """Note what a call gives it; a mapping's names stand elsewhere, and cases of tests/data have them."""
        self.bound |= {each.arg for each in call.keywords if each.arg}
        self.rules |= {"SC2154" for each in call.keywords if each.arg is None}


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Every call of `script`."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "script"
            and node.args
        ):
            yield node


def plain(node: ast.expr | None, known: Mapping[str, str]) -> str | None:
    """The text of a literal, or of several put together; of a script its source. None for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return known.get(name)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = plain(left, known), plain(right, known)
            return None if first is None or second is None else first + second
        case ast.Call(func=ast.Name(id="script"), args=[first_argument, *_]):
            return plain(first_argument, known)
        case _:
            return None


def constants(tree: ast.Module) -> Mapping[str, str]:
    """The texts that a module gives a name."""
    found: dict[str, str] = {}
    for node in tree.body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        text = plain(node.value, found) if isinstance(node, ast.Assign | ast.AnnAssign) else None
        found |= {
            target.id: text
            for target in targets
            if isinstance(target, ast.Name) and text is not None
        }
    return found


def of_module(tree: ast.Module) -> Mapping[str, Text]:
    """The shell texts of one module, by the name of the constant, or by the line of the call that holds the text itself."""
    known = constants(tree)
    found = {
        name: Text(text) for name, text in known.items() if "\n" in text and not is_python(text)
    }
    for call in calls(tree):
        first, given = call.args[0], {each.arg: each.value for each in call.keywords if each.arg}
        for key in HANDED_ON & set(given):
            value = given[key]
            if isinstance(value, ast.Name) and value.id in known:
                found.setdefault(value.id, Text(known[value.id]))
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            found[f"line {call.lineno}"] = Text(first.value)
            found[f"line {call.lineno}"].bind(call)
        elif isinstance(first, ast.Name) and first.id in found:
            found[first.id].bind(call)
    return found


@cache
def texts() -> Mapping[str, Text]:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if "__pycache__" not in path.parts]
    sources = {
        path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in paths
    }
    trees = {name: ast.parse(source) for name, source in sources.items() if MAY_HOLD.search(source)}
    return {
        f"{path}:{name}": text
        for path, tree in trees.items()
        for name, text in of_module(tree).items()
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Each of them as a file; what is bound to it, and to the script around it, is set."""
    folder = tmp_path_factory.mktemp("texts")
    files = []
    for name, text in texts().items():
        if name not in NO_SHELL:
            file = folder / f"{name.replace('/', '.').replace(':', '.').replace(' ', '-')}.sh"
            rules = ",".join(sorted(text.rules | set(MEANT.get(name, ()))))
            head = f"# shellcheck disable={rules}\n" if rules else ""
            file.write_text(
                f"{head}export {' '.join(['R', 'because', *sorted(text.bound)])}\n{text.source}",
                encoding="utf-8",
            )
            files.append(str(file))
    return files


def test_what_is_no_shell_is_there() -> None:
    assert set(NO_SHELL) | set(MEANT) <= set(texts())


def test_shell_of_every_kind_is_found() -> None:
    """Constants, texts in a call, what another shell runs, what is put together of several."""
    known = {
        "mps/status/inside.py:ENABLE",
    }
    assert known <= set(texts())
    assert "commands/dev/shell.py:_INSIDE" in texts(), "it has one line"
    assert {name.partition(":")[0] for name in texts() if ":line " in name} >= {
        "mps/plan/host_facts.py",
    }


def test_every_shell_parses_every_text(world: World, written: list[str]) -> None:
    assert unparsed(world, written) == ""


@pytest.mark.lint
def test_shellcheck_finds_nothing(written: list[str]) -> None:
    assert shellchecked(written, *EXCLUDED) == ""
