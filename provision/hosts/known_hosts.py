"""Host keys: what is pinned, what was seen, and what to say when they differ.

Keys are looked up in this order: the host's own `host_key` setting (which overrides everything),
the toolkit's known_hosts file, then the user's and the system's files, which are only read. The
file format is OpenSSH's (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"): hashed names, wildcards, negation
and `@revoked` are understood; `@cert-authority` lines are skipped because host certificates are not
verified here.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import fnmatch
import hashlib
import hmac
import os
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.core.errors import HostKeyMismatch, UsageError
from provision.core.model import Host
from provision.settings.kinds import public_key

_RSA = ("rsa-sha2-512", "rsa-sha2-256")


@dataclass(frozen=True)
class HostKey:
    """A public host key: its algorithm as written in known_hosts ("ssh-ed25519") and its wire-format blob."""

    algorithm: str
    blob: bytes

    @classmethod
    def parse(cls, line: str) -> HostKey:
        """Read "ssh-ed25519 AAAA… comment"; raises `UsageError` for anything that is not a public key line."""
        try:
            return cls(*public_key(line))
        except ValueError as error:
            fix = "ssh-keyscan ADDRESS   # lines look like: ssh-ed25519 AAAA…"
            raise UsageError(
                "not a host key line", why=f"{line!r}: allowed is {error}", fix=fix
            ) from error

    @property
    def line(self) -> str:
        """The key as it stands in a known_hosts file, without a host name."""
        return f"{self.algorithm} {base64.b64encode(self.blob).decode()}"

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -l` prints it, for example "SHA256:47DEQpj8HBSa…"."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def __str__(self) -> str:
        return f"{self.algorithm} {self.fingerprint}"


@dataclass(frozen=True)
class KnownKey:
    """A key that is known for a host, and where that is written (`FILE:LINE` or a setting)."""

    key: HostKey
    source: str
    file: Path | None = None
    revoked: bool = False


@dataclass(frozen=True)
class Pins:
    """All keys known under the names of one host, best source first."""

    host: str
    """What the user calls the thing that is checked (a gateway has a name of its own)."""
    name: str
    """The name it is pinned under: an alias, an address, or [address]:port."""
    known: tuple[KnownKey, ...]
    is_vm: bool = False
    """Pinned under an instance id, by the task that makes VMs."""

    def algorithms(self) -> tuple[str, ...]:
        """Signature algorithms to prefer in the negotiation, so that a host with several keys shows a pinned one."""
        ordered: list[str] = []
        for pin in self.known:
            names = _RSA if pin.key.algorithm == "ssh-rsa" else (pin.key.algorithm,)
            ordered.extend(name for name in names if name not in ordered and not pin.revoked)
        return tuple(ordered)

    def verify(self, seen: HostKey) -> None:
        """Return when `seen` is pinned; otherwise raise `HostKeyMismatch` with what was expected, seen and to do."""
        revoked = [pin for pin in self.known if pin.revoked and pin.key == seen]
        if revoked:
            raise self._error(
                "the host's key is revoked",
                f"marked @revoked in {revoked[0].source}",
                seen,
                "do not connect",
            )
        good = [pin for pin in self.known if not pin.revoked]
        if any(pin.key == seen for pin in good):
            return
        if not good:
            raise self._error(
                "the host's key is unknown",
                f"nothing is pinned for {self.name}",
                seen,
                self._pin_fix(seen),
            )
        expected = "\n          ".join(f"{pin.key} ({pin.source})" for pin in good)
        raise self._error(
            "the host's key has changed", expected, seen, self._change_fix(good, seen)
        )

    def _error(self, what: str, expected: str, seen: HostKey, fix: str) -> HostKeyMismatch:
        return HostKeyMismatch(
            what, where=self.host, why=f"expected: {expected}\nseen:     {seen}", fix=fix
        )

    def _pin_fix(self, seen: HostKey) -> str:
        if self.is_vm:
            return f"invoke vm.create --name {shlex.quote(self.host)}   # reads the keys that the VM published, and pins them"
        return f"compare the fingerprint with the host's, then set provision.hosts.{self.host}.host_key: {seen.line!r}"

    def _change_fix(self, good: Sequence[KnownKey], seen: HostKey) -> str:
        files = sorted({str(pin.file) for pin in good if pin.file})
        if not files:
            return f"only if the host was reinstalled: provision.hosts.{self.host}.host_key: {seen.line!r}"
        commands = (
            f"ssh-keygen -f {shlex.quote(file)} -R {shlex.quote(self.name)}" for file in files
        )
        return "only if the host was reinstalled: " + " && ".join(commands)


def pin_name(address: str, port: int | None, alias: str | None = None) -> str:
    """The name a host's key is pinned under: the alias if there is one, else the address as OpenSSH writes it."""
    if alias:
        return alias
    return address if port in (None, 22) else f"[{address}]:{port}"


class KnownHosts:
    """The toolkit's own known_hosts file, which it writes, and other files, which it only reads."""

    def __init__(self, own: Path, others: Sequence[Path] = ()) -> None:
        self.own = own
        self.others = tuple(others)

    def pins(self, host: Host, name: str, *, files: Sequence[Path] | None = None) -> Pins:
        """What is known about `host` under `name`; `files` replaces the other files where ssh_config says so."""
        if host.host_key:
            setting = f"provision.hosts.{host.name}.host_key"
            return Pins(host.name, name, (KnownKey(HostKey.parse(host.host_key), setting),))
        where = (self.own, *(self.others if files is None else files))
        return Pins(
            host.name,
            name,
            tuple(found for file in where for found in _search(file, name)),
            is_vm=bool(host.key_alias),
        )

    def pin(self, alias: str, key_line: str) -> bool:
        """Append the key under `alias` to the own file, atomically and under a lock; False when it was there already."""
        key = HostKey.parse(key_line)
        _check_alias(alias)
        with self._locked():
            if any(found.key == key and not found.revoked for found in _search(self.own, alias)):
                return False
            self._write("".join([*self._lines(), f"{alias} {key.line}\n"]))
        return True

    def replace(self, alias: str, key_lines: Sequence[str]) -> bool:
        """Put these keys in the place of those under exactly `alias`; False, and nothing is done, when all of them were there already."""
        keys = [HostKey.parse(line) for line in key_lines]
        _check_alias(alias)
        with self._locked():
            known = [found.key for found in _search(self.own, alias) if not found.revoked]
            if all(key in known for key in keys):
                return False
            kept = [line for line in self._lines() if line.split(maxsplit=1)[:1] != [alias]]
            self._write("".join([*kept, *(f"{alias} {key.line}\n" for key in keys)]))
        return True

    def forget(self, alias: str) -> int:
        """Remove every key pinned under exactly `alias` from the own file; returns how many there were."""
        with self._locked():
            lines = self._lines()
            kept = [line for line in lines if line.split(maxsplit=1)[:1] != [alias]]
            if len(kept) < len(lines):
                self._write("".join(kept))
        return len(lines) - len(kept)

    def _lines(self) -> list[str]:
        """The own file, line by line, each with an end."""
        lines = self.own.read_text(encoding="utf-8").splitlines() if self.own.exists() else []
        return [f"{line}\n" for line in lines]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.own.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.own.with_name(self.own.name + ".lock").open("a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, text: str) -> None:
        handle, name = tempfile.mkstemp(dir=self.own.parent, prefix=self.own.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.own)
        except BaseException:
            Path(name).unlink()
            raise


def _check_alias(alias: str) -> None:
    if not alias or any(char.isspace() or char in ",*?!|#@" for char in alias):
        raise UsageError(
            "a host key cannot be pinned under this name",
            why=repr(alias),
            fix="use the instance id or [address]:port",
        )


def _search(file: Path, name: str) -> Iterator[KnownKey]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, start=1):
        marker, names, key = _entry(line)
        if names and _names_match(names, name):
            with contextlib.suppress(UsageError):  # another kind of key, or half of one: no pin
                yield KnownKey(
                    HostKey.parse(key), f"{file}:{number}", file, revoked=marker == "@revoked"
                )


def _entry(line: str) -> tuple[str, str, str]:
    """Marker, names and key of a line; names are empty where it says nothing that counts here."""
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
    # known_hosts knows * and ? only: [address]:port is not a character class
    return pattern.replace("[", "[[]")
