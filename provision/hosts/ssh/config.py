"""The part of the user's own SSH set-up that is honoured, read once and handed around as a value."""

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
    """An ssh_config text (Includes expanded), the agent's socket, and the home whose default keys may be tried.

    The empty value honours nothing: what tests use.
    """

    text: str = ""
    agent_socket: str | None = None
    home: Path | None = None

    @classmethod
    def of_user(
        cls, environ: Mapping[str, str], *, system: Path = Path("/etc/ssh/ssh_config")
    ) -> SshConfig:
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


def expand_includes(path: Path, *, base: Path, home: Path, within: str = "", depth: int = 0) -> str:
    """The text of `path` with every Include replaced by what it names; a missing file is empty.

    The parser underneath knows no Include. `within` are the Match criteria of the block that the
    Include stands in: blocks of the included file count only where that one does, and after it that
    one goes on.
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
            block = _both(within, _criteria(keyword, value))
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
    """A Host or Match line as Match criteria; empty when it fits everything."""
    if keyword == "host":
        return "" if value.strip() == "*" else "originalhost " + ",".join(value.split())
    return "" if value.strip().lower() == "all" else value.strip()


def _both(outer: str, inner: str) -> str:
    return " ".join(filter(None, (outer, inner)))


def _header(criteria: str) -> str:
    return f"Match {criteria}" if criteria else "Host *"


def _included(value: str, *, base: Path, home: Path) -> list[Path]:
    found: list[Path] = []
    for word in value.split():
        pattern = (
            word.strip('"').replace("~/", f"{home}/", 1)
            if word.strip('"').startswith("~/")
            else word.strip('"')
        )
        absolute = pattern if pattern.startswith("/") else str(base / pattern)
        found += sorted(Path("/").glob(absolute.lstrip("/")))
    return found
