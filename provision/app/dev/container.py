"""The worker container and the code-run-code loop in it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from provision import templating
from provision.app import converging, programs
from provision.app.dev import clients
from provision.app.image import worker_image
from provision.app.mps.control import give_mode_back
from provision.app.project import send_project
from provision.app.session import Done, Session, Targets
from provision.app.vm.hosts import enter
from provision.dev import sync
from provision.errors import EXIT_OURS, UsageError
from provision.model import Facts, Host, Transport
from provision.recipes import worker
from provision.recipes.mps import kept, no_mps
from provision.recipes.worker import container, no_worker
from provision.resource import Resource
from provision.resources.container import WORKSPACE
from provision.shell import script


def dev_up(session: Session, targets: Targets) -> Done:
    """Host, worker image and container; MPS again where it was enabled, or the compute mode as it was before that."""
    image = worker_image(session)

    def recipe(target: Host) -> list[Resource]:
        own = worker(session.settings, image, host=target)
        return [*converging.cos_recipe(session, target), *own, kept(session.settings)]

    chosen = converging.hosts(session, targets)
    finished = converging.converge(session, targets, chosen, recipe, "dev.up")
    give_mode_back(session, targets, chosen, finished.reports)
    return converging.done(finished, check=targets.check)


def dev_down(session: Session, targets: Targets) -> Done:
    """The container gone, MPS with it; image and workspace stay."""

    def recipe(target: Host) -> list[Resource]:
        return [*no_mps(session.settings, host=target), *no_worker(session.settings)]

    return converging.run(session, targets, recipe, "dev.down")


def dev_exec(session: Session, targets: Targets, words: Sequence[str], *, count: int | None = None) -> Done:
    """Run a command in the container, its output streamed; returns its status, the worst one of `count` at once."""
    transport = converging.connect(session, converging.host(session, targets))
    try:
        return _run(session, transport, words, count)
    finally:
        transport.close()


def _run(session: Session, transport: Transport, words: Sequence[str], count: int | None) -> Done:
    """Once, with what it prints as it is; or `count` times at once."""
    if count is None:
        return programs.run(session, transport, session.settings.worker.name, words, stdin=session.stdin)
    return clients.run(session, transport, words, count)


def dev_run(session: Session, targets: Targets, file: str, words: Sequence[str] = (), *, count: int | None = None) -> Done:
    """Send the project's files and run one of them in the container, `count` times at once where that is given."""
    names = sync.project_files(session.project_dir)
    program = _program(session, file, names)
    stage = sync.new_stage()
    packed = sync.pack(session.project_dir, names, stage)
    transport = converging.connect(session, converging.host(session, targets))
    try:
        send_project(session, transport, packed, stage)
        return _run(session, transport, [*program, *words], count)
    finally:
        transport.close()


def _program(session: Session, file: str, names: Sequence[str]) -> list[str]:
    """The words that run FILE, which must be among the files that are sent."""
    relative = _relative(session, file)
    posix = str(PurePosixPath(*relative.parts))
    if posix not in names:
        raise UsageError(
            "FILE would not be sent",
            where=file,
            why="git ignores it, and what git ignores stays here",
            fix=f"git -C {shlex.quote(str(session.project_dir))} add --force -- {shlex.quote(posix)}",
        )
    match relative.suffix:
        case ".py":
            return ["python", posix]
        case ".sh":
            return ["sh", posix]
        case _:
            return [f"./{posix}"]


def _relative(session: Session, file: str) -> Path:
    """FILE as the project calls it; it may be named from the current folder, as a shell completes it, or from the project's.

    Raises `UsageError` for one that is not there, or lies elsewhere.
    """
    folders = list(dict.fromkeys((Path.cwd(), session.project_dir)))
    found = [path.resolve() for folder in folders if (path := folder / file).is_file()]
    if not found:
        why = f"looked in {' and '.join(map(str, folders))}"
        raise UsageError("there is no such file", where=file, why=why, fix=f"ls {shlex.quote(str(Path(file).parent))}")
    root = session.project_dir.resolve()
    inside = next((path for path in found if path.is_relative_to(root)), None)
    if inside is None:
        why = f"the project is {session.project_dir}"
        raise UsageError("FILE must lie in the project", where=file, why=why, fix="copy it into the project")
    return inside.relative_to(root)


_SHELL = """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true || exit 125
if test -t 0; then set -- --tty; fi
test ! -e "$chosen" || docker exec "$daemon" sh -c "$alive" </dev/null >/dev/null 2>&1 || echo "$without" >&2
test -z "$hidden" || unset "$hidden"
exec docker exec --interactive "$@" ${hidden:+--env "$hidden"} --workdir "$dir" "$name" sh -c "$body"
"""
_INSIDE = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"


def dev_shell(session: Session, targets: Targets) -> Done:
    """A shell in the container, on a real terminal; returns its status. Raises `HostError` when no container runs.

    The terminal is the user's, so status 125 is all that says so; as a shell may end with it too, the host is asked then.
    """
    target = converging.host(session, targets)
    body = script(_SHELL, argv=[], name=session.settings.worker.name, dir=WORKSPACE, body=_INSIDE, **programs.around(session))
    status = enter(session, target, body, become=True)
    if status == EXIT_OURS:
        with contextlib.closing(converging.connect(session, target)) as transport:
            programs.check_running(session, transport)
    return programs.finished(status)


def dev_devcontainer(session: Session, targets: Targets) -> Done:
    """devcontainer.json for the very container that `dev.up` starts."""
    target = converging.host(session, targets)
    image = worker_image(session)
    box = container(session.settings, image, host=target)
    nodes = [f"/dev/nvidia{index}" for index in range(session.settings.gpu_count)] + ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    devices = [word for node in nodes for word in ("--device", node)] if box.gpu and not box.privileged else []
    words = [str(word) for word in box.arguments(Facts())]
    text = templating.devcontainer(
        [*words, *devices, box.image, "infinity"], image=box.image, name=box.container, project_dir=session.project_dir
    )
    return Done({"devcontainer": text}, text=text.rstrip("\n"))
