"""Interactive sessions on a host, on the user's own terminal."""

from __future__ import annotations

from provision.core.model import Host
from provision.core.shell import Script
from provision.hosts.ssh import terminal
from provision.project import host_key_pinning, vm_address
from provision.project.project import Project


def open_terminal(project: Project, target: Host, body: Script | None, *, become: bool) -> int:
    """Run `body`, or a login shell, on the host's terminal; return its exit status.

    With `become` as root. Raises `Unreachable` and `HostKeyMismatch`.
    """

    def attempt(host: Host) -> int:
        return terminal.run_interactive(
            host,
            body,
            known_hosts=project.known_hosts,
            environ=project.environ,
            become=become,
        )

    return vm_address.retry_at_current_address(
        project,
        target,
        lambda host: host_key_pinning.retry_with_published_keys(project, None, host, attempt),
    )
