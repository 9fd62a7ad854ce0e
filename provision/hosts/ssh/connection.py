"""Connects to a host by SSH, and reads the keys that a host presents."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from provision.core.errors import ProvisionError
from provision.core.model import Host
from provision.core.parallel import run_all
from provision.hosts.host_keys import HostKey
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh.closing import Closers, close_wire, closed_after
from provision.hosts.ssh.config import SshConfig
from provision.hosts.ssh.dial import KEEPALIVE_S
from provision.hosts.ssh.failures import raising_unreachable
from provision.hosts.ssh.hops import HopDialer, make_wire
from provision.hosts.ssh.transport import SshTransport
from provision.hosts.ssh.wire import SESSION

logging.getLogger("paramiko").addHandler(logging.NullHandler())

_SCANNED_ALGORITHMS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512")


def connect(
    host: Host,
    *,
    known_hosts: KnownHosts,
    timeout_s: float = 15.0,
    ssh_config: SshConfig | None = None,
    on_closer: Callable[[Callable[[], None]], object] | None = None,
) -> SshTransport:
    """Connect to a host, authenticate, and return a transport for its commands.

    `on_closer` receives a function that another thread may call to end the attempt and, later, the
    connection.

    Raises `HostKeyMismatch` when the key of the host or of a gateway is unknown or differs from the
    pinned one, `Unreachable` when there is no connection or no key is accepted within `timeout_s`
    seconds per hop, and `UsageError` for an unreadable ssh_config or an unsafe host or user name.
    """
    closers = Closers()
    dialer = HopDialer(known_hosts, ssh_config or SshConfig(), timeout_s, closers)
    if on_closer is not None:
        on_closer(closers.close)
    try:
        connection = dialer.open(host, SESSION)
    except BaseException:
        closers.close()
        raise
    wire = connection.transport
    wire.keep_alive(_keepalive_interval_s(connection.ssh_config))
    return SshTransport(host, wire, closers.close)


def scan_host_keys(
    host: Host,
    *,
    timeout_s: float = 15.0,
    ssh_config: SshConfig | None = None,
    known_hosts: KnownHosts,
) -> tuple[HostKey, ...]:
    """Return the keys that a server presents, at most one per algorithm, without logging in.

    They are not verified: compare them with a trusted source before pinning them. Gateways are
    logged in to, and their keys are verified. Raises `Unreachable` when no key is presented.
    """
    scan = functools.partial(
        _scan_algorithm, host, known_hosts, timeout_s, ssh_config or SshConfig()
    )
    results = run_all(_SCANNED_ALGORITHMS, scan, at_once=len(_SCANNED_ALGORITHMS))
    keys = tuple(result.value for result in results if result.value is not None)
    errors = [result.error for result in results if result.error is not None]
    unexpected = [error for error in errors if not isinstance(error, ProvisionError)]
    if unexpected or not keys:
        raise (unexpected or errors)[0]
    return keys


def _scan_algorithm(
    host: Host, known_hosts: KnownHosts, timeout_s: float, config: SshConfig, algorithm: str
) -> HostKey:
    closers = Closers()
    dialer = HopDialer(known_hosts, config, timeout_s, closers)
    try:
        connection = dialer.configure(host)
        sock = dialer.open_stream(host, connection)
        wire = make_wire(sock, timeout_s=timeout_s)
        wire.get_security_options().key_types = (algorithm,)
        closers.add(functools.partial(close_wire, wire, sock))
        with raising_unreachable(host, connection, closers), closed_after(timeout_s, sock):
            wire.start_client(timeout=timeout_s)
            key = wire.get_remote_server_key()
            return HostKey(key.get_name(), key.asbytes())
    finally:
        closers.close()


def _keepalive_interval_s(options: Mapping[str, Any]) -> int:
    text = str(options.get("serveraliveinterval", ""))
    return int(text) if text.isdigit() and int(text) > 0 else KEEPALIVE_S
