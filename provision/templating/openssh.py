"""The ssh_config fragment for the hosts of the inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.core.model import Host
from provision.templating.environment import render

SOCKET_PATH_BYTES = 103
"""Longest path of a Unix socket on macOS; Linux takes 107. Above it ssh ends with an error instead
of connecting without a shared connection."""
SOCKET_NAME_BYTES = len("/") + 40 + len(".0123456789abcdef")
"""What ssh appends to the folder for `%C`: a SHA-1 in hexadecimal, and a random suffix while it
makes the socket."""


def ssh_config(
    hosts: Sequence[Host],
    *,
    known_hosts: str,
    control_dirs: Sequence[str],
    aliases: Mapping[str, Mapping[str, object]] | None = None,
    project_dir: Path | None = None,
) -> str:
    """An ssh_config fragment for `Include`: one block per host, its key pinned in `known_hosts`.

    `aliases` maps a host's name to the values of the user's own ssh_config for its address:
    `hostname`, `known_hosts`, `lines`. A host whose key is neither in the settings nor a VM's is
    looked up in the user's own files as well. Connections are shared through sockets in the first
    of `control_dirs` whose path is short enough for one; where none is, they are not shared.
    """
    values = {
        "hosts": hosts,
        "aliases": aliases or {},
        "known_hosts": known_hosts,
        "control_dir": next(filter(_is_short_enough, control_dirs), None),
    }
    return render("ssh_config.j2", values, project_dir=project_dir)


def _is_short_enough(folder: str) -> bool:
    size = len(folder.encode("utf-8", "surrogateescape"))
    return size <= SOCKET_PATH_BYTES - SOCKET_NAME_BYTES
