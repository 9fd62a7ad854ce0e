"""The user's ssh_config options for a host: for our own connections, and as lines for ssh(1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any

from paramiko import SSHConfig
from paramiko.ssh_exception import ConfigParseError

from provision.core.errors import UsageError
from provision.core.model import Host
from provision.hosts.host_keys import pin_name
from provision.hosts.ssh.config import SshConfig
from provision.hosts.ssh.names import check_host_name, check_user_name

_UNMATCHED_NAME = "provision.invalid"
"""A name that only the `Host *` blocks of an ssh_config match."""
_OPTIONS = {
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
"""The options that our connections follow, beside HostName and the known_hosts files."""
_IDENTITY_OPTIONS = ("identityfile", "identitiesonly", "identityagent")
"""Options without effect on a host that has an `identity` setting."""


@dataclass(frozen=True)
class Alias:
    """The effective ssh_config options of one address."""

    hostname: str
    key_name: str
    """The name under which ssh looks up the host's key."""
    known_hosts: str | None = None
    """The value of UserKnownHostsFile; None when ssh_config does not set it."""
    lines: tuple[str, ...] = ()
    """The options set for this address but not for every host, as ssh_config lines."""


def parse_config(host: Host, config: SshConfig) -> SSHConfig:
    """Parse the host's settings, then the user's ssh_config; an option's first value wins.

    Raises `UsageError` when ssh_config cannot be parsed.
    """
    try:
        merged = SSHConfig()
        merged.parse(StringIO(_settings_block(host)))
        merged.parse(StringIO(config.text))
    except (ConfigParseError, ValueError) as error:
        raise config_error(host, error) from error
    return merged


def config_error(host: Host, error: Exception) -> UsageError:
    """Return the error to raise for an ssh_config that cannot be parsed."""
    return UsageError(
        "ssh_config cannot be read", where=host.name, why=str(error), fix="ssh -G " + host.address
    )


def resolve_alias(host: Host, config: SshConfig) -> Alias:
    """Return the ssh_config options of the host's address.

    Raises `UsageError` when ssh_config cannot be parsed or names an unsafe host name.
    """
    merged = parse_config(host, config)
    try:
        options, general = merged.lookup(host.address), merged.lookup(_UNMATCHED_NAME)
    except (ConfigParseError, ValueError) as error:
        raise config_error(host, error) from error
    hostname = check_host_name(str(options["hostname"]), where=host.name)
    name = pin_name(hostname, host.port, host.key_alias or options.get("hostkeyalias"))
    specific = {
        key: value
        for key, value in options.items()
        if value != general.get(key) and not (host.identity and key in _IDENTITY_OPTIONS)
    }
    return Alias(hostname, name, options.get("userknownhostsfile"), tuple(_lines(specific)))


def _lines(options: Mapping[str, Any]) -> Iterator[str]:
    for key, word in _OPTIONS.items():
        if (value := options.get(key)) is not None:
            for item in value if isinstance(value, list) else [value]:
                yield f"{word} {item}"


def _settings_block(host: Host) -> str:
    lines = ["Host *"]
    if host.user:
        lines.append(f"User {check_user_name(host.user, where=host.name)}")
    if host.port is not None:
        lines.append(f"Port {host.port}")
    return "\n".join(lines) + "\n"
