"""Which keys are offered to a server and in which order: as ssh(1) does, but without any prompt.

With an identity (settings), only that key is offered, as with `IdentitiesOnly yes`. Otherwise, in
this order: agent keys that ssh_config names; the agent's other keys (unless IdentitiesOnly); key
files that ssh_config names; the default key files when it names none. A key with a passphrase is
used through the agent or not at all.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paramiko import PKey, Transport
from paramiko.agent import AgentKey, AgentSSH
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey
from paramiko.ssh_exception import SSHException

from provision.hosts.ssh.config import SshConfig
from provision.hosts.ssh.wire import Wire

_LOAD_ERRORS = (OSError, ValueError, TypeError, SSHException)


class Agent(AgentSSH):
    """The SSH agent that listens on `path`; it has no keys when it does not answer."""

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self._socket: socket.socket | None = None
        if not path:
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(10)
        try:
            self._socket.connect(path)
            self._connect(self._socket)  # type: ignore[attr-defined]
        except (OSError, SSHException):
            self.close()

    def close(self) -> None:
        """Close the connection to the agent; a second call does nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@dataclass
class OfferedKeys:
    """The keys to offer, in order and with names for messages, and why others are left out."""

    keys: list[tuple[PKey, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, key: PKey, name: str) -> None:
        """Append a key unless it is in the list already."""
        if all(key.asbytes() != other.asbytes() for other, _ in self.keys):
            self.keys.append((key, name))

    def add_file(self, path: Path, *, must_exist: bool) -> None:
        """Append the private key in a file, or the reason why it cannot be used."""
        if path.suffix == ".pub":
            self.skipped.append(f"{path}: a public key whose private half is not in the agent")
            return
        if not path.exists() and not must_exist:
            return
        try:
            self.add(load_key(path), str(path))
        except _LOAD_ERRORS as error:
            self.skipped.append(f"{path}: {_load_failure(path, error)}")


@functools.lru_cache(maxsize=64)
def _load(path: Path, _mtime_ns: int) -> PKey:
    return PKey.from_path(path)


def load_key(path: Path) -> PKey:
    """Return the private key in `path`; an unchanged file is read once.

    Raises OSError, ValueError, TypeError or SSHException when the key cannot be read.
    """
    return _load(path, path.stat().st_mtime_ns)


def _load_failure(path: Path, error: Exception) -> str:
    text = str(error) or type(error).__name__
    if any(word in text.lower() for word in ("passphrase", "password", "encrypted")):
        return f"needs a passphrase; run ssh-add {path}"
    return text


def choose_keys(
    identity: str | None,
    options: Mapping[str, Any],
    config: SshConfig,
    agent_keys: Sequence[AgentKey],
) -> OfferedKeys:
    """Return the keys to offer to one host, in order.

    `identity` is the host's setting; `options` are the host's ssh_config options, keys in lower
    case.
    """
    offered = OfferedKeys()
    configured = [Path(identity).expanduser()] if identity else _configured_files(options)
    only = bool(identity) or str(options.get("identitiesonly", "no")).lower() == "yes"
    paths = configured or list(config.default_identities())
    in_agent = {path: key for path in paths if (key := _agent_key_of(path, agent_keys))}
    for path, agent_key in in_agent.items():
        offered.add(agent_key, f"{path} (agent)")
    if not only:
        for agent_key in agent_keys:
            offered.add(agent_key, f"{agent_key.comment or 'unnamed'} (agent)")
    for path in paths:
        if path not in in_agent:
            offered.add_file(path, must_exist=bool(identity))
    return offered


def _configured_files(options: Mapping[str, Any]) -> list[Path]:
    return [
        Path(name).expanduser()
        for name in options.get("identityfile") or []
        if name.lower() != "none"
    ]


def _agent_key_of(path: Path, agent_keys: Sequence[AgentKey]) -> AgentKey | None:
    """Return the agent's key that belongs to a key file, compared by the public half."""
    public = path if path.suffix == ".pub" else path.with_name(path.name + ".pub")
    with contextlib.suppress(OSError, ValueError, IndexError):
        blob = public.read_text(encoding="utf-8").split()[1]
        return next((key for key in agent_keys if key.get_base64() == blob), None)
    return None


class KeyStrategy(AuthStrategy):
    """Fabric's hook for authentication (`authentication.strategy_class`): offers key after key."""

    def __init__(
        self,
        *,
        identity: str | None,
        config: SshConfig,
        ssh_config: Mapping[str, Any],
        username: str,
        **_: Any,
    ) -> None:
        super().__init__(ssh_config=ssh_config)  # type: ignore[arg-type]
        self.username = username
        self._transport: Transport | None = None
        options = dict(ssh_config)
        self.agent = Agent(_agent_path(options, config))
        self.offered = choose_keys(identity, options, config, self.agent.get_keys())

    def get_sources(self) -> Iterator[AuthSource]:
        """Yield one source per key while the connection is up."""
        for key, _ in self.offered.keys:
            if self._transport is None or self._transport.is_active():
                yield InMemoryPrivateKey(self.username, key)

    def authenticate(self, transport: Transport) -> Any:
        """Offer the keys; `Wire` requests its first channel early only when there is one key."""
        self._transport = transport
        if isinstance(transport, Wire) and len(self.offered.keys) != 1:
            transport.early_target = None
        try:
            return super().authenticate(transport)
        finally:
            self.agent.close()


def _agent_path(options: Mapping[str, Any], config: SshConfig) -> str | None:
    configured = options.get("identityagent")
    if configured is None or str(configured).upper() == "SSH_AUTH_SOCK":
        return config.agent_socket
    return None if str(configured).lower() == "none" else str(Path(str(configured)).expanduser())
