"""Find the hosts that a task acts on, and connect to them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from provision.cloud.api.protocol import ComputeCloud
from provision.commands.shared.targets import Targets
from provision.core.errors import UsageError
from provision.core.fleet import Cancel
from provision.core.model import Emit, Host, HostConnected, HostStarted, Transport
from provision.hosts.limit_patterns import has_filters, select_by_name
from provision.hosts.local import LocalTransport
from provision.project import host_key_pinning, inventory, vm_address
from provision.project.project import Project


def resolve_hosts(project: Project, targets: Targets) -> list[Host]:
    """The hosts that `--host` or `--limit` select; without either, the one that the settings name.

    Names come from the settings and the records of this machine. One request to the cloud is sent
    for a filter, and for a name while the project may have a VM without a record. Raises
    `UsageError` for an unknown host, and errors of the cloud.
    """
    if targets.limit is not None and (
        has_filters(targets.limit) or inventory.has_unrecorded_vm(project)
    ):
        return inventory.fetch_matching_hosts(project, targets.limit)
    recorded = inventory.recorded_hosts(project)
    if targets.limit is not None:
        return inventory.prepare_access(project, select_by_name(recorded, targets.limit))
    name = targets.host or project.settings.name
    if all(host.name != name for host in recorded) and inventory.has_unrecorded_vm(project):
        entry = inventory.fetch_inventory(project).find(project, name)
        if entry is not None:
            return [entry.host]
    return inventory.prepare_access(project, [_host_named(project, recorded, name)])


def resolve_host(project: Project, targets: Targets) -> Host:
    """The single host of a task that acts on one, resolved as by `resolve_hosts`.

    Raises `UsageError` when the pattern selects another number of hosts.
    """
    selected = resolve_hosts(project, targets)
    if len(selected) != 1:
        names = ", ".join(host.name for host in selected)
        raise UsageError(
            "this task acts on one host",
            why=f"the pattern selects {len(selected)}: {names}",
            fix="--host NAME",
        )
    return selected[0]


def _host_named(project: Project, hosts: Sequence[Host], name: str) -> Host:
    for host in hosts:
        if host.name == name:
            return host
    known = ", ".join(host.name for host in hosts)
    no_hosts = f"the project {project.project_dir} has no VM yet, and its settings name no hosts"
    fix = f"{project.program_argv0} vm.create --name {shlex.quote(name)}"
    raise UsageError(
        f"there is no host named {name}",
        why=f"known hosts: {known}" if known else no_hosts,
        fix=f"{fix}, or --host NAME" if known else fix,
    )


def connect(
    project: Project,
    target: Host,
    *,
    timeout_s: float = 15.0,
    on_closer: Callable[[Callable[[], None]], None] | None = None,
    cloud: ComputeCloud | None = None,
) -> Transport:
    """An open transport: this machine itself, or one SSH connection.

    `on_closer` is called with a function that ends the connection, before it is established. For a
    VM with another key than the pinned one, the cloud is asked once for the keys that it publishes.
    For a VM that is not reached, the cloud is asked for its address, unless `cloud` is given by a
    caller that knows that it runs. Raises `Unreachable` and `HostKeyMismatch`.
    """
    if target.is_local:
        return LocalTransport(target)
    from provision.hosts.ssh import connection

    def open_connection(host: Host) -> Transport:
        return connection.connect(
            host,
            known_hosts=project.known_hosts,
            timeout_s=timeout_s,
            ssh_config=project.ssh_config,
            on_closer=on_closer,
        )

    def open_trusted(host: Host) -> Transport:
        return host_key_pinning.retry_with_published_keys(project, cloud, host, open_connection)

    if cloud is not None:
        return open_trusted(target)
    return vm_address.retry_at_current_address(project, target, open_trusted)


@contextmanager
def connection_of_run(
    project: Project, target: Host, emit: Emit, cancel: Cancel
) -> Iterator[Transport]:
    """Yield a host's transport in a run over several hosts; emit that it started and connected.

    `cancel` can end the connection, also while it is made. Raises as `connect` does.
    """
    started = time.monotonic()
    emit(HostStarted(target.name))
    transport = connect(
        project, target, on_closer=lambda close: cancel.register(target.name, close)
    )
    cancel.register(target.name, transport.close)
    try:
        emit(HostConnected(target.name, time.monotonic() - started))
        yield transport
    finally:
        transport.close()
