"""The user's own SSH configuration, as far as it is followed: a value that is read once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.core.errors import UsageError

_SETTING = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")
_MAX_DEPTH = 16
"""How deep Include may nest, as in OpenSSH's readconf.c."""


@dataclass(frozen=True)
class SshConfig:
    """An ssh_config text without Includes, the agent's socket, and the home with the default keys.

    The default value is an empty configuration, without agent and default keys; tests use it.
    """

    text: str = ""
    agent_socket: str | None = None
    home: Path | None = None

    @classmethod
    def of_user(
        cls, environ: Mapping[str, str], *, system: Path = Path("/etc/ssh/ssh_config")
    ) -> SshConfig:
        """Read the user's configuration, then the system's, in ssh(1)'s order."""
        home = Path(environ.get("HOME") or "~").expanduser()
        user = expand_includes(home / ".ssh" / "config", base=home / ".ssh", home=home)
        text = "\n".join((user, "Host *", expand_includes(system, base=system.parent, home=home)))
        return cls(text=text, agent_socket=environ.get("SSH_AUTH_SOCK") or None, home=home)

    def default_identities(self) -> tuple[Path, ...]:
        """Return the existing key files that ssh(1) tries by default, in its order."""
        if self.home is None:
            return ()
        candidates = (self.home / ".ssh" / f"id_{kind}" for kind in ("rsa", "ecdsa", "ed25519"))
        return tuple(path for path in candidates if path.is_file())

    def default_known_hosts(self) -> tuple[Path, ...]:
        """Return the known_hosts files that ssh(1) reads by default."""
        if self.home is None:
            return ()
        user = (self.home / ".ssh" / name for name in ("known_hosts", "known_hosts2"))
        return (*user, Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))


def expand_includes(path: Path, *, base: Path, home: Path, within: str = "", depth: int = 0) -> str:
    """Return the text of `path` with every Include replaced by the included files.

    paramiko's parser does not support Include. A missing file counts as empty. `within` holds the
    Match criteria of the block that contains the Include: they apply to every block of the included
    file, too, and the block continues after the Include. Raises `UsageError` when a file includes
    itself.
    """
    if depth > _MAX_DEPTH:
        raise UsageError(
            "ssh_config includes itself", where=str(path), fix=f"grep -i include {path}"
        )
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    block, expanded = within, []
    for line in lines:
        setting = _SETTING.match(line.strip())
        keyword, value = (setting[1].lower(), setting[2]) if setting else ("", "")
        if keyword in ("host", "match"):
            block = _combined(within, _criteria(keyword, value))
            expanded.append(_header(block) if within else line)
        elif keyword == "include":
            for file in _included(value, base=base, home=home):
                expanded += [
                    expand_includes(file, base=base, home=home, within=block, depth=depth + 1),
                    _header(block),
                ]
        else:
            expanded.append(line)
    return "\n".join(expanded)


def _criteria(keyword: str, value: str) -> str:
    """Turn a Host or Match line into Match criteria; empty when it matches every host."""
    if keyword == "host":
        return "" if value.strip() == "*" else "originalhost " + ",".join(value.split())
    return "" if value.strip().lower() == "all" else value.strip()


def _combined(outer: str, inner: str) -> str:
    return " ".join(filter(None, (outer, inner)))


def _header(criteria: str) -> str:
    return f"Match {criteria}" if criteria else "Host *"


def _included(value: str, *, base: Path, home: Path) -> list[Path]:
    files: list[Path] = []
    for word in value.split():
        pattern = word.strip('"')
        if pattern.startswith("~/"):
            pattern = f"{home}/{pattern[2:]}"
        absolute = pattern if pattern.startswith("/") else str(base / pattern)
        files += sorted(Path("/").glob(absolute.lstrip("/")))
    return files
