"""SSH servers for tests: OpenSSH's sshd if it is installed, and a scripted paramiko server."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_SUCCEEDED,
)

from provision.core.model import Host, Transport
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.local import LocalTransport
from provision.hosts.ssh.connection import connect
from provision.testing.mock_host import MockHost
from provision.testing.network import Network

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
USER = getpass.getuser()


@dataclass
class Collected:
    """The collected output of a command."""

    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)

    @property
    def sinks(self) -> dict[str, Callable[[bytes], None]]:
        return {"on_stdout": self.out.extend, "on_stderr": self.err.extend}


@pytest.fixture
def collected() -> Collected:
    return Collected()


def generate_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Create a key pair with ssh-keygen; return the path of the private key."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)],
        check=True,
        timeout=60,
    )
    return path


def public_line(path: Path) -> str:
    return path.with_name(path.name + ".pub").read_text(encoding="utf-8").strip()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until a condition holds that another thread or process brings about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition does not hold in time"
        time.sleep(0.01)


@dataclass
class Server:
    """A running SSH server, and what a login needs."""

    port: int
    host_key: str
    identity: Path
    home: Path
    state: Path

    def host(self, **changes: Any) -> Host:
        settings: dict[str, Any] = {
            "name": "dev",
            "address": "127.0.0.1",
            "port": self.port,
            "user": USER,
            "identity": str(self.identity),
            "host_key": self.host_key,
        }
        return Host(**(settings | changes))

    @property
    def known_hosts(self) -> KnownHosts:
        return KnownHosts(self.state / "known_hosts")


@dataclass
class Sshd:
    """OpenSSH's sshd with its own configuration, run by the user of the tests."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    host_keys: tuple[str, ...] = ("ed25519",)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        keys = [generate_key(self.folder / f"host_{kind}", kind) for kind in self.host_keys]
        identity = generate_key(self.folder / "id")
        home = self.folder / "home"
        home.mkdir()
        (self.folder / "authorized_keys").write_text(public_line(identity) + "\n")
        if os.getuid() == 0:
            # sshd needs this empty folder for privilege separation
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.port = free_port()
        lines = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"),
            "PidFile": "none",
            "UsePAM": "no",
            "StrictModes": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "MaxStartups": "100:30:200",
            "PrintMotd": "no",
            "SetEnv": f"HOME={home}",
        } | self.settings
        text = "".join(
            f"{key} {value}\n".replace("{port}", str(self.port)) for key, value in lines.items()
        ) + "".join(f"HostKey {key}\n" for key in keys)
        (self.folder / "sshd_config").write_text(text)
        self.process = subprocess.Popen(
            [
                str(SSHD),
                "-D",
                "-f",
                str(self.folder / "sshd_config"),
                "-E",
                str(self.folder / "log"),
            ]
        )
        wait_until(self._listens)
        return Server(self.port, public_line(keys[0]), identity, home, self.folder)

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)


needs_sshd = pytest.mark.skipif(SSHD is None, reason="OpenSSH's sshd is not installed")


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """OpenSSH's sshd with its default settings."""
    if SSHD is None:
        pytest.skip("OpenSSH's sshd is not installed")
    daemon = Sshd(tmp_path_factory.mktemp("sshd"))
    try:
        yield daemon.start()
    finally:
        daemon.stop()


@pytest.fixture
def make_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Start sshd instances with other settings or host keys."""
    if SSHD is None:
        pytest.skip("OpenSSH's sshd is not installed")
    daemons: list[Sshd] = []

    def make(host_keys: tuple[str, ...] = ("ed25519",), **settings: str) -> Server:
        daemons.append(Sshd(tmp_path_factory.mktemp("sshd"), settings, host_keys))
        return daemons[-1].start()

    yield make
    for daemon in daemons:
        daemon.stop()


class ScriptedServer(paramiko.ServerInterface):
    """A paramiko server; tests set what it accepts, and what it does with a command."""

    def __init__(self, folder: Path) -> None:
        self.key = paramiko.Ed25519Key.from_private_key_file(
            str(generate_key(folder / "scripted_host"))
        )
        self.identity = generate_key(folder / "scripted_id")
        self.folder = folder
        self.accepts_auth = True
        self.accepts_sessions = True
        self.accepts_commands = True
        self.commands: list[str] = []
        self.opened: list[str] = []
        self.auth_requests = 0
        self.on_command: Callable[[paramiko.Channel, str], None] = lambda channel, command: None
        self.transports: list[paramiko.Transport] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def server(self) -> Server:
        line = f"{self.key.get_name()} {self.key.get_base64()}"
        return Server(
            self._listener.getsockname()[1], line, self.identity, self.folder, self.folder
        )

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = paramiko.Transport(sock)
            transport.add_server_key(self.key)
            self.transports.append(transport)
            try:
                transport.start_server(server=self, event=threading.Event())
            except (OSError, EOFError, paramiko.SSHException):
                sock.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for transport in self.transports:
            transport.close()

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.auth_requests += 1
        return AUTH_SUCCESSFUL if self.accepts_auth else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        self.opened.append(kind)
        return OPEN_SUCCEEDED if self.accepts_sessions else OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.commands.append(command.decode())
        if self.accepts_commands:
            threading.Thread(
                target=self.on_command, args=(channel, command.decode()), daemon=True
            ).start()
        return self.accepts_commands


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[ScriptedServer]:
    server = ScriptedServer(tmp_path)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as running:
        yield running


@pytest.fixture(scope="session")
def mock_host(clean_session: None) -> Iterator[MockHost]:
    with MockHost() as mock:
        yield mock


@pytest.fixture(params=["openssh", "mock", "local"])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """Each kind of transport: they share one contract."""
    opened: Transport
    if request.param == "mock":
        mock: MockHost = request.getfixturevalue("mock_host")
        opened = connect(mock.host, known_hosts=KnownHosts(mock.folder / "none"), timeout_s=20)
    elif request.param == "local":
        opened = LocalTransport(Host(name="dev", address="local"))
    else:
        server: Server = request.getfixturevalue("sshd")
        opened = connect(server.host(), known_hosts=server.known_hosts, timeout_s=20)
    yield opened
    opened.close()
