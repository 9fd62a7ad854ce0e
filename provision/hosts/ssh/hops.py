"""Opens SSH connections hop by hop: through jump hosts, a proxy command, or plain TCP."""

from __future__ import annotations

import functools
import getpass
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fabric import Config, Connection
from paramiko import Channel
from paramiko.ssh_exception import ConfigParseError, SSHException

from provision.core.errors import UsageError
from provision.core.model import Host
from provision.hosts.host_keys import Pins, pin_name
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh.alias import config_error, parse_config
from provision.hosts.ssh.auth import KeyStrategy
from provision.hosts.ssh.closing import Closers, close_client, closed_after
from provision.hosts.ssh.config import SshConfig
from provision.hosts.ssh.dial import ProxyProcess, connect_tcp, shut_down
from provision.hosts.ssh.failures import raising_unreachable
from provision.hosts.ssh.host_key_policy import PinnedKeyPolicy, known_hosts_files
from provision.hosts.ssh.names import check_host_name, check_user_name
from provision.hosts.ssh.wire import ChannelTarget, Wire, wait_for_channel

_MAX_HOPS = 8
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


@dataclass(frozen=True)
class HopDialer:
    """Opens connections to hosts and to the gateways in front of them.

    `timeout_s` bounds each hop. What it opens is added to `closers`.
    """

    known_hosts: KnownHosts
    config: SshConfig
    timeout_s: float
    closers: Closers

    def configure(self, host: Host) -> Connection:
        """Return Fabric's unopened connection: the host's settings first, then ssh_config.

        Raises `UsageError` for an unreadable ssh_config or an unsafe host or user name.
        """
        check_host_name(host.address, where=host.name)
        strategy = functools.partial(KeyStrategy, identity=host.identity, config=self.config)
        overrides = {"authentication": {"strategy_class": strategy}, "user": getpass.getuser()}
        config = Config(ssh_config=parse_config(host, self.config), lazy=True, overrides=overrides)
        limits = {"banner_timeout": self.timeout_s, "auth_timeout": self.timeout_s}
        try:
            connection = Connection(
                host.address,
                config=config,
                gateway=False,
                forward_agent=False,
                connect_kwargs=limits,
            )
        except (ConfigParseError, ValueError) as error:
            raise config_error(host, error) from error
        check_host_name(connection.host, where=host.name)
        check_user_name(connection.user, where=host.name)
        return connection

    def open(
        self,
        host: Host,
        target: ChannelTarget,
        *,
        via: Connection | None = None,
        depth: int = 0,
    ) -> Connection:
        """Connect to a host, authenticate, and request the channel to `target`.

        It goes through the gateway `via`, or through those that the configuration names. Raises
        `HostKeyMismatch`, `Unreachable` or `UsageError`; see
        `provision.hosts.ssh.connection.connect`.
        """
        connection = self.configure(host)
        timeout_s = float(connection.connect_timeout or self.timeout_s)
        pins = self._pins(host, connection)
        sock = self.open_stream(host, connection, via=via, depth=depth)
        connection.client.set_missing_host_key_policy(PinnedKeyPolicy(pins))
        connection.connect_kwargs.update(
            sock=sock,
            transport_factory=functools.partial(
                make_wire, algorithms=pins.algorithms(), early_target=target, timeout_s=timeout_s
            ),
        )
        connection.connect_timeout = timeout_s
        self.closers.add(functools.partial(close_client, connection.client, sock))
        with raising_unreachable(host, connection, self.closers), closed_after(timeout_s, sock):
            connection.open()
            if not connection.transport.is_authenticated():
                raise SSHException(
                    "the key is accepted, but the server asks for a second factor, "
                    "which cannot be given here"
                )
        return connection

    def open_stream(
        self,
        host: Host,
        connection: Connection,
        *,
        via: Connection | None = None,
        depth: int = 0,
    ) -> Any:
        """Open the byte stream for a connection.

        In this order: through `via`, the host's own proxy, jump hosts, ssh_config's proxy command,
        plain TCP. Raises `Unreachable`.
        """
        options = connection.ssh_config
        with raising_unreachable(host, connection, self.closers):
            if via is None and not host.proxy:
                via = self._open_gateways(host, connection, depth)
            if via is not None:
                target = ChannelTarget(connection.host, connection.port)
                return self._forward(via.transport, target)
            if host.proxy:
                return self._start_proxy(ProxyProcess(host.proxy))
            if options.get("proxycommand"):
                command = str(options["proxycommand"]).replace("%%", "%")
                return self._start_proxy(ProxyProcess.of_shell(command))
            family = str(options.get("addressfamily", "any")).lower()
            return connect_tcp(
                connection.host,
                connection.port,
                timeout_s=float(connection.connect_timeout or self.timeout_s),
                family=_FAMILIES.get(family, socket.AF_UNSPEC),
                bind=options.get("bindaddress"),
                on_socket=lambda sock: self.closers.add(lambda: shut_down(sock)),
            )

    def _pins(self, host: Host, connection: Connection) -> Pins:
        options = connection.ssh_config
        name = pin_name(
            connection.host, connection.port, host.key_alias or options.get("hostkeyalias")
        )
        return self.known_hosts.pins(host, name, files=known_hosts_files(options, self.config))

    def _open_gateways(self, host: Host, connection: Connection, depth: int) -> Connection | None:
        """Open the jump hosts of ProxyJump, first to last; return the last, None without any."""
        jump = str(connection.ssh_config.get("proxyjump") or "none")
        if jump.lower() == "none":
            return None
        if depth >= _MAX_HOPS:
            raise UsageError(
                "the gateways are circular",
                where=host.name,
                why=jump,
                fix="ssh -G " + host.address,
            )
        gateways = [parse_gateway(hop.strip(), behind=host) for hop in jump.split(",")]
        if _is_own_gateway(gateways, host, connection):
            return None
        via: Connection | None = None
        for gateway, following in zip(gateways, [*gateways[1:], None], strict=True):
            beyond = self.configure(following) if following else connection
            target = ChannelTarget(beyond.host, beyond.port)
            via = self.open(gateway, target, via=via, depth=depth + 1)
        return via

    def _forward(self, gateway: Wire, target: ChannelTarget) -> Channel:
        """Return the channel that a gateway forwards to `target`; raises SSHException."""
        pending = gateway.early_channel or gateway.request_channel(target)
        gateway.early_channel = None
        channel = wait_for_channel(gateway, pending, time.monotonic() + self.timeout_s)
        if channel is None:
            refusal = (
                gateway.refusals.get(pending.channel.chanid)
                or gateway.disconnect_reason
                or "no answer"
            )
            raise SSHException(f"the gateway could not connect to the host: {refusal}")
        return channel

    def _start_proxy(self, process: ProxyProcess) -> socket.socket:
        self.closers.add(process.close)
        self.closers.proxy_stderr = process.stderr_tail
        return process.sock


def make_wire(
    sock: Any,
    *,
    timeout_s: float,
    algorithms: tuple[str, ...] = (),
    early_target: ChannelTarget | None = None,
    disabled_algorithms: Any = None,
) -> Wire:
    """Return a `Wire` on a stream; the signature is that of paramiko's `transport_factory`."""
    wire = Wire(sock, disabled_algorithms=disabled_algorithms)
    wire.handshake_timeout = wire.banner_timeout = timeout_s
    wire.early_target = early_target
    wire.prefer_host_keys(algorithms)
    return wire


def parse_gateway(word: str, *, behind: Host) -> Host:
    """Parse one hop of ProxyJump: [user@]host[:port] or ssh://[user@]host[:port].

    Raises `UsageError` when the port is not a number.
    """
    user, _, address = word.removeprefix("ssh://").rpartition("@")
    if address.startswith("["):
        address, _, port = address[1:].partition("]")
        port = port.lstrip(":")
    else:
        address, _, port = address.partition(":") if address.count(":") == 1 else (address, "", "")
    if not (port or "22").isdigit():
        raise UsageError(
            "not a gateway",
            where=behind.name,
            why=f"ProxyJump {word}",
            fix="ssh -G " + behind.address,
        )
    return Host(name=address, address=address, port=int(port) if port else None, user=user or None)


def _is_own_gateway(gateways: Sequence[Host], host: Host, connection: Connection) -> bool:
    """Return whether the host is one of its gateways: `Host *` with ProxyJump matches them too."""
    return any(
        gateway.address in (host.address, connection.host)
        and gateway.port in (None, connection.port)
        for gateway in gateways
    )
