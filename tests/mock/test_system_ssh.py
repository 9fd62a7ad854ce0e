"""The system's own ssh and scp work with a mock host as with any other."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from provision.testing import MockHost

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_command_returns_its_status(cos: MockHost, system_ssh: Run) -> None:
    done = system_ssh(
        cos, "ssh", ["user@127.0.0.1", "cat; hostname; echo oops >&2; exit 7"], input="from here\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "from here\nmock\n", "oops\n")


def test_signal_is_reported(cos: MockHost, system_ssh: Run) -> None:
    assert system_ssh(cos, "ssh", ["user@127.0.0.1", "kill -TERM $$"]).returncode == 255


def test_forced_terminal_is_allocated(cos: MockHost, system_ssh: Run) -> None:
    done = system_ssh(
        cos, "ssh", ["-tt", "user@127.0.0.1", "test -t 0 && tty; exit 5"], stdin=subprocess.DEVNULL
    )
    assert done.returncode == 5
    assert done.stdout.startswith("/dev/pts/")


def test_client_refuses_changed_key(cos: MockHost, system_ssh: Run, tmp_path: Path) -> None:
    assert system_ssh(cos, "ssh", ["user@127.0.0.1", "true"]).returncode == 0
    old = cos.host.host_key
    cos.change_host_key()
    known = tmp_path / "old"
    known.write_text(f"[127.0.0.1]:{cos.host.port} {old}\n")
    done = system_ssh(cos, "ssh", ["-o", f"UserKnownHostsFile={known}", "user@127.0.0.1", "true"])
    assert done.returncode == 0, "the first option wins: this one is the new key's file"
    strict = [
        "ssh",
        "-F",
        "none",
        "-o",
        f"UserKnownHostsFile={known}",
        "-o",
        "StrictHostKeyChecking=yes",
        "-i",
        str(cos.host.identity),
    ]
    refused = subprocess.run(
        [*strict, "-p", str(cos.host.port), "user@127.0.0.1", "true"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert refused.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr


def test_scp_copies_with_both_protocols(cos: MockHost, system_ssh: Run, tmp_path: Path) -> None:
    source = tmp_path / "a file"
    source.write_bytes(bytes(range(256)) * 100)
    for flags, name in (([], "by-sftp"), (["-O"], "by-scp")):
        assert (
            system_ssh(cos, "scp", [*flags, str(source), f"user@127.0.0.1:{name}"]).returncode == 0
        )
        assert cos.path(f"/home/user/{name}").read_bytes() == source.read_bytes()
        back = tmp_path / f"{name}-back"
        assert system_ssh(cos, "scp", [*flags, f"user@127.0.0.1:{name}", str(back)]).returncode == 0
        assert back.read_bytes() == source.read_bytes()


def test_tar_stream_copies_a_tree(cos: MockHost, system_ssh: Run, tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "x").write_text("deep")
    packed = subprocess.run(
        ["tar", "-cf", "-", "-C", str(tmp_path / "tree"), "."], capture_output=True, check=True
    ).stdout
    done = system_ssh(
        cos, "ssh", ["user@127.0.0.1", "mkdir t && tar -xf - -C t"], input=packed, text=False
    )
    assert done.returncode == 0
    assert cos.path("/home/user/t/sub/x").read_text() == "deep"


def test_host_serves_as_gateway_of_another(cos: MockHost, system_ssh: Run, tmp_path: Path) -> None:
    with MockHost(name="behind") as behind:
        gate, far = cos.host, behind.host
        config = tmp_path / "config"
        known = tmp_path / "known_both"
        known.write_text(
            f"[127.0.0.1]:{gate.port} {gate.host_key}\n[127.0.0.1]:{far.port} {far.host_key}\n"
        )
        config.write_text(
            f"Host *\n  UserKnownHostsFile {known}\n  StrictHostKeyChecking yes\n"
            "  User user\n  HostName 127.0.0.1\n"
            f"Host gate\n  Port {gate.port}\n  IdentityFile {gate.identity}\n"
            f"Host far\n  Port {far.port}\n  IdentityFile {far.identity}\n  ProxyJump gate\n"
        )
        done = subprocess.run(
            ["ssh", "-F", str(config), "far", "hostname"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "behind\n"), done.stderr
    assert cos.stats.forwards == 1
