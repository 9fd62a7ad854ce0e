"""The known_hosts files: look up the keys of a host, and pin new ones.

Order of the look-up: the host's own `host_key` setting, which overrides all files; the toolkit's
known_hosts file; the user's and the system's files, which are never written. The file format is
OpenSSH's (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT") with hashed names, wildcards, negation and
`@revoked`. `@cert-authority` lines are skipped: host certificates are not supported.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from provision.core.errors import UsageError
from provision.core.files import file_lock, write_atomically
from provision.core.model import Host
from provision.hosts.host_keys import HostKey, KnownKey, Pins


class KnownHosts:
    """The toolkit's own known_hosts file, and other files, which are never written."""

    def __init__(self, own: Path, others: Sequence[Path] = ()) -> None:
        self.own = own
        self.others = tuple(others)

    def pins(self, host: Host, name: str, *, files: Sequence[Path] | None = None) -> Pins:
        """Return the known keys of `host` under `name`.

        `files` replaces the other files, where ssh_config sets them. Raises `UsageError` for an
        invalid `host_key` setting.
        """
        if host.host_key:
            setting = f"provision.hosts.{host.name}.host_key"
            return Pins(host.name, name, (KnownKey(HostKey.parse(host.host_key), setting),))
        searched = (self.own, *(self.others if files is None else files))
        known = tuple(key for file in searched for key in _read_keys(file, name))
        return Pins(host.name, name, known, is_vm=bool(host.key_alias))

    def pin(self, alias: str, key_line: str) -> bool:
        """Add a key under `alias` to the own file; return False when it is pinned already.

        Raises `UsageError` for an invalid alias or key line.
        """
        key = HostKey.parse(key_line)
        _check_alias(alias)
        with self._locked():
            if key in self._pinned(alias):
                return False
            self._write([*self._lines(), f"{alias} {key.line}\n"])
        return True

    def replace(self, alias: str, key_lines: Sequence[str]) -> bool:
        """Replace the keys under exactly `alias`; return False when all are pinned already.

        Raises `UsageError` for an invalid alias or key line.
        """
        keys = [HostKey.parse(line) for line in key_lines]
        _check_alias(alias)
        with self._locked():
            pinned = self._pinned(alias)
            if all(key in pinned for key in keys):
                return False
            added = [f"{alias} {key.line}\n" for key in keys]
            self._write([*_lines_of_others(self._lines(), alias), *added])
        return True

    def forget(self, alias: str) -> int:
        """Remove the keys under exactly `alias` from the own file; return their number."""
        with self._locked():
            lines = self._lines()
            kept = _lines_of_others(lines, alias)
            if len(kept) < len(lines):
                self._write(kept)
        return len(lines) - len(kept)

    def _pinned(self, alias: str) -> list[HostKey]:
        return [known.key for known in _read_keys(self.own, alias) if not known.revoked]

    def _lines(self) -> list[str]:
        """Return the lines of the own file, each with its line end."""
        lines = self.own.read_text(encoding="utf-8").splitlines() if self.own.exists() else []
        return [f"{line}\n" for line in lines]

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return file_lock(self.own.with_name(self.own.name + ".lock"))

    def _write(self, lines: Iterable[str]) -> None:
        write_atomically(self.own, "".join(lines), durable=True)


def _lines_of_others(lines: Iterable[str], alias: str) -> list[str]:
    return [line for line in lines if line.split(maxsplit=1)[:1] != [alias]]


def _check_alias(alias: str) -> None:
    if not alias or any(char.isspace() or char in ",*?!|#@" for char in alias):
        raise UsageError(
            "a host key cannot be pinned under this name",
            why=repr(alias),
            fix="use the instance id or [address]:port",
        )


def _read_keys(file: Path, name: str) -> Iterator[KnownKey]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, start=1):
        marker, names, key = _entry(line)
        if names and _names_match(names, name):
            with contextlib.suppress(UsageError):  # an unknown kind of key, or a truncated one
                yield KnownKey(
                    HostKey.parse(key), f"{file}:{number}", file, revoked=marker == "@revoked"
                )


def _entry(line: str) -> tuple[str, str, str]:
    """Split a line into marker, names and key; names are empty for a line to skip."""
    words = line.split()
    if not words or words[0].startswith("#"):
        return "", "", ""
    marker = words.pop(0) if words[0].startswith("@") else ""
    if marker not in ("", "@revoked") or len(words) < 3:
        return "", "", ""
    return marker, words[0], " ".join(words[1:3])


def _names_match(names: str, wanted: str) -> bool:
    if names.startswith("|1|"):
        return _hash_matches(names, wanted)
    return _patterns_match(names.split(","), wanted.lower())


def _hash_matches(entry: str, wanted: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in entry.split("|")[2:4])
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(hmac.new(salt, wanted.encode(), hashlib.sha1).digest(), digest)


def _patterns_match(patterns: Iterable[str], wanted: str) -> bool:
    matched = False
    for pattern in patterns:
        negated = pattern.startswith("!")
        if fnmatch.fnmatchcase(wanted, _literal_brackets(pattern.lstrip("!").lower())):
            if negated:
                return False
            matched = True
    return matched


def _literal_brackets(pattern: str) -> str:
    # known_hosts has no wildcards but * and ?: [address]:port is not a character class
    return pattern.replace("[", "[[]")
