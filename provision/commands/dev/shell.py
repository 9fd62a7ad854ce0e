"""dev.shell: a shell in the worker container."""

from __future__ import annotations

import contextlib
from pathlib import Path

from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.shared.terminal_session import open_terminal
from provision.commands.shared.user_program.run import PREPARE, program_bindings, program_result
from provision.commands.shared.worker_container import check_container_runs
from provision.core.errors import EXIT_OWN_FAILURE
from provision.core.shell import script
from provision.project.project import Project
from provision.resources.container import WORKSPACE

HERE = Path(__file__).parent
_BASH_OR_SH = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"


def dev_shell(project: Project, targets: Targets) -> TaskResult:
    """Open a shell in the container on the user's terminal; the exit code is the shell's status.

    Raises `HostError` when the container does not run. The script exits with 125 then; since a
    shell may end with that status too, the host is asked again.
    """
    target = host_access.resolve_host(project, targets)
    body = script(
        HERE / "shell.sh",
        uses=PREPARE,
        argv=[],
        name=project.settings.worker.name,
        dir=WORKSPACE,
        body=_BASH_OR_SH,
    ).with_bindings(program_bindings(project))
    status = open_terminal(project, target, body, become=True)
    if status == EXIT_OWN_FAILURE:
        with contextlib.closing(host_access.connect(project, target)) as transport:
            check_container_runs(project, transport)
    return program_result(status)
