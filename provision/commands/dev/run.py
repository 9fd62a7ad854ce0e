"""dev.run: send the project's files and run one of them in the worker container."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from provision.commands.dev.shared.program import run_in_worker
from provision.commands.shared import host_access
from provision.commands.shared.project_files import send_project
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import UsageError
from provision.project.project import Project
from provision.sync import project_tar


def dev_run(
    project: Project,
    targets: Targets,
    file: str,
    words: Sequence[str] = (),
    *,
    count: int | None = None,
) -> TaskResult:
    """Send the project's files and run `file` with the arguments `words` in the container.

    The exit code is the program's status; with `count`, the worst status of so many runs at once.
    Raises `UsageError` for a file that is absent, outside the project or ignored by git,
    `HostError` when the container does not run, and errors of the connection.
    """
    names = project_tar.project_files(project.project_dir)
    program = _program_words(project, file, names)
    stage = project_tar.new_stage()
    packed = project_tar.pack(project.project_dir, names, stage)
    host = host_access.resolve_host(project, targets)
    with contextlib.closing(host_access.connect(project, host)) as transport:
        send_project(project, transport, packed, stage)
        return run_in_worker(project, transport, [*program, *words], count)


def _program_words(project: Project, file: str, names: Sequence[str]) -> list[str]:
    """The words that run `file`. Raises `UsageError` unless it is among the files that are sent."""
    path = _path_in_project(project, file)
    name = str(PurePosixPath(*path.parts))
    if name not in names:
        folder = shlex.quote(str(project.project_dir))
        raise UsageError(
            "FILE would not be sent",
            where=file,
            why="git ignores it, and ignored files are not sent",
            fix=f"git -C {folder} add --force -- {shlex.quote(name)}",
        )
    match path.suffix:
        case ".py":
            return ["python", name]
        case ".sh":
            return ["sh", name]
        case _:
            return [f"./{name}"]


def _path_in_project(project: Project, file: str) -> Path:
    """The path of `file` relative to the project.

    `file` is relative to the current folder, as a shell completes it, or to the project's folder.
    Raises `UsageError` for a file that is absent or outside the project.
    """
    folders = list(dict.fromkeys((Path.cwd(), project.project_dir)))
    candidates = [path.resolve() for folder in folders if (path := folder / file).is_file()]
    if not candidates:
        raise UsageError(
            "there is no such file",
            where=file,
            why=f"looked in {' and '.join(map(str, folders))}",
            fix=f"ls {shlex.quote(str(Path(file).parent))}",
        )
    root = project.project_dir.resolve()
    for path in candidates:
        if path.is_relative_to(root):
            return path.relative_to(root)
    raise UsageError(
        "FILE must lie in the project",
        where=file,
        why=f"the project is {project.project_dir}",
        fix="copy it into the project",
    )
