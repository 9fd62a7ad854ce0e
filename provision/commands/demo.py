"""A tour of the main job on a private mock."""

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
"""What the tour runs in the worker container."""

import os
import sys

print("hello from the worker:", " ".join(sys.argv[1:]))
print("OMP_NUM_THREADS =", os.environ["OMP_NUM_THREADS"], "(one SDK process per vCPU shares the cores)")
'''
NAME = "dev"


def demo(project: Project) -> TaskResult:
    """Walk from `vm.create` to `vm.delete` on a mock of its own, and remove every trace of it; ends at the first step that fails."""
    with _private(project) as tour:
        steps = []
        for title, step in _steps(tour):
            project.emit(Note(f"\n$ {project.program_argv0} {title}"))
            done = step()
            if done.text:
                project.emit(Note(done.text))
            steps.append({"task": title, "exit": done.exit_code})
            if done.exit_code:
                return TaskResult({"steps": steps}, done.exit_code, f"the tour ended at {title}")
    count = len(steps)
    return TaskResult(
        {"steps": steps},
        text=f"\n{count} of {count} steps done; the mock is gone and nothing was billed",
    )


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


def _first_lines(done: TaskResult, count: int = 12) -> TaskResult:
    lines = done.text.splitlines()
    more = f"\n… {len(lines) - count} more lines" if len(lines) > count else ""
    return replace(done, text="\n".join(lines[:count]) + more)


@contextlib.contextmanager
def _private(project: Project) -> Iterator[Project]:
    """A session with default settings whose state, project and mock lie in a folder that goes away."""
    project.state_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="demo-", dir=project.state_dir) as folder:
        project_dir = Path(folder) / "project"
        project_dir.mkdir()
        (project_dir / "hello.py").write_text(PROGRAM, encoding="utf-8")
        subprocess.run(["git", "init", "-q", str(project_dir)], check=True, env=_plain_git(project))
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


def _plain_git(project: Project) -> dict[str, str]:
    return {**project.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def _shell(tour: Project) -> TaskResult:
    """`dev.shell` on a terminal of its own, with a few lines typed into it."""
    environ = {**tour.environ, "XDG_STATE_HOME": str(tour.state_dir.parent), "TERM": "dumb"}
    environ = {name: value for name, value in environ.items() if not name.startswith("INVOKE_")}
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "provision", "dev.shell"]
    with subprocess.Popen(
        argv,
        cwd=tour.project_dir,
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as child:
        os.close(theirs)
        os.write(ours, b"PS1='worker$ '\necho attached to $(tty)\nexit\n")
        text = b"".join(_read(ours))
        os.close(ours)
    shown = [
        line
        for line in text.decode("utf-8", "replace").replace("\r", "").splitlines()
        if line.startswith(("worker$", "attached"))
    ]
    if child.returncode:
        raise ProvisionError("dev.shell failed", where=NAME, why=text.decode("utf-8", "replace"))
    return TaskResult({"status": 0}, text="\n".join(shown))


def _read(handle: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):  # the terminal's other side is closed
        while data := os.read(handle, 4096):
            yield data
