"""Turns the exceptions of an SSH connection attempt into errors with a reason and a remedy."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from fabric import Connection
from paramiko.auth_strategy import AuthFailure
from paramiko.ssh_exception import IncompatiblePeer, SSHException

from provision.core.errors import ProvisionError, Unreachable
from provision.core.model import Host
from provision.hosts.ssh import iap
from provision.hosts.ssh.closing import Closers


@contextlib.contextmanager
def raising_unreachable(host: Host, connection: Connection, closers: Closers) -> Iterator[None]:
    """Raise `Unreachable` for the block's network, SSH and authentication errors."""
    try:
        yield
    except ProvisionError:
        raise
    except AuthFailure as failure:
        raise _auth_error(host, connection, failure) from failure
    except socket.gaierror as error:
        raise Unreachable(
            "the name does not resolve",
            where=host.name,
            why=f"{connection.host}: {error.strerror}",
            fix=f"getent hosts {connection.host}",
        ) from error
    except (OSError, EOFError, SSHException) as error:
        raise _connection_error(host, connection, closers, error) from error


def _connection_error(
    host: Host, connection: Connection, closers: Closers, error: Exception
) -> Unreachable:
    wire = connection.client.get_transport()
    reasons = (
        getattr(wire, "disconnect_reason", ""),
        "closed from our side" if closers.closed else _describe(error),
        closers.proxy_stderr(),
    )
    why = "\n".join(filter(None, reasons))
    if host.proxy:
        return iap.tunnel_error(host, why)
    target = f"{connection.user}@{connection.host} port {connection.port}"
    return Unreachable(
        f"no SSH connection to {target}",
        where=host.name,
        why=why,
        fix=_manual_check(connection),
    )


def _auth_error(host: Host, connection: Connection, failure: AuthFailure) -> Unreachable:
    """List the server's answer to each offered key, then the keys that were not offered."""
    strategy: Any = failure.result.strategy
    wire: Any = connection.client.get_transport()
    names = [name for _, name in strategy.offered.keys]
    tried = [
        _answer(name, entry.result) for name, entry in zip(names, failure.result, strict=False)
    ]
    unused = (*names[len(tried) :], *strategy.offered.skipped)
    lines = [
        *filter(None, [wire.disconnect_reason]),
        *tried,
        *(f"not tried: {text}" for text in unused),
    ]
    return Unreachable(
        f"no key is accepted for user {connection.user}",
        where=host.name,
        why="\n".join(lines) or "there is no key to try",
        fix=_manual_check(connection),
    )


def _answer(name: str, result: object) -> str:
    if not isinstance(result, Exception):
        return f"{name}: accepted, but more authentication is required: {result}"
    text = _describe(result)
    return f"refused: {name}" if text.startswith("Authentication failed") else f"{name}: {text}"


def _describe(error: BaseException) -> str:
    match error:
        case TimeoutError():
            return "timed out"
        case IncompatiblePeer():
            return f"no common algorithm: {error}"
        case EOFError():
            return "the connection was closed"
        case _:
            return str(error) or type(error).__name__


def _manual_check(connection: Connection) -> str:
    return f"ssh -v -p {connection.port} {connection.user}@{connection.host} true"
