from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from provision import __main__ as program_module
from tests.cli.fakes import fake_modules
from tests.cli.forked import run_forked

HERE = Path(__file__).parent
TASKS = "from provision.cli import namespace_for\n\nnamespace = namespace_for(__file__)\n"


@dataclass(frozen=True)
class CliResult:
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
        """Standard error; fails unless it is one error of three lines."""
        lines = self.err.splitlines()
        assert len(lines) == 3, self.err
        assert lines[0].startswith("error: ")
        assert lines[1].startswith("  why: ")
        assert lines[2].startswith("  try: ")
        return lines


class Cli(Protocol):
    def __call__(
        self,
        *words: str,
        program: str = "provision",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> CliResult: ...


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
def cli(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Cli:
    """Run a task in the project's folder: `invoke` in a forked process, `provision` in this one."""
    fakes = fake_modules()

    def run(
        *words: str,
        program: str = "provision",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> CliResult:
        if program == "invoke":
            status, out_bytes, err_bytes = run_forked(
                words, cwd or project, {**os.environ, **(env or {})}
            )
            return CliResult(status, _text(out_bytes), _text(err_bytes))
        with monkeypatch.context() as patch, restored_environment():
            patch.chdir(cwd or project)
            patch.setattr(sys, "argv", ["provision", *words])
            patch.setattr(sys, "stdin", io.StringIO())
            patch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
            for name, module in fakes.items():
                patch.setitem(sys.modules, name, module)
            os.environ.update(env or {})
            capfd.readouterr()
            code: object = 0
            try:
                program_module.main()
            except SystemExit as end:
                code = end.code or 0
            out, err = capfd.readouterr()
        assert isinstance(code, int)
        return CliResult(code, out, err)

    return run


def run_process(command: list[str], cwd: Path, env: Mapping[str, str]) -> CliResult:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return CliResult(done.returncode, _text(done.stdout), _text(done.stderr))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


@contextmanager
def restored_environment() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
