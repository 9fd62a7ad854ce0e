"""Interactive sessions on a terminal: with the system's ssh, with paramiko, and locally."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from paramiko import Channel

from provision.core.errors import UsageError
from provision.core.model import Host
from provision.core.shell import RemotePath, command, script
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh.connection import connect
from provision.hosts.ssh.ssh_program import pinned_file, ssh_arguments
from provision.hosts.ssh.terminal import attach, remote_command, run_interactive

pytestmark = pytest.mark.slow

Fixture = Any
ED = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhAqcVaWAMCSKt6NHhRBhFcyISvgC0pbZAKHPHg2zxL"


@dataclass
class TerminalProcess:
    """A child process on its own terminal, with methods to type and to read the screen."""

    pid: int
    fd: int
    seen: str = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def read_until(self, text: str, timeout_s: float = 15) -> str:
        """Wait until `text` appears on the screen; return the screen up to it."""
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not appear in {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(
                    f"it ended, and {text!r} did not appear in {self.seen!r}"
                ) from None
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def status(self) -> int:
        while True:
            try:
                if not os.read(self.fd, 4096):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


_PROGRAM = """
import os, sys
from pathlib import Path
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh.terminal import run_interactive
from provision.core.model import Host
from provision.core.shell import script
host, known, body, ssh = eval(sys.stdin.fileno() and '' or os.environ['TEST_ARGUMENTS'])
body = script(body) if body else None
known_hosts = KnownHosts(Path(known))
sys.exit(run_interactive(host, body, known_hosts=known_hosts, environ=os.environ, ssh=ssh))
"""


@pytest.fixture
def start_session() -> Iterator[Any]:
    """Start `run_interactive` on its own terminal."""
    processes: list[TerminalProcess] = []

    def start(
        host: Host, known_hosts: KnownHosts, body: str | None, ssh: str | None
    ) -> TerminalProcess:
        arguments = repr((host, str(known_hosts.own), body, ssh))
        environ: Mapping[str, str] = {
            **os.environ,
            "TEST_ARGUMENTS": arguments,
            "TERM": "xterm",
            "SHELL": "/bin/sh",
            "PS1": "ready> ",
        }
        pid, fd = pty.fork()
        if pid == 0:
            os.execve(sys.executable, [sys.executable, "-c", _PROGRAM], dict(environ))
        processes.append(TerminalProcess(pid, fd))
        processes[-1].resize(33, 77)
        return processes[-1]

    yield start
    for session in processes:
        os.close(session.fd)


def host_of_kind(request: pytest.FixtureRequest, kind: str) -> tuple[Host, KnownHosts, str | None]:
    if kind == "local":
        return (
            Host(name="here", address="local", become="none"),
            KnownHosts(Path("/nonexistent")),
            None,
        )
    if kind == "mock":
        mock = request.getfixturevalue("mock_host")
        return mock.host, KnownHosts(mock.folder / "none"), "ssh"
    server = request.getfixturevalue("sshd")
    return server.host(become="none"), server.known_hosts, "ssh" if kind == "ssh" else None


KINDS = pytest.mark.parametrize("kind", ["ssh", "paramiko", "local", "mock"])


@KINDS
def test_program_gets_terminal_size_and_returns_status(
    request: pytest.FixtureRequest, start_session: Fixture, kind: str
) -> None:
    host, known, ssh = host_of_kind(request, kind)
    body = (
        'test -t 0 && test -t 1 && echo "is a terminal"; read x; stty size; echo "got <$x>"; exit 7'
    )
    session = start_session(host, known, body, ssh)
    session.read_until("is a terminal")
    session.type("hello\n")
    assert "33 77" in session.read_until("got <hello>")
    assert session.status() == 7


@KINDS
def test_control_c_reaches_remote_program_only(
    request: pytest.FixtureRequest, start_session: Fixture, kind: str
) -> None:
    host, known, ssh = host_of_kind(request, kind)
    session = start_session(
        host, known, "trap 'echo caught' INT; echo waiting; sleep 30; echo after; exit 3", ssh
    )
    session.read_until("waiting\r\n")
    time.sleep(0.2)
    session.type("\x03")
    session.read_until("caught")
    session.read_until("after")
    assert session.status() == 3


@KINDS
def test_window_resize_is_forwarded(
    request: pytest.FixtureRequest, start_session: Fixture, kind: str
) -> None:
    host, known, ssh = host_of_kind(request, kind)
    session = start_session(
        host, known, "trap 'stty size' WINCH; echo waiting; while :; do sleep 0.1; done", ssh
    )
    session.read_until("waiting")
    time.sleep(0.3)
    session.resize(41, 99)
    session.read_until("41 99")
    session.type("\x03")
    session.status()


@KINDS
def test_no_body_starts_login_shell(
    request: pytest.FixtureRequest, start_session: Fixture, kind: str
) -> None:
    host, known, ssh = host_of_kind(request, kind)
    session = start_session(host, known, None, ssh)
    session.type("echo $((6 * 7)); exit 5\n")
    session.read_until("42")
    assert session.status() == 5


@pytest.mark.parametrize("ssh", ["ssh", None])
def test_changed_host_key_aborts(sshd: Fixture, start_session: Fixture, ssh: str | None) -> None:
    session = start_session(sshd.host(host_key=ED), sshd.known_hosts, "echo in; exit 0", ssh)
    assert session.status() != 0
    assert "in\r\n" not in session.seen


@pytest.mark.parametrize("ssh", ["ssh", None])
def test_piped_input_reaches_remote_program(
    sshd: Fixture,
    ssh: str | None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"from here\n")
    os.close(writing)
    saved = os.dup(0)
    os.dup2(reading, 0)
    try:
        with os.fdopen(0, closefd=False) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            host = sshd.host(become="none")
            status = run_interactive(
                host,
                script("cat; test -t 0; exit 9"),
                known_hosts=sshd.known_hosts,
                environ=os.environ,
                ssh=ssh,
            )
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(reading)
    assert status == 9
    assert capfd.readouterr().out == "from here\n"


# --- arguments of ssh -----------------------------------------------------------------------------


def test_ssh_arguments(tmp_path: Path) -> None:
    host = Host(
        name="dev",
        address="10.0.0.5",
        port=2222,
        user="me",
        identity="/keys/my key",
        key_alias="4711",
    )
    words = ssh_arguments(host, pins=Path("/tmp/a 100%/known"), environ={}, remote="echo $HOME")
    assert words == [
        "-t", "-p", "2222", "-l", "me",
        "-o", "StrictHostKeyChecking=yes", "-o", "UpdateHostKeys=no",
        "-o", "ServerAliveInterval=15",
        "-o", 'UserKnownHostsFile="/tmp/a 100%%/known"', "-o", "GlobalKnownHostsFile=none",
        "-o", "HostKeyAlias=4711", "-o", "CheckHostIP=no",
        "-o", 'IdentityFile="/keys/my key"', "-o", "IdentitiesOnly=yes",
        "--", "10.0.0.5", "echo $HOME",
    ]  # fmt: skip


def test_without_pins_users_known_hosts_apply(tmp_path: Path) -> None:
    words = ssh_arguments(Host(name="dev", address="vm"), pins=None, environ={}, terminal=False)
    assert words == [
        "-T",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "UpdateHostKeys=no",
        "-o",
        "ServerAliveInterval=15",
        "--",
        "vm",
    ]


def test_home_variable_selects_ssh_config(tmp_path: Path) -> None:
    host = Host(name="dev", address="vm")
    assert ssh_arguments(host, pins=None, environ={"HOME": str(tmp_path)})[1:3] == ["-F", "none"]
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("")
    assert ssh_arguments(host, pins=None, environ={"HOME": str(tmp_path)})[1:3] == [
        "-F",
        str(tmp_path / ".ssh" / "config"),
    ]


@pytest.mark.parametrize("address", ["-oProxyCommand=id", "a;b", "a b", ""])
def test_address_like_an_option_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        ssh_arguments(Host(name="dev", address=address), pins=None, environ={})


def test_pinned_file_holds_only_keys_of_the_host(tmp_path: Path) -> None:
    known = KnownHosts(tmp_path / "known_hosts")
    known.pin("4711", ED)
    known.pin("4712", ED)
    with pinned_file(Host(name="dev", address="vm", key_alias="4711"), known) as path:
        assert path is not None
        assert path.read_text() == f"4711 {ED}\n"
    assert not path.exists()
    with pinned_file(Host(name="dev", address="vm", key_alias="4713"), known) as nothing:
        assert nothing is None


def test_body_reaches_host_unchanged(sshd: Fixture, collected: Fixture) -> None:
    from provision.hosts.ssh.connection import connect

    transport = connect(sshd.host(), known_hosts=sshd.known_hosts)
    words = ("it's", 'a "b"', "$(id)", "a\nb", "*", "")
    assert (
        transport.exchange(
            remote_command(command("printf", "<%s>", *words), become=False),
            **collected.sinks,
            timeout_s=20,
        )
        == 0
    )
    assert bytes(collected.out).decode() == "".join(f"<{word}>" for word in words)
    collected.out.clear()
    assert (
        transport.exchange(
            remote_command(script('echo "$p"', p=RemotePath("/etc/x")), become=False),
            **collected.sinks,
            timeout_s=20,
        )
        == 0
    )
    assert bytes(collected.out) == b"/etc/x\n"
    transport.close()


def test_become_runs_body_under_sudo() -> None:
    assert remote_command(command("id"), become=True).startswith("set -- sudo -n sh -c ")
    assert "sudo" not in remote_command(command("id"), become=False)


def test_ssh_parses_arguments_as_intended(tmp_path: Path) -> None:
    folder = tmp_path / "a folder, 100% full"
    folder.mkdir()
    (folder / "known").write_text(f"4711 {ED}\n")
    host = Host(
        name="dev",
        address="10.0.0.5",
        port=2222,
        user="me",
        identity=str(folder / "key"),
        key_alias="4711",
    )
    words = ssh_arguments(host, pins=folder / "known", environ={"HOME": str(tmp_path)})
    printed = subprocess.run(
        ["ssh", "-G", *words], capture_output=True, text=True, check=True, timeout=20
    ).stdout.splitlines()
    for line in (
        "hostname 10.0.0.5",
        "port 2222",
        "user me",
        "hostkeyalias 4711",
        "stricthostkeychecking true",
        "identitiesonly yes",
        f"userknownhostsfile {folder}/known",
    ):
        assert line in printed


def test_ssh_prefers_explicit_settings_to_user_config(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(
        "Host *\n Port 2200\n User other\n IdentityFile /their/key\n"
    )

    def seen(host: Host) -> list[str]:
        words = ssh_arguments(host, pins=None, environ={"HOME": str(tmp_path)})
        return subprocess.run(
            ["ssh", "-G", *words], capture_output=True, text=True, check=True, timeout=20
        ).stdout.splitlines()

    set_here = seen(Host(name="desk", address="192.0.2.7", port=22, user="me", identity="/our/key"))
    assert {"port 22", "user me"} <= set(set_here)
    assert (
        next(line for line in set_here if line.startswith("identityfile "))
        == "identityfile /our/key"
    )
    assert {"port 2200", "user other", "identityfile /their/key"} <= set(
        seen(Host(name="desk", address="192.0.2.7"))
    )


def test_identity_path_with_special_characters_is_used(
    sshd: Fixture, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a folder, 100% full"
    folder.mkdir()
    (folder / "key").write_bytes(sshd.identity.read_bytes())
    (folder / "key").chmod(0o600)
    known = KnownHosts(folder / "known_hosts")
    known.pin(f"[127.0.0.1]:{sshd.port}", sshd.host_key)
    host = sshd.host(identity=str(folder / "key"), host_key=None, become="none")
    assert run_interactive(host, script("echo in"), known_hosts=known, environ=os.environ) == 0
    assert capfd.readouterr().out == "in\n"


def test_program_may_end_before_reading_all_input(
    sshd: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `yes | provision vm.ssh -- head -1` where the system has no ssh."""
    ours, theirs = os.pipe()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.write(theirs, b"y\n" * 100)

    def ended(*_: object) -> None:
        raise OSError(errno.EPIPE, "Socket is closed")

    monkeypatch.setattr(Channel, "sendall", ended)
    with contextlib.closing(
        connect(sshd.host(become="none"), known_hosts=sshd.known_hosts)
    ) as transport:
        assert attach(transport, "exit 3", term="dumb", stdin=ours, stdout=nowhere) == 3
    for handle in (ours, theirs, nowhere):
        os.close(handle)
