"""The lab's OpenSSH server: who gets in, what they may do, and what arrives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from lab.host import Lab
from provision.core.errors import HostKeyMismatch, Unreachable
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh.connection import connect
from tests.lab.conftest import Ssh


def test_login_user_has_guest_agent_groups(ssh: Ssh) -> None:
    assert ssh("id -un").out == "dev\n"
    assert {"docker", "google-sudoers"} <= set(ssh("id -Gn").out.split())
    assert ssh("echo $SHELL $HOME").out == "/bin/bash /home/dev\n"


def test_sudo_needs_no_password_and_resets_environment(ssh: Ssh) -> None:
    assert ssh("sudo -n id -u").out == "0\n"
    output = ssh(
        "MARK=1 sudo -n sh -c 'echo $HOME ${MARK-unset} $SUDO_USER; command -v cos-extensions'"
    )
    assert output.out.splitlines() == ["/root unset dev", "/usr/local/bin/cos-extensions"]


def test_sudo_passes_arguments_status_and_input(ssh: Ssh) -> None:
    assert ssh("sudo -n printf '<%s>' \"it's\" 'a  b' ''").out == "<it's><a  b><>"
    assert ssh("sudo -n sh -c 'exit 7'").status == 7
    assert ssh("echo in | sudo -n cat").out == "in\n"


def test_other_users_cannot_become_root(lab: Lab) -> None:
    output = lab.exec_inside(
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "sudo",
        "-n",
        "id",
        "-u",
        check=False,
    )
    assert output.returncode != 0
    assert "0" not in output.stdout.split()


def test_root_cannot_log_in(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="no key is accepted"):
        connect(
            replace(lab.host, user="root"), known_hosts=KnownHosts(tmp_path / "known"), timeout_s=10
        )


def test_wrong_host_key_is_refused(lab: Lab, tmp_path: Path) -> None:
    other = paramiko.ECDSAKey.generate()
    with pytest.raises(HostKeyMismatch):
        connect(
            replace(lab.host, host_key=f"{other.get_name()} {other.get_base64()}"),
            known_hosts=KnownHosts(tmp_path / "known"),
            timeout_s=10,
        )


def test_sftp_works(lab: Lab) -> None:
    client = paramiko.SSHClient()
    client.get_host_keys().add(
        f"[127.0.0.1]:{lab.host.port}", "ssh-ed25519", paramiko.Ed25519Key(data=_blob(lab))
    )
    client.connect(
        "127.0.0.1",
        lab.host.port or 22,
        "dev",
        key_filename=lab.host.identity,
        allow_agent=False,
        look_for_keys=False,
    )
    try:
        with client.open_sftp() as sftp:
            with sftp.open("sent", "w") as file:
                file.write("over SFTP")
            assert sftp.stat("sent").st_size == len("over SFTP")
            sftp.remove("sent")
    finally:
        client.close()


def test_keys_and_port_survive_reboot(lab: Lab, login: Callable[[], Ssh]) -> None:
    before = lab.host
    boot = login()("cat /proc/sys/kernel/random/boot_id").out
    lab.reboot()
    assert lab.host == before
    assert login()("cat /proc/sys/kernel/random/boot_id").out not in {"", boot}


def _blob(lab: Lab) -> bytes:
    import base64

    assert lab.host.host_key is not None
    return base64.b64decode(lab.host.host_key.split()[1])
