"""The system's `ssh` program: its arguments for a host, and what its failure means."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from provision.core.errors import HostKeyMismatch, Unreachable
from provision.core.model import Host
from provision.hosts.host_keys import pin_name
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh import iap
from provision.hosts.ssh.dial import KEEPALIVE_S
from provision.hosts.ssh.names import check_host_name, check_user_name

SSH_FAILED = 255
"""ssh(1), EXIT STATUS: that of the remote command, or 255 if an error occurred."""
_CONNECT_S = 10
_REASON_LINES = 5
_VERIFICATION_FAILED = "Host key verification failed"


def ssh_arguments(
    host: Host,
    *,
    pins: Path | None,
    environ: Mapping[str, str],
    terminal: bool = True,
    remote: str | None = None,
) -> list[str]:
    """Return the arguments of `ssh` that lead to a host.

    `pins` is a known_hosts file with the host's pinned keys; `remote` is the command to run. Raises
    `UsageError` for an unsafe host or user name.
    """
    options = [
        "StrictHostKeyChecking=yes",
        "UpdateHostKeys=no",
        f"ServerAliveInterval={KEEPALIVE_S}",
    ]
    if pins:
        alias = pin_name(host.address, host.port, host.key_alias)
        options += [
            f"UserKnownHostsFile={_quoted_path(pins)}",
            "GlobalKnownHostsFile=none",
            f"HostKeyAlias={alias}",
            "CheckHostIP=no",
        ]
    if host.proxy:
        options.append(f"ProxyCommand={host.proxy_command}")
    if host.identity:
        identity = _quoted_path(Path(host.identity).expanduser())
        options += [f"IdentityFile={identity}", "IdentitiesOnly=yes"]
    words = ["-t" if terminal else "-T", *_config_file(environ)]
    words += [] if host.port is None else ["-p", str(host.port)]
    words += ["-l", check_user_name(host.user, where=host.name)] if host.user else []
    words += [word for option in options for word in ("-o", option)]
    words += ["--", check_host_name(host.address, where=host.name)]
    return words if remote is None else [*words, remote]


def pin_options(host: Host, files: Sequence[Path]) -> list[str]:
    """Return the ssh options that accept only the host's keys in `files`, without a prompt."""
    alias = [f"HostKeyAlias={host.key_alias}", "CheckHostIP=no"] if host.key_alias else []
    known = "UserKnownHostsFile=" + " ".join(_quoted_path(file) for file in files)
    return [known, *alias, "StrictHostKeyChecking=yes", "UpdateHostKeys=no"]


@contextlib.contextmanager
def pinned_file(host: Host, known_hosts: KnownHosts) -> Iterator[Path | None]:
    """Provide a temporary known_hosts file with the keys pinned for `host`.

    Yields None when no key is pinned: then ssh's own files apply.
    """
    name = pin_name(host.address, host.port, host.key_alias)
    pins = known_hosts.pins(host, name).known
    if not any(not pin.revoked for pin in pins):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        path = Path(folder) / "known_hosts"
        path.write_text(
            "".join(f"{'@revoked ' if pin.revoked else ''}{name} {pin.key.line}\n" for pin in pins),
            encoding="utf-8",
        )
        yield path


def check_reachable(
    program: str, host: Host, pins: Path | None, own: Path, environ: Mapping[str, str]
) -> None:
    """Run `true` on the host without any prompt; raise if `ssh` cannot reach it.

    Raises `HostKeyMismatch` when the host's key is not the pinned one, `Unreachable` otherwise. The
    error's command names `own`, the toolkit's known_hosts file: `pins` is temporary.
    """
    words, lasting_words = (
        ssh_arguments(host, pins=file, environ=environ, terminal=False, remote="true")
        for file in (pins, own if host.key_alias else None)
    )
    fix = shlex.join([program, "-v", *lasting_words])
    message, reached = _try_to_connect(program, words, environ)
    if reached:
        return
    if _VERIFICATION_FAILED in message:
        raise HostKeyMismatch(
            "the host's key is not the pinned one",
            where=host.name,
            why=_without_frame(message, str(pins)),
            fix=fix,
        )
    why = "\n".join(message.splitlines()[-_REASON_LINES:])
    why = why or f"{program} ended with status {SSH_FAILED}"
    if host.proxy:
        raise iap.tunnel_error(host, why)
    raise Unreachable("ssh could not reach the host", where=host.name, why=why, fix=fix)


def _try_to_connect(
    program: str, words: Sequence[str], environ: Mapping[str, str]
) -> tuple[str, bool]:
    """Return what ssh wrote on standard error, and whether it reached the host."""
    timeout_s = 4 * _CONNECT_S
    try:
        done = subprocess.run(
            [program, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", *words],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer after {timeout_s} s", False
    return done.stderr.decode("utf-8", "replace").strip(), done.returncode != SSH_FAILED


def _without_frame(message: str, deleted: str) -> str:
    """Drop ssh's frame of at-signs, and its advice about a file that is deleted by now."""
    return "\n".join(
        line
        for line in message.splitlines()
        if line.strip() and not line.startswith("@") and deleted not in line
    )


def _quoted_path(path: Path) -> str:
    """Quote a path for ssh_config, which splits at spaces and expands percent signs."""
    return '"' + str(path).replace("%", "%%").replace('"', '\\"') + '"'


def _config_file(environ: Mapping[str, str]) -> list[str]:
    """Return `-F FILE` when HOME is not the account's home, which is where ssh looks for ~/.ssh."""
    home = environ.get("HOME")
    if not home or Path(home) == Path(pwd.getpwuid(os.getuid()).pw_dir):
        return []
    config = Path(home) / ".ssh" / "config"
    return ["-F", str(config) if config.is_file() else "none"]
