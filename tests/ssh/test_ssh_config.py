"""The user's ssh_config: files, Includes, aliases."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import paramiko
import pytest

from provision.core.errors import UsageError
from provision.core.model import Host
from provision.hosts.ssh.alias import Alias, resolve_alias
from provision.hosts.ssh.config import SshConfig, expand_includes


def lookup(home: Path, name: str) -> dict[str, object]:
    config = SshConfig.of_user({"HOME": str(home)}, system=home / "etc" / "ssh_config")
    parsed = paramiko.SSHConfig()
    parsed.parse(StringIO(config.text))
    return dict(parsed.lookup(name))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".ssh" / "conf.d").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    return tmp_path


def test_missing_files_give_empty_config(home: Path) -> None:
    assert lookup(home, "a") == {"hostname": "a"}


def test_user_file_overrides_system_file(home: Path) -> None:
    (home / ".ssh" / "config").write_text("Host a\n  User me\n")
    (home / "etc" / "ssh_config").write_text("User everybody\nPort 23\n")
    assert lookup(home, "a") == {"hostname": "a", "user": "me", "port": "23"}
    assert lookup(home, "b") == {"hostname": "b", "user": "everybody", "port": "23"}


@pytest.mark.parametrize(
    "include",
    ["conf.d/*", "~/.ssh/conf.d/*", '"conf.d/*"', "missing conf.d/b conf.d/a", "conf.d/[ab]"],
)
def test_include_is_expanded_in_place(home: Path, include: str) -> None:
    (home / ".ssh" / "conf.d" / "a").write_text("Host a\n  Port 1\n")
    (home / ".ssh" / "conf.d" / "b").write_text("Host b\n  Port 2")
    (home / ".ssh" / "config").write_text(f"Include {include}\nUser me\nHost *\n  Port 3\n")
    assert [lookup(home, name)["port"] for name in "abc"] == ["1", "2", "3"]
    assert lookup(home, "c")["user"] == "me"


@pytest.mark.parametrize(
    "line",
    [
        "Include conf.d/a",
        "include conf.d/a",
        "  Include\tconf.d/a",
        "Include=conf.d/a",
        "Include = conf.d/a",
    ],
)
def test_every_spelling_of_include_is_expanded(home: Path, line: str) -> None:
    (home / ".ssh" / "conf.d" / "a").write_text("Port 7\n")
    (home / ".ssh" / "config").write_text(line + "\n")
    assert lookup(home, "x")["port"] == "7"


def test_block_continues_after_include(home: Path) -> None:
    (home / ".ssh" / "conf.d" / "a").write_text("Port 1\n")
    (home / ".ssh" / "config").write_text(
        "Host a\n  Include conf.d/a\n  User me\nHost b\n  Port 2\n"
    )
    assert lookup(home, "a") == {"hostname": "a", "port": "1", "user": "me"}
    assert lookup(home, "b") == {"hostname": "b", "port": "2"}


def test_block_of_included_file_is_limited_to_including_block(home: Path) -> None:
    (home / ".ssh" / "conf.d" / "a").write_text("Host *\n  Port 1\n")
    (home / ".ssh" / "config").write_text("Host a\n  Include conf.d/a\nHost *\n  Port 2\n")
    assert lookup(home, "b")["port"] == "2"


def test_recursive_include_is_usage_error(home: Path) -> None:
    (home / ".ssh" / "config").write_text("Include config\n")
    with pytest.raises(UsageError, match="includes itself"):
        expand_includes(home / ".ssh" / "config", base=home / ".ssh", home=home)


def test_default_identities_are_existing_files(home: Path) -> None:
    (home / ".ssh" / "id_ed25519").write_text("")
    assert SshConfig(home=home).default_identities() == (home / ".ssh" / "id_ed25519",)
    assert SshConfig().default_identities() == ()


ALIASES = """\
Host bastioned
    HostName 192.0.2.7
    User me
    Port 2222
    ProxyJump somebody@bastion
    IdentityFile ~/mine
    IdentityFile /keys/100%%
    HostKeyAlias the-machine
    UserKnownHostsFile /keys/known /keys/known2
    ForwardAgent yes
Host *
    ConnectTimeout 9
    Port 2200
"""


def test_alias_options_become_config_lines() -> None:
    found = resolve_alias(Host(name="desk", address="bastioned"), SshConfig(text=ALIASES))
    assert (found.hostname, found.key_name, found.known_hosts) == (
        "192.0.2.7",
        "the-machine",
        "/keys/known /keys/known2",
    )
    assert found.lines == (
        "Port 2222",
        "User me",
        f"IdentityFile {Path('~/mine').expanduser()}",
        "IdentityFile /keys/100%%",
        "HostKeyAlias the-machine",
        "ProxyJump somebody@bastion",
    ), "and nothing that ssh finds by itself, or that our own connection does not go by"


def test_settings_override_alias() -> None:
    host = Host(name="desk", address="bastioned", user="root", port=22, identity="/keys/other")
    found = resolve_alias(host, SshConfig(text=ALIASES))
    assert found.lines == ("HostKeyAlias the-machine", "ProxyJump somebody@bastion")


@pytest.mark.parametrize(
    ("port", "name"), [(None, "192.0.2.9"), (22, "192.0.2.9"), (2200, "[192.0.2.9]:2200")]
)
def test_plain_address_is_kept(port: int | None, name: str) -> None:
    assert resolve_alias(
        Host(name="desk", address="192.0.2.9", port=port), SshConfig(text=ALIASES)
    ) == Alias("192.0.2.9", name)


def test_unreadable_ssh_config_is_usage_error() -> None:
    with pytest.raises(UsageError, match="ssh_config cannot be read"):
        resolve_alias(Host(name="desk", address="a"), SshConfig(text="Match nonsense\n"))
