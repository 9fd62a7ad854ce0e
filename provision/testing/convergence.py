"""`converge`: apply a recipe to a host over SSH and return the report."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from provision.core import engine
from provision.core.model import Emit, Event, Host, HostReport
from provision.core.resource import Resource
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh import connection
from provision.testing.mock_host import MockHost


def _drop(event: Event) -> None:
    del event


def converge(
    host: MockHost | Host, resources: Sequence[Resource], *, check: bool = False, emit: Emit = _drop
) -> HostReport:
    """Apply a recipe to a host over SSH, as `vm.provision` does, and return the report.

    With `check` the report lists what would change, and nothing is changed. `emit` gets every event
    and line of output. The user's own SSH configuration is not read; the host must have the key of
    its `host_key`. Raises `Unreachable` and `HostKeyMismatch` without a connection, and
    `RecipeError` for a recipe that contradicts itself; other failures are in the report.
    """
    target = host.host if isinstance(host, MockHost) else host
    transport = connection.connect(target, known_hosts=KnownHosts(Path(os.devnull)))
    try:
        return engine.converge(transport, resources, emit, clock=time.monotonic, check=check)
    finally:
        transport.close()
