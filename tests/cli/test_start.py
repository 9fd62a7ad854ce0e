from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import in_process_of_its_own


@pytest.mark.parametrize("program", ["provision", "invoke"])
def test_what_a_task_imports_is_compiled_once(program: str, project: Path, argv: Callable[..., list[str]], tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path / "pycache")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    ended = in_process_of_its_own(argv(program, "vm.list"), project, env)
    assert ended.code == 0, ended.err
    compiled = {path.name.partition(".")[0] for path in (tmp_path / "pycache").rglob("*.pyc") if "provision" in path.parts}
    assert {"execution", "levels", "lines"} <= compiled
