"""Connecting by SSH: host keys, authentication, ssh_config, gateways, proxies and failures."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.core.errors import HostKeyMismatch, Unreachable, UsageError
from provision.core.model import Host
from provision.hosts.host_keys import HostKey
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh import hops
from provision.hosts.ssh.config import SshConfig
from provision.hosts.ssh.connection import connect, scan_host_keys
from provision.testing.network import Network
from tests.ssh.conftest import generate_key

Fixture = Any


def can_run(
    host: Host, known_hosts: KnownHosts, config: SshConfig | None = None, timeout_s: float = 20
) -> bool:
    """Connect, run a command, close; return whether the command succeeded."""
    out = bytearray()
    transport = connect(host, known_hosts=known_hosts, timeout_s=timeout_s, ssh_config=config)
    try:
        return (
            transport.exchange("echo here", on_stdout=out.extend, on_stderr=print, timeout_s=20)
            == 0
            and bytes(out) == b"here\n"
        )
    finally:
        transport.close()


# --- the host's key -------------------------------------------------------------------------------


def test_pinned_host_key_is_accepted(sshd: Fixture) -> None:
    assert can_run(sshd.host(), sshd.known_hosts)


def test_unknown_host_key_aborts_before_authentication(scripted: Fixture, tmp_path: Path) -> None:
    server = scripted.server
    with pytest.raises(HostKeyMismatch, match="unknown") as caught:
        connect(server.host(host_key=None), known_hosts=KnownHosts(tmp_path / "none"))
    seen = HostKey.parse(server.host_key)
    assert f"no key is pinned for [127.0.0.1]:{server.port}" in caught.value.why
    assert str(seen) in caught.value.why
    assert seen.line in caught.value.fix
    assert scripted.auth_requests == 0


def test_host_key_setting_suggested_by_error_works(sshd: Fixture, tmp_path: Path) -> None:
    with pytest.raises(HostKeyMismatch) as caught:
        connect(sshd.host(host_key=None), known_hosts=KnownHosts(tmp_path / "none"))
    found = re.search(r"host_key: '(.*)'", caught.value.fix)
    assert found is not None
    assert can_run(sshd.host(host_key=found[1]), KnownHosts(tmp_path / "none"))


def test_changed_host_key_aborts(scripted: Fixture, sshd: Fixture) -> None:
    server = scripted.server
    with pytest.raises(HostKeyMismatch, match="changed") as caught:
        connect(server.host(host_key=sshd.host_key), known_hosts=server.known_hosts)
    assert "provision.hosts.dev.host_key" in caught.value.why
    assert HostKey.parse(sshd.host_key).fingerprint in caught.value.why
    assert HostKey.parse(server.host_key).fingerprint in caught.value.why
    assert scripted.auth_requests == 0


def test_vm_key_is_found_by_instance_id(sshd: Fixture, tmp_path: Path) -> None:
    known_hosts = KnownHosts(tmp_path / "known_hosts")
    host = sshd.host(host_key=None, key_alias="7110394021")
    known_hosts.pin("7110394021", sshd.host_key)
    assert can_run(host, known_hosts)
    with pytest.raises(HostKeyMismatch):
        connect(replace(host, key_alias="7110394022"), known_hosts=known_hosts)


def test_pinned_algorithm_is_negotiated_first(make_sshd: Fixture, tmp_path: Path) -> None:
    server = make_sshd(host_keys=("ed25519", "ecdsa", "rsa"))
    for kind in ("ed25519", "ecdsa", "rsa"):
        line = (server.state / f"host_{kind}.pub").read_text()
        assert can_run(server.host(host_key=line), KnownHosts(tmp_path / "none"))


def test_known_hosts_files_of_ssh_config_are_read(sshd: Fixture, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text(f"the-alias {sshd.host_key}\n")
    config = SshConfig(
        text=f"Host 127.0.0.1\n UserKnownHostsFile {tmp_path}/mine\n HostKeyAlias the-alias\n"
    )
    assert can_run(sshd.host(host_key=None), KnownHosts(tmp_path / "none"), config)


def test_scan_returns_every_key_without_login(make_sshd: Fixture, tmp_path: Path) -> None:
    server = make_sshd(host_keys=("ed25519", "ecdsa", "rsa"))
    keys = scan_host_keys(
        server.host(identity=None, host_key=None), known_hosts=KnownHosts(tmp_path / "none")
    )
    expected = {
        " ".join((server.state / f"host_{kind}.pub").read_text().split()[:2])
        for kind in ("ed25519", "ecdsa", "rsa")
    }
    assert {key.line for key in keys} == expected


def test_scan_of_closed_port_is_unreachable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Unreachable):
        scan_host_keys(
            Host(name="dev", address="127.0.0.1", port=port),
            known_hosts=KnownHosts(tmp_path / "none"),
        )


# --- our key --------------------------------------------------------------------------------------


def test_refused_key_is_listed(sshd: Fixture, tmp_path: Path) -> None:
    wrong = generate_key(tmp_path / "wrong")
    with pytest.raises(Unreachable, match="no key is accepted for user") as caught:
        connect(sshd.host(identity=str(wrong)), known_hosts=sshd.known_hosts)
    assert f"refused: {wrong}" in caught.value.why
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("content", [None, "nonsense", ""])
def test_unusable_key_file_is_listed(sshd: Fixture, tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "no key"
    if content is not None:
        path.write_text(content)
    with pytest.raises(Unreachable, match="no key is accepted") as caught:
        connect(sshd.host(identity=str(path)), known_hosts=sshd.known_hosts)
    assert f"not tried: {path}: " in caught.value.why


def test_key_with_passphrase_never_prompts(sshd: Fixture, tmp_path: Path) -> None:
    locked = generate_key(tmp_path / "locked", passphrase="secret")
    with pytest.raises(Unreachable) as caught:
        connect(sshd.host(identity=str(locked)), known_hosts=sshd.known_hosts)
    assert f"needs a passphrase; run ssh-add {locked}" in caught.value.why


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_default_key_files_are_tried_without_identity(
    sshd: Fixture, make_sshd: Fixture, tmp_path: Path, kind: str
) -> None:
    (tmp_path / ".ssh").mkdir()
    key = tmp_path / ".ssh" / f"id_{kind}"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(key)], check=True, timeout=60
    )
    server = make_sshd(AuthorizedKeysFile=str(key) + ".pub")
    assert can_run(server.host(identity=None), server.known_hosts, SshConfig(home=tmp_path))
    with pytest.raises(Unreachable, match="no key is accepted") as caught:
        connect(server.host(identity=None), known_hosts=server.known_hosts)
    assert "there is no key to try" in caught.value.why


def test_identity_file_of_ssh_config_is_used(sshd: Fixture) -> None:
    config = SshConfig(text=f"Host *\n IdentityFile {sshd.identity}\n")
    assert can_run(sshd.host(identity=None), sshd.known_hosts, config)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[str]:
    """A running ssh-agent; the value is its socket."""
    path = f"/tmp/agent-{os.getpid()}-{threading.get_ident() % 10000}"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    while not Path(path).exists():
        time.sleep(0.01)
    yield path
    process.terminate()
    process.wait(10)
    Path(path).unlink(missing_ok=True)


def ssh_add(socket_path: str, key: Path) -> None:
    subprocess.run(
        ["ssh-add", "-q", str(key)],
        env={**os.environ, "SSH_AUTH_SOCK": socket_path},
        check=True,
        timeout=20,
        stderr=subprocess.DEVNULL,
    )


def test_agent_keys_are_offered(sshd: Fixture, agent: str, tmp_path: Path) -> None:
    ssh_add(agent, generate_key(tmp_path / "unrelated"))
    ssh_add(agent, sshd.identity)
    assert can_run(sshd.host(identity=None), sshd.known_hosts, SshConfig(agent_socket=agent))
    assert can_run(
        sshd.host(identity=None), sshd.known_hosts, SshConfig(text=f"IdentityAgent {agent}")
    )


def test_identity_setting_suppresses_other_agent_keys(
    scripted: Fixture, agent: str, tmp_path: Path
) -> None:
    scripted.accepts_auth = False
    ssh_add(agent, generate_key(tmp_path / "unrelated"))
    with pytest.raises(Unreachable) as caught:
        connect(
            scripted.server.host(),
            known_hosts=scripted.server.known_hosts,
            ssh_config=SshConfig(agent_socket=agent),
        )
    assert scripted.auth_requests == 1
    assert "unrelated" not in caught.value.why


def test_identity_may_be_public_key_held_by_agent(sshd: Fixture, agent: str) -> None:
    ssh_add(agent, sshd.identity)
    config = SshConfig(agent_socket=agent)
    assert can_run(sshd.host(identity=f"{sshd.identity}.pub"), sshd.known_hosts, config)
    with pytest.raises(Unreachable) as caught:
        connect(sshd.host(identity=f"{sshd.identity}.pub"), known_hosts=sshd.known_hosts)
    assert "private half is not in the agent" in caught.value.why


def test_key_with_passphrase_works_through_agent(
    make_sshd: Fixture, agent: str, tmp_path: Path
) -> None:
    key = generate_key(tmp_path / "key")
    ssh_add(agent, key)
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)],
        check=True,
        timeout=60,
        capture_output=True,
    )
    server = make_sshd(AuthorizedKeysFile=str(key) + ".pub")
    assert can_run(
        server.host(identity=str(key)), server.known_hosts, SshConfig(agent_socket=agent)
    )


def test_missing_agent_is_ignored(sshd: Fixture, tmp_path: Path) -> None:
    assert can_run(sshd.host(), sshd.known_hosts, SshConfig(agent_socket=str(tmp_path / "gone")))


def test_last_of_many_keys_is_accepted(make_sshd: Fixture, agent: str, tmp_path: Path) -> None:
    keys = [generate_key(tmp_path / f"key{number}") for number in range(5)]
    for key in keys:
        ssh_add(agent, key)
    server = make_sshd(AuthorizedKeysFile=str(keys[-1]) + ".pub")
    assert can_run(server.host(identity=None), server.known_hosts, SshConfig(agent_socket=agent))


def test_too_many_refused_keys_report_server_message(
    make_sshd: Fixture, agent: str, tmp_path: Path
) -> None:
    for number in range(4):
        ssh_add(agent, generate_key(tmp_path / f"key{number}"))
    server = make_sshd(MaxAuthTries="2")
    with pytest.raises(Unreachable) as caught:
        connect(
            server.host(identity=None),
            known_hosts=server.known_hosts,
            ssh_config=SshConfig(agent_socket=agent),
        )
    assert "Too many authentication failures" in caught.value.why


def test_second_factor_requirement_is_reported(make_sshd: Fixture) -> None:
    server = make_sshd(AuthenticationMethods="publickey,password", PasswordAuthentication="yes")
    with pytest.raises(Unreachable) as caught:
        connect(server.host(), known_hosts=server.known_hosts)
    assert "second factor" in caught.value.why


# --- ssh_config and gateways ----------------------------------------------------------------------


def test_hostname_of_ssh_config_is_used(sshd: Fixture, tmp_path: Path) -> None:
    config = SshConfig(
        text=f"Host work*\n HostName 127.0.0.1\n Port {sshd.port}\n"
        f" User {sshd.host().user}\n IdentityFile {sshd.identity}\n"
    )
    host = Host(name="dev", address="workstation", host_key=sshd.host_key)
    assert can_run(host, KnownHosts(tmp_path / "none"), config)


def test_settings_override_ssh_config(sshd: Fixture) -> None:
    config = SshConfig(text="Host *\n Port 1\n User nobody-of-that-name\n")
    assert can_run(sshd.host(), sshd.known_hosts, config)


@pytest.mark.parametrize(("port", "asked"), [(22, 22), (None, 2200)])
def test_explicit_port_22_overrides_ssh_config(
    port: int | None, asked: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def record_address(address: str, port: int, **_: object) -> None:
        raise ConnectionRefusedError(f"{address} {port}")

    monkeypatch.setattr(hops, "connect_tcp", record_address)
    host = Host(name="desk", address="192.0.2.7", port=port, user="me")
    config = SshConfig(text="Host 192.0.2.*\n Port 2200\n User other\n")
    with pytest.raises(Unreachable) as caught:
        connect(host, known_hosts=KnownHosts(tmp_path / "none"), ssh_config=config)
    assert (caught.value.what, caught.value.why) == (
        f"no SSH connection to me@192.0.2.7 port {asked}",
        f"192.0.2.7 {asked}",
    )


def test_explicit_identity_overrides_ssh_config(sshd: Fixture, tmp_path: Path) -> None:
    other = generate_key(tmp_path / "other")
    config = SshConfig(text=f"Host *\n IdentityFile {other}\n")
    with pytest.raises(Unreachable) as caught:
        connect(sshd.host(identity=None), known_hosts=sshd.known_hosts, ssh_config=config)
    assert f"refused: {other}" in caught.value.why
    assert can_run(sshd.host(), sshd.known_hosts, config)


def test_invalid_ssh_config_is_usage_error(sshd: Fixture) -> None:
    with pytest.raises(UsageError, match="ssh_config cannot be read"):
        connect(
            sshd.host(),
            known_hosts=sshd.known_hosts,
            ssh_config=SshConfig(text="Host 'unbalanced\n"),
        )


def gateway_config(gateway: Any, key: str = "ProxyJump") -> str:
    return (
        f"Host gate\n HostName 127.0.0.1\n Port {gateway.port}\n"
        f" User {gateway.host().user}\n IdentityFile {gateway.identity}\n"
        f" HostKeyAlias gate-key\nHost 127.0.0.1\n {key} gate\n"
    )


def test_connects_through_gateway(sshd: Fixture, make_sshd: Fixture, tmp_path: Path) -> None:
    gateway = make_sshd()
    known_hosts = KnownHosts(tmp_path / "known_hosts")
    known_hosts.pin("gate-key", gateway.host_key)
    assert can_run(sshd.host(), known_hosts, SshConfig(text=gateway_config(gateway)))
    assert "Accepted publickey" in (gateway.state / "log").read_text()


def test_gateway_with_changed_key_aborts(sshd: Fixture, make_sshd: Fixture, tmp_path: Path) -> None:
    gateway = make_sshd()
    known_hosts = KnownHosts(tmp_path / "known_hosts")
    known_hosts.pin("gate-key", sshd.host_key)
    with pytest.raises(HostKeyMismatch, match="changed") as caught:
        connect(
            sshd.host(), known_hosts=known_hosts, ssh_config=SshConfig(text=gateway_config(gateway))
        )
    assert caught.value.where == "gate"
    assert "Accepted publickey" not in (gateway.state / "log").read_text()


def test_gateway_with_unknown_key_aborts(sshd: Fixture, make_sshd: Fixture, tmp_path: Path) -> None:
    with pytest.raises(HostKeyMismatch, match="unknown") as caught:
        connect(
            sshd.host(),
            known_hosts=KnownHosts(tmp_path / "none"),
            ssh_config=SshConfig(text=gateway_config(make_sshd())),
        )
    assert "gate-key" in caught.value.why


def test_host_key_behind_gateway_is_verified(
    sshd: Fixture, make_sshd: Fixture, tmp_path: Path
) -> None:
    gateway = make_sshd()
    known_hosts = KnownHosts(tmp_path / "known_hosts")
    known_hosts.pin("gate-key", gateway.host_key)
    with pytest.raises(HostKeyMismatch, match="changed") as caught:
        connect(
            sshd.host(host_key=gateway.host_key),
            known_hosts=known_hosts,
            ssh_config=SshConfig(text=gateway_config(gateway)),
        )
    assert caught.value.where == "dev"


def test_connects_through_two_gateways(sshd: Fixture, make_sshd: Fixture, tmp_path: Path) -> None:
    first, second = make_sshd(), make_sshd()
    known_hosts = KnownHosts(tmp_path / "known_hosts")
    known_hosts.pin("gate-key", first.host_key)
    known_hosts.pin(f"[localhost]:{second.port}", second.host_key)
    text = gateway_config(first).replace(
        "ProxyJump gate", f"ProxyJump gate,localhost:{second.port}"
    )
    text += f"Host localhost\n IdentityFile {second.identity}\n"
    assert can_run(sshd.host(), known_hosts, SshConfig(text=text))
    for gateway in (first, second):
        assert "Accepted publickey" in (gateway.state / "log").read_text()


def test_gateway_that_cannot_reach_host_is_reported(make_sshd: Fixture, tmp_path: Path) -> None:
    gateway = make_sshd()
    known_hosts = KnownHosts(tmp_path / "known_hosts")
    known_hosts.pin("gate-key", gateway.host_key)
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    host = gateway.host(port=closed)
    with pytest.raises(Unreachable, match="no SSH connection") as caught:
        connect(host, known_hosts=known_hosts, ssh_config=SshConfig(text=gateway_config(gateway)))
    assert "gateway could not connect to the host" in caught.value.why


def test_circular_gateways_are_usage_error(sshd: Fixture) -> None:
    config = SshConfig(
        text="Host 127.0.0.1\n ProxyJump a\nHost a\n ProxyJump b\nHost b\n ProxyJump a\n"
    )
    with pytest.raises(UsageError, match="circular"):
        connect(sshd.host(), known_hosts=sshd.known_hosts, ssh_config=config)


def test_gateway_of_all_hosts_is_reached_directly(
    sshd: Fixture, make_sshd: Fixture, tmp_path: Path
) -> None:
    gateway = make_sshd()
    known_hosts = KnownHosts(tmp_path / "known_hosts")
    known_hosts.pin("gate-key", gateway.host_key)
    text = gateway_config(gateway).replace("Host 127.0.0.1\n", "Host *\n")
    assert can_run(sshd.host(), known_hosts, SshConfig(text=text))


@pytest.fixture
def proxy(tmp_path: Path) -> Path:
    """A proxy program: it connects its standard streams to HOST PORT and logs its arguments."""
    path = tmp_path / "proxy.sh"
    path.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/ran\nexec nc "$1" "$2"\n'
        if shutil.which("nc")
        else _python_proxy(tmp_path)
    )
    path.chmod(0o755)
    return path


def _python_proxy(folder: Path) -> str:
    return f"""#!/usr/bin/env python3
import os, socket, sys, threading
open({str(folder / "ran")!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := s.recv(65536):
    os.write(1, data)
"""


def test_connects_through_proxy_command(sshd: Fixture, proxy: Path, tmp_path: Path) -> None:
    config = SshConfig(text=f"Host 127.0.0.1\n ProxyCommand {proxy} %h %p as:%r 100%%\n")
    assert can_run(sshd.host(), sshd.known_hosts, config)
    assert (tmp_path / "ran").read_text() == f"127.0.0.1 {sshd.port} as:{sshd.host().user} 100%\n"


def test_proxy_command_ends_with_connection(sshd: Fixture, proxy: Path) -> None:
    config = SshConfig(text=f"Host 127.0.0.1\n ProxyCommand {proxy} %h %p end-marker\n")
    transport = connect(sshd.host(), known_hosts=sshd.known_hosts, ssh_config=config)
    transport.close()
    assert (
        "end-marker"
        not in subprocess.run(
            ["ps", "-eo", "args"], capture_output=True, text=True, check=True, timeout=20
        ).stdout
    )


def test_proxy_command_stderr_is_reported(sshd: Fixture) -> None:
    config = SshConfig(
        text="Host *\n ProxyCommand echo 'ERROR 4003: backend refused' >&2; exit 1\n"
    )
    with pytest.raises(Unreachable) as caught:
        connect(sshd.host(), known_hosts=sshd.known_hosts, ssh_config=config)
    assert "ERROR 4003: backend refused" in caught.value.why


@pytest.mark.parametrize(
    "address",
    [
        "-oProxyCommand=touch /tmp/x",
        "a;b",
        "$(id)",
        "a b",
        "a`b`",
        "",
        "a\nb",
        "a|b",
        "a'b",
        'a"b',
        "~root",
        "me@a",
        "a:22",
        "a/b",
    ],
)
def test_unsafe_address_is_refused(sshd: Fixture, address: str) -> None:
    with pytest.raises(UsageError, match="not a host name"):
        connect(
            sshd.host(address=address),
            known_hosts=sshd.known_hosts,
            ssh_config=SshConfig(text="ProxyCommand touch %h"),
        )


@pytest.mark.parametrize("user", ["-l", "a;b", "a`b`", "a'b", "a\nHost *", " ", "a\\"])
def test_unsafe_user_name_is_refused(sshd: Fixture, user: str) -> None:
    with pytest.raises(UsageError, match="not a user name"):
        connect(sshd.host(user=user), known_hosts=sshd.known_hosts)


@pytest.mark.parametrize(
    "line", ["Port many", "ConnectTimeout soon", "Host 'unbalanced", "ProxyJump gate:many"]
)
def test_invalid_ssh_config_value_is_usage_error(sshd: Fixture, line: str) -> None:
    with pytest.raises(UsageError):
        connect(
            sshd.host(port=None),
            known_hosts=sshd.known_hosts,
            ssh_config=SshConfig(text=line + "\n"),
        )


@pytest.mark.parametrize("value", ["yes", "Yes", "$SSH_AUTH_SOCK", "/some/socket"])
def test_forward_agent_of_ssh_config_is_ignored(sshd: Fixture, value: str) -> None:
    assert can_run(sshd.host(), sshd.known_hosts, SshConfig(text=f"ForwardAgent {value}\n"))


def test_default_known_hosts_files_are_read(sshd: Fixture, tmp_path: Path) -> None:
    (tmp_path / "user").write_text(f"[127.0.0.1]:{sshd.port} {sshd.host_key}\n")
    assert can_run(sshd.host(host_key=None), KnownHosts(tmp_path / "none", [tmp_path / "user"]))


def test_connects_to_ipv6_address(make_sshd: Fixture, tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on loopback")
    server = make_sshd(ListenAddress="127.0.0.1:{port}\nListenAddress [::1]:{port}")
    known_hosts = KnownHosts(tmp_path / "known_hosts")
    known_hosts.pin(f"[::1]:{server.port}", server.host_key)
    assert can_run(server.host(address="::1", host_key=None), known_hosts)


# --- bad luck -------------------------------------------------------------------------------------


def test_closed_port_is_unreachable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Unreachable, match="no SSH connection") as caught:
        connect(
            Host(name="dev", address="127.0.0.1", port=port),
            known_hosts=KnownHosts(tmp_path / "none"),
        )
    assert "refused" in caught.value.why
    assert caught.value.where == "dev"


def test_unresolvable_name_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="does not resolve"):
        connect(Host(name="dev", address="vm.invalid"), known_hosts=KnownHosts(tmp_path / "none"))


def test_silent_server_times_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        started = time.monotonic()
        with pytest.raises(Unreachable):
            connect(
                Host(name="dev", address="127.0.0.1", port=server.getsockname()[1]),
                known_hosts=KnownHosts(tmp_path / "n"),
                timeout_s=0.5,
            )
        assert time.monotonic() - started < 3


def test_trickling_server_times_out(tmp_path: Path) -> None:
    stop = threading.Event()

    def trickle(server: socket.socket) -> None:
        client, _ = server.accept()
        with client:
            while not stop.wait(0.1):
                try:
                    client.send(b"x")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickle, args=(server,))
        thread.start()
        started = time.monotonic()
        with pytest.raises(Unreachable):
            connect(
                Host(name="dev", address="127.0.0.1", port=server.getsockname()[1]),
                known_hosts=KnownHosts(tmp_path / "n"),
                timeout_s=1,
            )
        assert time.monotonic() - started < 3
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    "banner", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-1.5-old\r\n", b"\0" * 5000, b""]
)
def test_other_protocol_is_unreachable(tmp_path: Path, banner: bytes) -> None:
    def answer(server: socket.socket) -> None:
        client, _ = server.accept()
        client.sendall(banner)
        client.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        with pytest.raises(Unreachable):
            connect(
                Host(name="dev", address="127.0.0.1", port=server.getsockname()[1]),
                known_hosts=KnownHosts(tmp_path / "n"),
                timeout_s=5,
            )
        thread.join()


def test_closer_aborts_attempt_from_another_thread(tmp_path: Path) -> None:
    closers: list[Callable[[], None]] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = Host(name="dev", address="127.0.0.1", port=server.getsockname()[1])
        timer = threading.Timer(0.3, lambda: [close() for close in closers])
        timer.start()
        started = time.monotonic()
        with pytest.raises(Unreachable) as caught:
            connect(
                host,
                known_hosts=KnownHosts(tmp_path / "none"),
                timeout_s=30,
                on_closer=closers.append,
            )
        assert time.monotonic() - started < 5
        assert "closed from our side" in caught.value.why
        timer.join()


def test_closer_ends_open_connection(sshd: Fixture, collected: Fixture) -> None:
    closers: list[Callable[[], None]] = []
    transport = connect(sshd.host(), known_hosts=sshd.known_hosts, on_closer=closers.append)
    timer = threading.Timer(0.3, lambda: [close() for close in closers])
    timer.start()
    with pytest.raises(Unreachable):
        transport.exchange("sleep 30", **collected.sinks, timeout_s=30)
    timer.join()
    transport.close()


def test_failed_attempts_leave_no_thread_or_socket(
    sshd: Fixture, network: Network, tmp_path: Path
) -> None:
    def sockets() -> int:
        count = 0
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # another thread closed it meanwhile
                count += str(entry.readlink()).startswith("socket:")
        return count

    relay = network.relay(("127.0.0.1", sshd.port))
    threads, before = threading.active_count(), sockets()
    attempts: list[Callable[[], object]] = [
        lambda: connect(
            sshd.host(host_key=None, port=relay.port), known_hosts=KnownHosts(tmp_path / "none")
        ),
        lambda: connect(
            sshd.host(identity=str(tmp_path / "none"), port=relay.port),
            known_hosts=sshd.known_hosts,
        ),
    ]
    for attempt in attempts * 3:
        with pytest.raises((HostKeyMismatch, Unreachable)):
            attempt()
    deadline = time.monotonic() + 5
    while (threading.active_count(), sockets()) != (threads, before):
        assert time.monotonic() < deadline, (threading.enumerate(), sockets(), before)
        time.sleep(0.02)
