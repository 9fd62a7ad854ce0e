"""A recipe brought to a host and reported on, in one call."""

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
    """Bring a host to the recipe over SSH, as `vm.provision` does, and report what was verified.

    With `check`, only say what would change. `emit` is told of every step and every line of output.
    Nothing of the user's own SSH set-up is read: the host's key is the one that its `host_key`
    pins. Raises `Unreachable` and `HostKeyMismatch` when there is no connection, and `RecipeError`
    for a recipe that contradicts itself; the rest is in the report.
    """
    target = host.host if isinstance(host, MockHost) else host
    transport = connection.connect(target, known_hosts=KnownHosts(Path(os.devnull)))
    try:
        return engine.converge(transport, resources, emit, clock=time.monotonic, check=check)
    finally:
        transport.close()
