"""What the user's ssh_config says of a host's address, for whoever hands the host to ssh(1) under another name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any

from paramiko import SSHConfig
from paramiko.ssh_exception import ConfigParseError

from provision.core.errors import UsageError
from provision.core.model import Host
from provision.hosts.known_hosts import pin_name
from provision.hosts.ssh import dial
from provision.hosts.ssh.config import SshConfig

_NOBODY = "provision.invalid"
"""A name of which ssh_config says no more than of every host."""
_HONOURED = {
    "port": "Port",
    "user": "User",
    "identityfile": "IdentityFile",
    "identitiesonly": "IdentitiesOnly",
    "identityagent": "IdentityAgent",
    "hostkeyalias": "HostKeyAlias",
    "proxyjump": "ProxyJump",
    "proxycommand": "ProxyCommand",
    "addressfamily": "AddressFamily",
    "bindaddress": "BindAddress",
    "connecttimeout": "ConnectTimeout",
}
"""The options that our own connections go by, beside HostName and the files of known hosts."""
_IDENTITIES = ("identityfile", "identitiesonly", "identityagent")
"""Those that say nothing to a host with an identity of the settings."""


@dataclass(frozen=True)
class Alias:
    """An address as ssh_config has it."""

    hostname: str
    key_name: str
    """The name under which ssh looks the host's key up."""
    known_hosts: str | None = None
    """The files of known hosts, as UserKnownHostsFile has them; None where it says nothing of
    them."""
    lines: tuple[str, ...] = ()
    """What ssh_config says of this address and not of every host, as its lines."""


def parsed(host: Host, config: SshConfig) -> SSHConfig:
    """The settings of the host, then the user's ssh_config; the first value of an option wins. Raises `UsageError`."""
    try:
        both = SSHConfig()
        both.parse(StringIO(_settings_block(host)))
        both.parse(StringIO(config.text))
    except (ConfigParseError, ValueError) as error:
        raise unreadable(host, error) from error
    return both


def unreadable(host: Host, error: Exception) -> UsageError:
    """The error for an ssh_config that is no such file."""
    return UsageError(
        "ssh_config cannot be read", where=host.name, why=str(error), fix="ssh -G " + host.address
    )


def alias_of(host: Host, config: SshConfig) -> Alias:
    """What ssh_config says of the host's address. Raises `UsageError` for one that cannot be read."""
    both = parsed(host, config)
    try:
        options, every = both.lookup(host.address), both.lookup(_NOBODY)
    except (ConfigParseError, ValueError) as error:
        raise unreadable(host, error) from error
    hostname = dial.check_host_name(str(options["hostname"]), where=host.name)
    name = pin_name(hostname, host.port, host.key_alias or options.get("hostkeyalias"))
    said = {
        key: value
        for key, value in options.items()
        if value != every.get(key) and not (host.identity and key in _IDENTITIES)
    }
    return Alias(hostname, name, options.get("userknownhostsfile"), tuple(_lines(said)))


def _lines(said: Mapping[str, Any]) -> Iterator[str]:
    for key, word in _HONOURED.items():
        if (value := said.get(key)) is not None:
            for each in value if isinstance(value, list) else [value]:
                yield f"{word} {each}"


def _settings_block(host: Host) -> str:
    lines = ["Host *"]
    if host.user:
        lines.append(f"User {dial.check_user(host.user, where=host.name)}")
    if host.port is not None:
        lines.append(f"Port {host.port}")
    return "\n".join(lines) + "\n"
