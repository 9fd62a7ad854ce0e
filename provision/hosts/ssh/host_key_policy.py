"""Checks the server's key of every connection against the pinned keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paramiko import MissingHostKeyPolicy, PKey, SSHClient

from provision.hosts.host_keys import HostKey, Pins
from provision.hosts.ssh.config import SshConfig


class PinnedKeyPolicy(MissingHostKeyPolicy):
    """Accepts a pinned key and raises `HostKeyMismatch` for any other, before authentication.

    paramiko calls it for every key, because the client's own key stores stay empty.
    """

    def __init__(self, pins: Pins) -> None:
        self.pins = pins

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        """Verify the key that the server presented; raises `HostKeyMismatch`."""
        del client, hostname
        self.pins.verify(HostKey(key.get_name(), key.asbytes()))


def known_hosts_files(options: Mapping[str, Any], config: SshConfig) -> tuple[Path, ...] | None:
    """Return the known_hosts files that ssh_config sets for a host; None when it sets none."""
    user, system = options.get("userknownhostsfile"), options.get("globalknownhostsfile")
    if not user and not system:
        return None
    defaults = config.default_known_hosts()
    chosen = _paths(user) if user else defaults[:2]
    return (*chosen, *(_paths(system) if system else defaults[2:]))


def _paths(words: str) -> tuple[Path, ...]:
    return tuple(Path(word).expanduser() for word in words.split() if word.lower() != "none")
