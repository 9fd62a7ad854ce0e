from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

HERE = Path(__file__).parent
TASKS = "from provision.cli import namespace_for\n\nnamespace = namespace_for(__file__)\n"


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def three_lines(self) -> list[str]:
        """Standard error, which must be one error of three lines."""
        lines = self.err.splitlines()
        assert len(lines) == 3, self.err
        assert lines[0].startswith("error: ")
        assert lines[1].startswith("  why: ")
        assert lines[2].startswith("  try: ")
        return lines


class Cli(Protocol):
    def __call__(self, *words: str, program: str = "invoke", env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ended: ...


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project folder with a tasks.py and no settings."""
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / "tasks.py").write_text(TASKS)
    return folder


@pytest.fixture
def argv() -> Callable[..., list[str]]:
    """The command line that runs a program with the fake use cases."""

    def build(program: str, *words: str) -> list[str]:
        return [sys.executable, str(HERE / "launch.py"), program, *words]

    return build


@pytest.fixture
def cli(project: Path, argv: Callable[..., list[str]]) -> Cli:
    """Run a task to its end in the project's folder."""

    def run(*words: str, program: str = "invoke", env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ended:
        done = subprocess.run(
            argv(program, *words),
            cwd=cwd or project,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return Ended(done.returncode, done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode("utf-8", "surrogateescape"))

    return run
