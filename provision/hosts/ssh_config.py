"""The part of the user's own SSH set-up that is honoured, read once and handed around as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.errors import UsageError

_MAX_DEPTH = 16
"""How deep Include may nest, as in OpenSSH's readconf.c."""


@dataclass(frozen=True)
class SshConfig:
    """An ssh_config text (Includes expanded), the agent's socket, and the home whose default keys may be tried.

    The empty value honours nothing: what tests use.
    """

    text: str = ""
    agent_socket: str | None = None
    home: Path | None = None

    @classmethod
    def of_user(cls, environ: Mapping[str, str], *, system: Path = Path("/etc/ssh/ssh_config")) -> SshConfig:
        """The user's configuration before the system's, as ssh(1) reads them."""
        home = Path(environ.get("HOME") or "~").expanduser()
        user = expand_includes(home / ".ssh" / "config", base=home / ".ssh", home=home)
        text = "\n".join((user, "Host *", expand_includes(system, base=system.parent, home=home)))
        return cls(text=text, agent_socket=environ.get("SSH_AUTH_SOCK") or None, home=home)

    def default_identities(self) -> tuple[Path, ...]:
        """The key files that are tried when nothing names one, in ssh(1)'s order; only those that exist."""
        if self.home is None:
            return ()
        candidates = (self.home / ".ssh" / f"id_{kind}" for kind in ("rsa", "ecdsa", "ed25519"))
        return tuple(path for path in candidates if path.is_file())

    def default_known_hosts(self) -> tuple[Path, ...]:
        """The known_hosts files that ssh(1) reads when nothing names one."""
        if self.home is None:
            return ()
        user = (self.home / ".ssh" / name for name in ("known_hosts", "known_hosts2"))
        return (*user, Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))


def expand_includes(path: Path, *, base: Path, home: Path, depth: int = 0) -> str:
    """The text of `path` with every Include replaced by what it names; a missing file is empty.

    After an Include the block it stood in is opened again, so that a `Host` line at the end of the included file
    does not swallow what follows. (The parser underneath knows no Include.)
    """
    if depth > _MAX_DEPTH:
        raise UsageError("ssh_config includes itself", where=str(path), fix=f"grep -i include {path}")
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    block, expanded = "Host *", []
    for line in lines:
        keyword, _, value = line.strip().partition(" ")
        if keyword.lower() in ("host", "match"):
            block = line
        if keyword.lower() != "include":
            expanded.append(line)
            continue
        for file in _included(value, base=base, home=home):
            expanded += [expand_includes(file, base=base, home=home, depth=depth + 1), block]
    return "\n".join(expanded)


def _included(value: str, *, base: Path, home: Path) -> list[Path]:
    found: list[Path] = []
    for word in value.split():
        pattern = word.strip('"').replace("~/", f"{home}/", 1) if word.strip('"').startswith("~/") else word.strip('"')
        absolute = pattern if pattern.startswith("/") else str(base / pattern)
        found += sorted(Path("/").glob(absolute.lstrip("/")))
    return found
