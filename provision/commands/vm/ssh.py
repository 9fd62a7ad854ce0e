"""`vm.ssh`: a shell or one command on a host."""

from __future__ import annotations

from collections.abc import Sequence

from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.shared.terminal_session import open_terminal
from provision.commands.shared.user_program.run import program_result
from provision.core.shell import command
from provision.project.project import Project


def vm_ssh(project: Project, targets: Targets, words: Sequence[str] = ()) -> TaskResult:
    """Open a shell on the host, or run one command there; return its exit status."""
    target = host_access.resolve_host(project, targets)
    body = command(*words) if words else None
    return program_result(open_terminal(project, target, body, become=False))
