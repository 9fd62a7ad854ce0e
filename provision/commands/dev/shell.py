"""dev.shell: a shell in the worker container."""

from __future__ import annotations

import contextlib

from provision.commands.shared import convergence, remote_exec
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.shared.terminal_session import open_terminal
from provision.core.errors import EXIT_OWN_FAILURE
from provision.core.shell import script
from provision.project.project import Project
from provision.resources.container import WORKSPACE

_SHELL = """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true || exit 125
if test -t 0; then set -- --tty; fi
test ! -e "$chosen" || docker exec "$daemon" sh -c "$alive" </dev/null >/dev/null 2>&1 || echo "$without" >&2
test -z "$hidden" || unset "$hidden"
exec docker exec --interactive "$@" ${hidden:+--env "$hidden"} --workdir "$dir" "$name" sh -c "$body"
"""
_INSIDE = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"


def dev_shell(project: Project, targets: Targets) -> TaskResult:
    """Open a shell in the container on the user's terminal; the exit code is the shell's status.

    Raises `HostError` when the container does not run. The script exits with 125 then; since a
    shell may end with that status too, the host is asked again.
    """
    target = convergence.host(project, targets)
    body = script(
        _SHELL, argv=[], name=project.settings.worker.name, dir=WORKSPACE, body=_INSIDE
    ).with_bindings(remote_exec.around(project))
    status = open_terminal(project, target, body, become=True)
    if status == EXIT_OWN_FAILURE:
        with contextlib.closing(convergence.connect(project, target)) as transport:
            remote_exec.check_running(project, transport)
    return remote_exec.finished(status)
