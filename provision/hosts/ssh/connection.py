"""Opening an SSH connection: ssh_config through Fabric, gateways hop by hop, every hop's key checked by our policy."""

from __future__ import annotations

import contextlib
import functools
import getpass
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabric import Config, Connection
from paramiko import Channel, MissingHostKeyPolicy, PKey, SSHClient
from paramiko.auth_strategy import AuthFailure
from paramiko.ssh_exception import ConfigParseError, IncompatiblePeer, SSHException

from provision.core.errors import ProvisionError, Unreachable, UsageError
from provision.core.model import Host
from provision.hosts.known_hosts import HostKey, KnownHosts, Pins, pin_name
from provision.hosts.ssh import dial, iap
from provision.hosts.ssh.alias import parsed, unreadable
from provision.hosts.ssh.auth import Strategy
from provision.hosts.ssh.config import SshConfig
from provision.hosts.ssh.transport import COMMAND_MAX_BYTES, SshTransport
from provision.hosts.ssh.wire import SESSION, Goal, Wire, opened

__all__ = ["COMMAND_MAX_BYTES", "SshTransport", "connect", "scan"]

logging.getLogger("paramiko").addHandler(logging.NullHandler())

_MAX_HOPS = 8
_SCANNED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512")
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


class _PinnedKeyPolicy(MissingHostKeyPolicy):
    """Accepts a pinned key only; raises `HostKeyMismatch` otherwise. Runs before anything is authenticated."""

    def __init__(self, pins: Pins) -> None:
        self.pins = pins

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:  # noqa: ARG002 - the base class asks for them
        """Called for every key, because the client's own stores stay empty."""
        self.pins.verify(HostKey(key.get_name(), key.asbytes()))


class _Opened:
    """What has to be closed again, last opened first. Closing may come from another thread, even while more is opened."""

    def __init__(self) -> None:
        self.last_words: Callable[[], str] = str
        self._closers: list[Callable[[], object]] = []
        self._closed = False
        self._lock = threading.Lock()

    def add(self, close: Callable[[], object]) -> None:
        with self._lock:
            self._closers.append(close)
            late = self._closed
        if late:
            self.close()

    def close(self) -> None:
        with self._lock:
            closers, self._closers, self._closed = self._closers[::-1], [], True
        for close in closers:
            with contextlib.suppress(OSError, EOFError, SSHException):
                close()

    @property
    def closed(self) -> bool:
        return self._closed


@dataclass(frozen=True)
class _Dialer:
    """Everything that opening a chain of connections needs."""

    known_hosts: KnownHosts
    config: SshConfig
    timeout_s: float
    opened: _Opened

    def connection(self, host: Host) -> Connection:
        """Fabric's view of the host: the settings first, then the user's ssh_config."""
        dial.check_host_name(host.address, where=host.name)
        strategy = functools.partial(Strategy, identity=host.identity, config=self.config)
        overrides = {"authentication": {"strategy_class": strategy}, "user": getpass.getuser()}
        config = Config(ssh_config=parsed(host, self.config), lazy=True, overrides=overrides)
        try:
            limits = {"banner_timeout": self.timeout_s, "auth_timeout": self.timeout_s}
            connection = Connection(
                host.address,
                config=config,
                gateway=False,
                forward_agent=False,
                connect_kwargs=limits,
            )
        except (ConfigParseError, ValueError) as error:
            raise unreadable(host, error) from error
        dial.check_host_name(connection.host, where=host.name)
        dial.check_user(connection.user, where=host.name)
        return connection

    def open(
        self, host: Host, goal: Goal, *, via: Connection | None = None, depth: int = 0
    ) -> Connection:
        """Connect, authenticate and ask for `goal`, through the gateways that the configuration names unless `via` is one."""
        connection = self.connection(host)
        timeout_s = float(connection.connect_timeout or self.timeout_s)
        pins = self.pins(host, connection)
        sock = self.stream(host, connection, via=via, depth=depth)
        connection.client.set_missing_host_key_policy(_PinnedKeyPolicy(pins))
        connection.connect_kwargs.update(
            sock=sock,
            transport_factory=functools.partial(
                _wire, algorithms=pins.algorithms(), early=goal, timeout_s=timeout_s
            ),
        )
        connection.connect_timeout = timeout_s
        self.opened.add(functools.partial(_close_client, connection.client, sock))
        with _translated(host, connection, self.opened), _bounded(timeout_s, sock):
            connection.open()
            if not connection.transport.is_authenticated():
                raise SSHException(
                    "the key is accepted, but the server asks for a second factor, which nobody is here to give"
                )
        return connection

    def pins(self, host: Host, connection: Connection) -> Pins:
        options = connection.ssh_config
        name = pin_name(
            connection.host, connection.port, host.key_alias or options.get("hostkeyalias")
        )
        return self.known_hosts.pins(host, name, files=_known_hosts_files(options, self.config))

    def stream(
        self, host: Host, connection: Connection, *, via: Connection | None, depth: int
    ) -> Any:
        """The stream that the connection will run over: through `via`, a jump host, a proxy command, or plain TCP."""
        options = connection.ssh_config
        jump = "none" if host.proxy else str(options.get("proxyjump") or "none")
        with _translated(host, connection, self.opened):
            if via is None and jump.lower() != "none":
                via = self.jump(host, connection, jump.split(","), depth)
            if via is None and host.proxy:
                return self.proxy(dial.ProxyProcess(host.proxy))
            if via is not None:
                return self.forward(via.transport, Goal(connection.host, connection.port))
            if options.get("proxycommand"):
                return self.proxy(
                    dial.ProxyProcess.of_shell(str(options["proxycommand"]).replace("%%", "%"))
                )
            family = _FAMILIES.get(
                str(options.get("addressfamily", "any")).lower(), socket.AF_UNSPEC
            )
            timeout_s = float(connection.connect_timeout or self.timeout_s)
            return dial.tcp(
                connection.host,
                connection.port,
                timeout_s=timeout_s,
                family=family,
                bind=options.get("bindaddress"),
                on_socket=lambda sock: self.opened.add(lambda: dial.hang_up(sock)),
            )

    def jump(
        self, host: Host, connection: Connection, hops: Sequence[str], depth: int
    ) -> Connection | None:
        if depth >= _MAX_HOPS:
            raise UsageError(
                "the gateways lead in a circle",
                where=host.name,
                why=",".join(hops),
                fix="ssh -G " + host.address,
            )
        gateways = [_gateway(hop.strip(), behind=host) for hop in hops]
        if any(
            gateway.address in (host.address, connection.host)
            and gateway.port in (None, connection.port)
            for gateway in gateways
        ):
            return None  # `Host *` with ProxyJump matches the gateway itself
        via: Connection | None = None
        for gateway, after in zip(gateways, [*gateways[1:], None], strict=True):
            beyond = self.connection(after) if after else connection
            via = self.open(gateway, Goal(beyond.host, beyond.port), via=via, depth=depth + 1)
        return via

    def forward(self, gateway: Wire, goal: Goal) -> Channel:
        opening, gateway.spare = gateway.spare or gateway.begin(goal), None
        channel = opened(gateway, opening, time.monotonic() + self.timeout_s)
        if channel is None:
            refusal = (
                gateway.refusals.get(opening.channel.chanid)
                or gateway.disconnect_reason
                or "no answer"
            )
            raise SSHException(f"the gateway could not open the way: {refusal}")
        return channel

    def proxy(self, process: dial.ProxyProcess) -> socket.socket:
        self.opened.add(process.close)
        self.opened.last_words = process.last_words
        return process.sock


def connect(
    host: Host,
    *,
    known_hosts: KnownHosts,
    timeout_s: float = 15.0,
    ssh_config: SshConfig | None = None,
    on_closer: Callable[[Callable[[], None]], object] | None = None,
) -> SshTransport:
    """Open one connection to `host`, authenticate, and return a transport for its commands.

    `on_closer` is given a function that ends the attempt, and later the connection, from another
    thread.

    Raises `HostKeyMismatch` when a key on the way is unknown or not the pinned one, `Unreachable`
    when there is no connection or no key is accepted within `timeout_s` seconds per hop, and
    `UsageError` for a name that could not be one.
    """
    opened = _Opened()
    dialer = _Dialer(known_hosts, ssh_config or SshConfig(), timeout_s, opened)
    if on_closer is not None:
        on_closer(opened.close)
    try:
        connection = dialer.open(host, SESSION)
    except BaseException:
        opened.close()
        raise
    wire = connection.transport
    wire.keep_alive(_alive_interval(connection.ssh_config))
    return SshTransport(host, wire, opened.close)


def scan(
    host: Host,
    *,
    timeout_s: float = 15.0,
    ssh_config: SshConfig | None = None,
    known_hosts: KnownHosts,
) -> tuple[HostKey, ...]:
    """The keys that a server shows, at most one of each kind, without authenticating; for a first pin that is compared.

    Gateways on the way are authenticated to and their keys checked. Raises `Unreachable` when no
    key could be had.
    """
    with ThreadPoolExecutor(len(_SCANNED)) as pool:
        results = list(
            pool.map(
                lambda kind: _scan_one(
                    host, kind, known_hosts, timeout_s, ssh_config or SshConfig()
                ),
                _SCANNED,
            )
        )
    keys = tuple(result for result in results if isinstance(result, HostKey))
    if not keys:
        raise next(result for result in results if isinstance(result, ProvisionError))
    return keys


def _scan_one(
    host: Host, kind: str, known_hosts: KnownHosts, timeout_s: float, config: SshConfig
) -> HostKey | ProvisionError:
    opened = _Opened()
    dialer = _Dialer(known_hosts, config, timeout_s, opened)
    try:
        connection = dialer.connection(host)
        sock = dialer.stream(host, connection, via=None, depth=0)
        wire = _wire(sock, timeout_s=timeout_s)
        wire.get_security_options().key_types = (kind,)
        opened.add(functools.partial(_close_wire, wire, sock))
        with _translated(host, connection, opened), _bounded(timeout_s, sock):
            wire.start_client(timeout=timeout_s)
            key = wire.get_remote_server_key()
            return HostKey(key.get_name(), key.asbytes())
    except ProvisionError as error:
        return error
    finally:
        opened.close()


def _wire(
    sock: Any,
    *,
    timeout_s: float,
    algorithms: tuple[str, ...] = (),
    early: Goal | None = None,
    disabled_algorithms: Any = None,
) -> Wire:
    wire = Wire(sock, disabled_algorithms=disabled_algorithms)
    wire.handshake_timeout = wire.banner_timeout = timeout_s
    wire.early = early
    wire.prefer_host_keys(algorithms)
    return wire


def _gateway(word: str, *, behind: Host) -> Host:
    """One hop of ProxyJump: [user@]host[:port] or ssh://[user@]host[:port]."""
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


def _known_hosts_files(options: Any, config: SshConfig) -> tuple[Path, ...] | None:
    user, system = options.get("userknownhostsfile"), options.get("globalknownhostsfile")
    if not user and not system:
        return None
    defaults = config.default_known_hosts()
    chosen = _paths(user) if user else defaults[:2]
    return (*chosen, *(_paths(system) if system else defaults[2:]))


def _paths(words: str) -> tuple[Path, ...]:
    return tuple(Path(word).expanduser() for word in words.split() if word.lower() != "none")


def _alive_interval(options: Any) -> int:
    text = str(options.get("serveraliveinterval", ""))
    return int(text) if text.isdigit() and int(text) > 0 else dial.KEEPALIVE_S


def _close_client(client: SSHClient, sock: Any) -> None:
    wire = client.get_transport()
    if wire is None:
        sock.close()
    else:
        _close_wire(wire, sock)
    client.close()


def _close_wire(wire: Any, sock: Any) -> None:
    wire.packetizer.complete_handshake()  # its timer would keep the process alive
    if isinstance(sock, socket.socket):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)  # wakes the reading thread at once
    wire.close()
    sock.close()
    for answered in list(wire.channel_events.values()):
        answered.set()
    if wire.is_alive() and wire is not threading.current_thread():
        wire.join(1.0)


@contextlib.contextmanager
def _bounded(timeout_s: float, sock: Any) -> Iterator[None]:
    """Close `sock` when the time is over: a server that sends a byte now and then must not hold us for ever."""
    timer = threading.Timer(
        timeout_s, sock.close if not isinstance(sock, socket.socket) else lambda: dial.hang_up(sock)
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _translated(host: Host, connection: Connection, opened: _Opened) -> Iterator[None]:
    """Whatever goes wrong on the way becomes one of our errors."""
    target = f"{connection.user}@{connection.host} port {connection.port}"
    try:
        yield
    except ProvisionError:
        raise
    except AuthFailure as failure:
        raise _refused(host, connection, failure) from failure
    except socket.gaierror as error:
        why = f"{connection.host}: {error.strerror}"
        raise Unreachable(
            "the name does not resolve",
            where=host.name,
            why=why,
            fix=f"getent hosts {connection.host}",
        ) from error
    except (OSError, EOFError, SSHException) as error:
        wire = connection.client.get_transport()
        ours = "closed from our side" if opened.closed else _words(error)
        why = "\n".join(
            filter(None, [getattr(wire, "disconnect_reason", ""), ours, opened.last_words()])
        )
        if host.proxy:
            raise iap.explained(host, why) from error
        fix = f"ssh -v -p {connection.port} {connection.user}@{connection.host} true"
        raise Unreachable(
            f"no SSH connection to {target}", where=host.name, why=why, fix=fix
        ) from error


def _words(error: BaseException) -> str:
    match error:
        case TimeoutError():
            return "timed out"
        case IncompatiblePeer():
            return f"no common algorithm: {error}"
        case EOFError():
            return "the connection was closed"
        case _:
            return str(error) or type(error).__name__


def _verdict(name: str, result: object) -> str:
    text = (
        _words(result)
        if isinstance(result, Exception)
        else f"accepted, but more is asked for: {result}"
    )
    return f"refused: {name}" if text.startswith("Authentication failed") else f"{name}: {text}"


def _refused(host: Host, connection: Connection, failure: AuthFailure) -> Unreachable:
    strategy: Any = failure.result.strategy
    wire: Any = connection.client.get_transport()
    names = [name for _, name in strategy.candidates.keys]
    tried = [
        _verdict(name, entry.result) for name, entry in zip(names, failure.result, strict=False)
    ]
    left = [f"not tried: {text}" for text in (*names[len(tried) :], *strategy.candidates.skipped)]
    lines = [*filter(None, [wire.disconnect_reason]), *tried, *left] or ["there is no key to try"]
    fix = f"ssh -v -p {connection.port} {connection.user}@{connection.host} true"
    return Unreachable(
        f"no key is accepted for user {connection.user}",
        where=host.name,
        why="\n".join(lines),
        fix=fix,
    )
