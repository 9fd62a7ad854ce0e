from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, CliResult, run_process


@pytest.mark.parametrize("program", ["provision", "invoke"])
def test_imports_of_task_are_compiled_once(
    program: str, project: Path, argv: Callable[..., list[str]], tmp_path: Path
) -> None:
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / "pycache")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    ended = run_process(argv(program, "vm.list"), project, env)
    assert ended.code == 0, ended.err
    compiled = {
        path.name.partition(".")[0]
        for path in (tmp_path / "pycache").rglob("*.pyc")
        if "provision" in path.parts
    }
    assert {"execution", "levels", "lines"} <= compiled


INTERRUPTED = """
import runpy, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
sys.argv = {argv!r}
"""
PROGRAM = 'runpy.run_module("provision", run_name="__main__", alter_sys=False)'
STOCK = "from invoke.main import program; program.run()"


def interrupt_import(
    project: Path, module: str, words: list[str], program: str = PROGRAM
) -> CliResult:
    """Run a command, and press Ctrl-C while it imports `module`."""
    source = INTERRUPTED.format(module=module, argv=["provision", *words]) + program
    return run_process([sys.executable, "-c", source], project, os.environ)


@pytest.mark.parametrize(
    ("module", "where"),
    [
        ("invoke.program", "provision"),
        ("provision.cli.config", "vm.list"),
        ("provision.settings.model", "vm.list"),
    ],
    ids=["before Invoke", "before the task", "in the task"],
)
def test_ctrl_c_during_start_exits_130(project: Path, module: str, where: str) -> None:
    ended = interrupt_import(project, module, ["vm.list"])
    assert (ended.code, ended.out, ended.err) == (130, "", f"error: {where}: interrupted\n")
    document = interrupt_import(project, module, ["vm.list", "--json"]).document
    assert (document["exit"], document["error"]["what"]) == (130, "interrupted")


def test_ctrl_c_during_start_of_program_task_exits_130(project: Path) -> None:
    assert (
        interrupt_import(project, "provision.cli.config", ["dev.exec", "--", "cat", "--json"]).out
        == ""
    )
    assert (
        interrupt_import(project, "provision.cli.config", ["dev.exec", "--", "true"], STOCK).code
        == 130
    )


def test_ctrl_c_during_parsing_exits_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invoke would exit with 1 and no message."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("invoke.program.Program.parse_tasks", interrupted)
    ended = cli("vm.list")
    assert (ended.code, ended.err) == (130, "error: provision: interrupted\n")
