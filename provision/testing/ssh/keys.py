"""Ed25519 keys for mock hosts and their users."""

from __future__ import annotations

import os
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


def write_private_key(path: Path) -> None:
    """Generate a key and write it in OpenSSH's format, with mode 0600. Raises `FileExistsError`."""
    data = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def load_or_make_key(path: Path) -> paramiko.Ed25519Key:
    """The key in `path`, generated if necessary."""
    if not path.exists():
        write_private_key(path)
    return paramiko.Ed25519Key.from_private_key_file(str(path))


def public_line(key: paramiko.PKey) -> str:
    """The public key as a line: type and base64."""
    return f"{key.get_name()} {key.get_base64()}"
