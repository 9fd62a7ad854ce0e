"""The worker container and the code-run-code loop in it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from provision import templating
from provision.commands.dev.shared import clients
from provision.commands.image.build import worker_image
from provision.commands.mps.shared.compute_mode import restore_compute_mode_after_failure
from provision.commands.shared import convergence, remote_exec
from provision.commands.shared.project_files import send_project
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.hosts import enter
from provision.core.errors import EXIT_OWN_FAILURE, UsageError
from provision.core.model import Facts, Host, Transport
from provision.core.resource import Resource
from provision.core.shell import script
from provision.project.project import Project
from provision.recipes import worker
from provision.recipes.mps import kept, no_mps
from provision.recipes.worker import first_container, no_worker
from provision.resources.container import WORKSPACE
from provision.sync import project_tar


def dev_up(project: Project, targets: Targets) -> TaskResult:
    """Host, worker image and container; MPS again where it was enabled, or the compute mode as it was before that."""
    image = worker_image(project)

    def recipe(target: Host) -> list[Resource]:
        own = worker(project.settings, image, host=target)
        return [*convergence.cos_recipe(project, target), *own, kept(project.settings)]

    chosen = convergence.hosts(project, targets)
    finished = convergence.converge(project, targets, chosen, recipe, "dev.up")
    restore_compute_mode_after_failure(project, targets, chosen, finished.reports)
    return convergence.done(finished, check=targets.check)


def dev_down(project: Project, targets: Targets) -> TaskResult:
    """The container gone, MPS with it; image and workspace stay."""

    def recipe(target: Host) -> list[Resource]:
        return [*no_mps(project.settings, host=target), *no_worker(project.settings)]

    return convergence.run(project, targets, recipe, "dev.down")


def dev_exec(
    project: Project, targets: Targets, words: Sequence[str], *, count: int | None = None
) -> TaskResult:
    """Run a command in the container, its output streamed; returns its status, the worst one of `count` at once."""
    transport = convergence.connect(project, convergence.host(project, targets))
    try:
        return _run(project, transport, words, count)
    finally:
        transport.close()


def _run(
    project: Project, transport: Transport, words: Sequence[str], count: int | None
) -> TaskResult:
    """Once, with what it prints as it is; or `count` times at once."""
    if count is None:
        return remote_exec.run(
            project, transport, project.settings.worker.name, words, stdin=project.stdin
        )
    return clients.run(project, transport, words, count)


def dev_run(
    project: Project,
    targets: Targets,
    file: str,
    words: Sequence[str] = (),
    *,
    count: int | None = None,
) -> TaskResult:
    """Send the project's files and run one of them in the container, `count` times at once where that is given."""
    names = project_tar.project_files(project.project_dir)
    program = _program(project, file, names)
    stage = project_tar.new_stage()
    packed = project_tar.pack(project.project_dir, names, stage)
    transport = convergence.connect(project, convergence.host(project, targets))
    try:
        send_project(project, transport, packed, stage)
        return _run(project, transport, [*program, *words], count)
    finally:
        transport.close()


def _program(project: Project, file: str, names: Sequence[str]) -> list[str]:
    """The words that run FILE, which must be among the files that are sent."""
    relative = _relative(project, file)
    posix = str(PurePosixPath(*relative.parts))
    if posix not in names:
        raise UsageError(
            "FILE would not be sent",
            where=file,
            why="git ignores it, and what git ignores stays here",
            fix=f"git -C {shlex.quote(str(project.project_dir))} add --force -- {shlex.quote(posix)}",
        )
    match relative.suffix:
        case ".py":
            return ["python", posix]
        case ".sh":
            return ["sh", posix]
        case _:
            return [f"./{posix}"]


def _relative(project: Project, file: str) -> Path:
    """FILE as the project calls it; it may be named from the current folder, as a shell completes it, or from the project's.

    Raises `UsageError` for one that is not there, or lies elsewhere.
    """
    folders = list(dict.fromkeys((Path.cwd(), project.project_dir)))
    found = [path.resolve() for folder in folders if (path := folder / file).is_file()]
    if not found:
        why = f"looked in {' and '.join(map(str, folders))}"
        raise UsageError(
            "there is no such file",
            where=file,
            why=why,
            fix=f"ls {shlex.quote(str(Path(file).parent))}",
        )
    root = project.project_dir.resolve()
    inside = next((path for path in found if path.is_relative_to(root)), None)
    if inside is None:
        why = f"the project is {project.project_dir}"
        raise UsageError(
            "FILE must lie in the project", where=file, why=why, fix="copy it into the project"
        )
    return inside.relative_to(root)


_SHELL = """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true || exit 125
if test -t 0; then set -- --tty; fi
test ! -e "$chosen" || docker exec "$daemon" sh -c "$alive" </dev/null >/dev/null 2>&1 || echo "$without" >&2
test -z "$hidden" || unset "$hidden"
exec docker exec --interactive "$@" ${hidden:+--env "$hidden"} --workdir "$dir" "$name" sh -c "$body"
"""
_INSIDE = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"


def dev_shell(project: Project, targets: Targets) -> TaskResult:
    """A shell in the container, on a real terminal; returns its status. Raises `HostError` when no container runs.

    The terminal is the user's, so status 125 is all that says so; as a shell may end with it too,
    the host is asked then.
    """
    target = convergence.host(project, targets)
    body = script(
        _SHELL, argv=[], name=project.settings.worker.name, dir=WORKSPACE, body=_INSIDE
    ).with_bindings(remote_exec.around(project))
    status = enter(project, target, body, become=True)
    if status == EXIT_OWN_FAILURE:
        with contextlib.closing(convergence.connect(project, target)) as transport:
            remote_exec.check_running(project, transport)
    return remote_exec.finished(status)


def dev_devcontainer(project: Project, targets: Targets) -> TaskResult:
    """devcontainer.json for the very container that `dev.up` starts."""
    target = convergence.host(project, targets)
    box = first_container(project.settings, worker_image(project), host=target)
    options = box.editor_options(Facts(), gpu_count=project.settings.gpu_count)
    text = templating.devcontainer(
        name=box.container,
        image=box.image,
        options=[str(option) for option in options],
        volume=box.work_volume,
        folder=WORKSPACE,
        project_dir=project.project_dir,
    )
    return TaskResult({"devcontainer": text}, text=text.rstrip("\n"))
