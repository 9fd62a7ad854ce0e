"""examples/own-recipe: its own tests and the tasks of its README on the mock leave no process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-recipe"
MARK = "PROVISION_EXAMPLE_MARK"
GRACE_S = 5.0

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Project:
    """A copy of the example, in a git repository and with a home of its own."""

    folder: Path
    environ: dict[str, str]

    def run(self, *words: str, status: int = 0) -> str:
        """Run `python -m ...` in the project and return its standard output."""
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == status, (
            f"{' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout

    def results(self, *words: str, status: int = 0) -> dict[str, str]:
        """The status of each resource that a task's `--json` names."""
        document: dict[str, Any] = json.loads(self.run("invoke", *words, "--json", status=status))
        return {
            result["resource"]: result["status"] for result in document["hosts"]["dev"]["results"]
        }

    def processes(self) -> list[str]:
        """What still runs and was started from here, wherever it went."""
        mark = f"{MARK}={self.environ[MARK]}".encode()
        return [
            name for process in Path("/proc").glob("[0-9]*") if (name := _marked(process, mark))
        ]


def _marked(process: Path, mark: bytes) -> str:
    try:
        if mark in (process / "environ").read_bytes().split(b"\0"):
            return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it has ended, or belongs to another user
        pass
    return ""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """The project, and no process of it afterwards."""
    folder = tmp_path / "own recipe"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    environ = {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        MARK: str(uuid.uuid4()),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    project = Project(folder, environ)
    yield project
    project.run("invoke", "mock.down")
    deadline = time.monotonic() + GRACE_S
    while (left := project.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def test_tests_of_the_example_pass(project: Project) -> None:
    assert " passed" in project.run("pytest", "-q", "-p", "no:cacheprovider")


def test_tests_of_the_example_find_a_mistake(project: Project) -> None:
    recipe = project.folder / "my_recipe.py"
    recipe.write_text(recipe.read_text().replace("ln -sfn", "ln -s"))
    (project.folder / "tests" / "test_twice.py").write_text(
        "from my_recipe import Link\nfrom provision.testing import converge\n\n\n"
        "def test_link_target_changes(mock_cos_host):\n"
        "    for target in ('a', 'b'):\n"
        "        link = Link(name='link', path='/mnt/disks/x', target=target)\n"
        "        report = converge(mock_cos_host, [link])\n"
        "        assert not report.failed, str(report)\n"
    )
    output = project.run("pytest", "-q", "-p", "no:cacheprovider", "tests/test_twice.py", status=1)
    assert "AssertionError: host mock" in output
    assert "why: ln: " in output


@pytest.mark.lint
def test_mypy_accepts_the_example(project: Project) -> None:
    assert "Success" in project.run(
        "mypy", "--strict", "my_recipe.py", "train.py", "tests/test_my_recipe.py"
    )


def interrupted(project: Project) -> None:
    """Ctrl-C ends the program in the container too."""
    name = f"slow-{uuid.uuid4()}.py"
    (project.folder / name).write_text("import time\nprint('begun', flush=True)\ntime.sleep(300)\n")
    argv = [sys.executable, "-m", "invoke", "dev.run", name]
    with subprocess.Popen(
        argv,
        cwd=project.folder,
        env=project.environ,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "begun\n"
        assert len(_running(name)) > 1, "the task and the program"
        os.killpg(task.pid, signal.SIGINT)
        assert task.wait(timeout=30) == 130
    deadline = time.monotonic() + GRACE_S
    while (left := _running(name)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def _running(word: str) -> list[str]:
    """The command lines that hold a word."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [words] if word in words else []
    return found


def test_tasks_of_the_example_readme_work(project: Project) -> None:
    listed = project.run("invoke", "--list")
    assert re.search(r"^  train +Bring the worker up and train on it\.$", listed, re.MULTILINE)

    created = project.results("vm.create")
    assert {created[name] for name in ("data-folder", "labels", "data-link")} == {"changed"}
    assert set(project.results("vm.provision").values()) == {"ok"}

    rendered = project.run("invoke", "image.render")
    assert 'ENV TORCH_HOME="/workspace/.cache/torch"' in rendered
    assert rendered.startswith("FROM apache/beam_python")

    early = json.loads(project.run("invoke", "dev.run", "train.py", "--json", status=125))
    assert early["failed_in"] == "provision"
    assert early["error"]["what"] == "the worker container is not running"
    assert early["error"]["fix"] == "invoke dev.up"

    assert project.results("dev.up")["container"] == "changed"
    trained = project.run("invoke", "dev.run", "train.py", "--", "--epochs", "2")
    assert trained.endswith("epoch 2: y = 2.999 x + 1.000\n")
    assert project.run("invoke", "train").endswith("epoch 3: y = 3.000 x + 1.000\n")

    interrupted(project)
    assert "deleted dev" in project.run("invoke", "vm.delete", "--yes")
    assert json.loads(project.run("invoke", "vm.list", "--json")) == {"vms": []}
