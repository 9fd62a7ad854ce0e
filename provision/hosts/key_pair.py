"""The toolkit's own SSH key pair; each project has one."""

from __future__ import annotations

import contextlib
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from provision.core.errors import UsageError
from provision.core.files import file_lock, write_atomically

_COMMENT = "provision"


def ensure_key_pair(path: Path) -> str:
    """Return the public key's line of the ed25519 key pair in `path` and `path`.pub.

    A pair that is absent is created, the private key in OpenSSH's format.

    Creation is locked and atomic: two runs at once get the same key. An existing file is never
    overwritten. Raises `UsageError` when it holds anything but a private key without passphrase.
    """
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    with file_lock(path.with_name(path.name + ".lock")):
        if not path.exists():
            private = Ed25519PrivateKey.generate().private_bytes(
                Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
            )
            write_atomically(path, private, durable=True)
        return _read(path)


def _read(path: Path) -> str:
    """Return the public line; restore permissions and the public file where necessary."""
    data = path.read_bytes()
    try:
        key = load_ssh_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(
            "not a private key without passphrase",
            where=str(path),
            why=str(error),
            fix=f"mv {path} {path}.old",
        ) from error
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)  # ssh refuses a key that others can read
    public_key = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    line = f"{public_key.decode()} {_COMMENT}"
    public = path.with_name(path.name + ".pub")
    if not public.exists() or public.read_text(encoding="utf-8").strip() != line:
        write_atomically(public, f"{line}\n", durable=True)
    return line
