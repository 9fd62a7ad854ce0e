"""demo: a tour of the main job on a mock of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from provision.commands.dev.down import dev_down
from provision.commands.dev.exec import dev_exec
from provision.commands.dev.run import dev_run
from provision.commands.dev.up import dev_up
from provision.commands.image.build import image_build
from provision.commands.image.render import image_render
from provision.commands.mock.down import mock_down
from provision.commands.mps.disable import mps_disable
from provision.commands.mps.enable import mps_enable
from provision.commands.mps.status import mps_status
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.create.create import vm_create
from provision.commands.vm.delete import vm_delete
from provision.commands.vm.list import vm_list
from provision.commands.vm.provision import vm_provision
from provision.core.errors import ProvisionError
from provision.core.model import Note
from provision.project.project import Project
from provision.settings import Settings

PROGRAM = '''\
"""The program of the tour, for the worker container."""

import os
import sys

print("hello from the worker:", " ".join(sys.argv[1:]))
threads = os.environ["OMP_NUM_THREADS"]
print("OMP_NUM_THREADS =", threads, "(one SDK process per vCPU shares the cores)")
'''
NAME = "dev"
_SHOWN_LINES = 12
_TYPED = b"PS1='worker$ '\necho attached to $(tty)\nexit\n"


def demo(project: Project) -> TaskResult:
    """Run the main job from `vm.create` to `vm.delete` on a mock of its own, and remove the mock.

    Ends with the exit code of the first step that fails.
    """
    with _tour_project(project) as tour:
        results = []
        for title, step in _steps(tour):
            project.emit(Note(f"\n$ {project.program_argv0} {title}"))
            result = step()
            if result.text:
                project.emit(Note(result.text))
            results.append({"task": title, "exit": result.exit_code})
            if result.exit_code:
                ended = f"the tour ended at {title}"
                return TaskResult({"steps": results}, result.exit_code, ended)
    count = len(results)
    text = f"\n{count} of {count} steps done; the mock is gone and nothing was billed"
    return TaskResult({"steps": results}, text=text)


def _steps(tour: Project) -> list[tuple[str, Callable[[], TaskResult]]]:
    here = Targets()
    return [
        ("vm.create", lambda: vm_create(tour, NAME, here)),
        ("vm.list", lambda: vm_list(tour)),
        ("vm.provision", lambda: vm_provision(tour, here)),
        ("image.render", lambda: _first_lines(image_render(tour))),
        ("image.build", lambda: image_build(tour, here)),
        ("dev.up", lambda: dev_up(tour, here)),
        ("dev.exec -- nvidia-smi -L", lambda: dev_exec(tour, here, ["nvidia-smi", "-L"])),
        (
            "dev.run hello.py -- --epochs 3",
            lambda: dev_run(tour, here, "hello.py", ["--epochs", "3"]),
        ),
        ("dev.shell", lambda: _shell(tour)),
        ("mps.enable", lambda: mps_enable(tour, here)),
        ("mps.status", lambda: mps_status(tour, here)),
        ("mps.disable", lambda: mps_disable(tour, here)),
        ("dev.down", lambda: dev_down(tour, here)),
        ("vm.delete --yes", lambda: vm_delete(tour, NAME, yes=True, confirm=None)),
    ]


def _first_lines(result: TaskResult) -> TaskResult:
    """The result with the first lines of its text."""
    lines = result.text.splitlines()
    hidden = len(lines) - _SHOWN_LINES
    more = f"\n… {hidden} more lines" if hidden > 0 else ""
    return replace(result, text="\n".join(lines[:_SHOWN_LINES]) + more)


@contextlib.contextmanager
def _tour_project(project: Project) -> Iterator[Project]:
    """A project with default settings whose state and mock are in a temporary folder."""
    project.state_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="demo-", dir=project.state_dir) as folder:
        project_dir = Path(folder) / "project"
        project_dir.mkdir()
        (project_dir / "hello.py").write_text(PROGRAM, encoding="utf-8")
        subprocess.run(
            ["git", "init", "-q", str(project_dir)], check=True, env=_git_environment(project)
        )
        tour = replace(
            project,
            settings=Settings.from_levels([]),
            state_dir=Path(folder) / "provision",
            project_dir=project_dir,
        )
        try:
            yield tour
        finally:
            mock_down(tour)
            shutil.rmtree(tour.home, ignore_errors=True)


def _git_environment(project: Project) -> dict[str, str]:
    """The environment for git without the user's configuration."""
    return {**project.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def _shell(tour: Project) -> TaskResult:
    """Run `dev.shell` on a terminal of its own, and type a few lines into it."""
    environ = {**tour.environ, "XDG_STATE_HOME": str(tour.state_dir.parent), "TERM": "dumb"}
    environ = {name: value for name, value in environ.items() if not name.startswith("INVOKE_")}
    master, slave = pty.openpty()
    argv = [sys.executable, "-m", "provision", "dev.shell"]
    with subprocess.Popen(
        argv,
        cwd=tour.project_dir,
        env=environ,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as child:
        os.close(slave)
        os.write(master, _TYPED)
        text = b"".join(_read(master))
        os.close(master)
    shown = [
        line
        for line in text.decode("utf-8", "replace").replace("\r", "").splitlines()
        if line.startswith(("worker$", "attached"))
    ]
    if child.returncode:
        raise ProvisionError("dev.shell failed", where=NAME, why=text.decode("utf-8", "replace"))
    return TaskResult({"status": 0}, text="\n".join(shown))


def _read(handle: int) -> Iterator[bytes]:
    """What the other side of a terminal prints until it closes it."""
    with contextlib.suppress(OSError):  # raised once the other side is closed
        while data := os.read(handle, 4096):
            yield data
