"""Which keys are offered to a server, and in which order: ssh(1)'s, without ever asking anything.

With an identity (settings) only that key is offered, as with `IdentitiesOnly yes`. Otherwise: agent
keys that the configuration names, the agent's other keys (unless IdentitiesOnly), key files that
the configuration names, and the default files when it names none. A key that needs a passphrase is
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
    """The SSH agent that listens on `path`; without one, or when it does not answer, it has no keys."""

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
        """Hang up; safe to call twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@dataclass
class Candidates:
    """The keys to offer, in order, and why others that were named are not among them."""

    keys: list[tuple[PKey, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, key: PKey, name: str) -> None:
        """Append a key unless it is there already."""
        if all(key.asbytes() != other.asbytes() for other, _ in self.keys):
            self.keys.append((key, name))


@functools.lru_cache(maxsize=64)
def _load(path: Path, _mtime_ns: int) -> PKey:
    return PKey.from_path(path)


def load_key(path: Path) -> PKey:
    """The private key in `path` (read once as long as the file does not change); raises one of many exceptions."""
    return _load(path, path.stat().st_mtime_ns)


def candidates(
    identity: str | None,
    options: Mapping[str, Any],
    config: SshConfig,
    agent_keys: Sequence[AgentKey],
) -> Candidates:
    """Decide what to offer. `options` is what ssh_config says of the host (keys in lower case)."""
    found = Candidates()
    named = [Path(identity).expanduser()] if identity else _configured(options)
    only = bool(identity) or str(options.get("identitiesonly", "no")).lower() == "yes"
    paths = named or list(config.default_identities())
    in_agent = {path: key for path in paths if (key := _held_by_agent(path, agent_keys))}
    for path, agent_key in in_agent.items():
        found.add(agent_key, f"{path} (agent)")
    if not only:
        for agent_key in agent_keys:
            found.add(agent_key, f"{agent_key.comment or 'unnamed'} (agent)")
    for path in paths:
        if path not in in_agent:
            _add_file(found, path, must_exist=bool(identity))
    return found


def _configured(options: Mapping[str, Any]) -> list[Path]:
    return [
        Path(name).expanduser()
        for name in options.get("identityfile") or []
        if name.lower() != "none"
    ]


def _held_by_agent(path: Path, agent_keys: Sequence[AgentKey]) -> AgentKey | None:
    public = path if path.suffix == ".pub" else path.with_name(path.name + ".pub")
    with contextlib.suppress(OSError, ValueError, IndexError):
        blob = public.read_text(encoding="utf-8").split()[1]
        return next((key for key in agent_keys if key.get_base64() == blob), None)
    return None


def _add_file(found: Candidates, path: Path, *, must_exist: bool) -> None:
    if path.suffix == ".pub":
        found.skipped.append(f"{path}: a public key whose private half is not in the agent")
        return
    if not path.exists() and not must_exist:
        return
    try:
        found.add(load_key(path), str(path))
    except _LOAD_ERRORS as error:
        text = str(error) or type(error).__name__
        needs_agent = (
            "passphrase" in text.lower()
            or "password" in text.lower()
            or "encrypted" in text.lower()
        )
        found.skipped.append(
            f"{path}: needs a passphrase; run ssh-add {path}" if needs_agent else f"{path}: {text}"
        )


class Strategy(AuthStrategy):
    """Fabric's hook for authentication (`authentication.strategy_class`), offering `candidates` one by one."""

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
        self.candidates = candidates(identity, options, config, self.agent.get_keys())

    def get_sources(self) -> Iterator[AuthSource]:
        """One source per key, as long as the server listens."""
        for key, _ in self.candidates.keys:
            if self._transport is None or self._transport.is_active():
                yield InMemoryPrivateKey(self.username, key)

    def authenticate(self, transport: Transport) -> Any:
        """Offer the keys; with a single one, the first channel is asked for in the same breath."""
        self._transport = transport
        if isinstance(transport, Wire) and len(self.candidates.keys) != 1:
            transport.early = None
        try:
            return super().authenticate(transport)
        finally:
            self.agent.close()


def _agent_path(options: Mapping[str, Any], config: SshConfig) -> str | None:
    named = options.get("identityagent")
    if named is None or str(named).upper() == "SSH_AUTH_SOCK":
        return config.agent_socket
    return None if str(named).lower() == "none" else str(Path(str(named)).expanduser())
