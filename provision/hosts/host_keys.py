"""Host keys as values: parse and print one, and verify a server's key against the known ones."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.core.errors import HostKeyMismatch, UsageError
from provision.settings.validators import public_key

_RSA = ("rsa-sha2-512", "rsa-sha2-256")


@dataclass(frozen=True)
class HostKey:
    """A public host key: its algorithm ("ssh-ed25519") and its blob in SSH's wire format."""

    algorithm: str
    blob: bytes

    @classmethod
    def parse(cls, line: str) -> HostKey:
        """Parse "ssh-ed25519 AAAA… comment"; raises `UsageError` for an invalid public key line."""
        try:
            return cls(*public_key(line))
        except ValueError as error:
            fix = "ssh-keyscan ADDRESS   # lines look like: ssh-ed25519 AAAA…"
            raise UsageError(
                "not a host key line", why=f"{line!r}: allowed is {error}", fix=fix
            ) from error

    @property
    def line(self) -> str:
        """The key as in a known_hosts file, without a host name."""
        return f"{self.algorithm} {base64.b64encode(self.blob).decode()}"

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -l` prints it: "SHA256:47DEQpj8HBSa…"."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def __str__(self) -> str:
        return f"{self.algorithm} {self.fingerprint}"


@dataclass(frozen=True)
class KnownKey:
    """A known key of a host, and its source: `FILE:LINE` or a setting."""

    key: HostKey
    source: str
    file: Path | None = None
    revoked: bool = False


@dataclass(frozen=True)
class Pins:
    """All known keys of one host, in the order of the look-up."""

    host: str
    """The host's name in the settings; a gateway's address."""
    name: str
    """The name in known_hosts: an alias, an address, or [address]:port."""
    known: tuple[KnownKey, ...]
    is_vm: bool = False
    """True for a VM that `vm.create` created: its key is pinned under the instance id."""

    def algorithms(self) -> tuple[str, ...]:
        """Return the signature algorithms to negotiate first: those of the pinned keys."""
        ordered: list[str] = []
        for pin in self.known:
            names = _RSA if pin.key.algorithm == "ssh-rsa" else (pin.key.algorithm,)
            ordered.extend(name for name in names if name not in ordered and not pin.revoked)
        return tuple(ordered)

    def verify(self, seen: HostKey) -> None:
        """Raise `HostKeyMismatch` unless the server's key `seen` is pinned and not revoked."""
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
                f"no key is pinned for {self.name}",
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
            return (
                f"invoke vm.create --name {shlex.quote(self.host)}"
                "   # reads the keys that the VM published, and pins them"
            )
        return (
            "compare the fingerprint with the host's, "
            f"then set provision.hosts.{self.host}.host_key: {seen.line!r}"
        )

    def _change_fix(self, good: Sequence[KnownKey], seen: HostKey) -> str:
        files = sorted({str(pin.file) for pin in good if pin.file})
        if not files:
            setting = f"provision.hosts.{self.host}.host_key: {seen.line!r}"
            return f"only if the host was reinstalled: {setting}"
        commands = (
            f"ssh-keygen -f {shlex.quote(file)} -R {shlex.quote(self.name)}" for file in files
        )
        return "only if the host was reinstalled: " + " && ".join(commands)


def pin_name(address: str, port: int | None, alias: str | None = None) -> str:
    """Return the name of a host in known_hosts: the alias, or the address as OpenSSH writes it."""
    if alias:
        return alias
    return address if port in (None, 22) else f"[{address}]:{port}"
