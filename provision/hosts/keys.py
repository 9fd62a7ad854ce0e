"""The toolkit's own key pair, one for each project, and the folder where state is kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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

_COMMENT = "provision"


@dataclass(frozen=True)
class KeyPair:
    """A private key file in OpenSSH's format, the public file beside it, and the public half as one line."""

    private_path: Path
    public_path: Path
    public_line: str


def state_dir(environ: Mapping[str, str]) -> Path:
    """`$XDG_STATE_HOME/provision`, by default `~/.local/state/provision`; a relative XDG path counts as unset (its specification)."""
    named = environ.get("XDG_STATE_HOME", "")
    home = Path(environ.get("HOME") or "~").expanduser()
    return (Path(named) if named.startswith("/") else home / ".local" / "state") / "provision"


def ensure_key(path: Path) -> KeyPair:
    """The ed25519 key pair in `path` and `path`.pub, made first when there is none.

    Made under a lock and put in place as a whole, so that two runs at once agree on one key. Raises
    `UsageError` for a file that holds something else: a key is never overwritten.
    """
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(path.with_name(path.name + ".lock")):
        if not path.exists():
            _write(
                path,
                Ed25519PrivateKey.generate().private_bytes(
                    Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
                ),
            )
        return _read(path)


def _read(path: Path) -> KeyPair:
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
    line = (
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        + " "
        + _COMMENT
    )
    public = path.with_name(path.name + ".pub")
    if not public.exists() or public.read_text(encoding="utf-8").strip() != line:
        _write(public, (line + "\n").encode())
    return KeyPair(path, public, line)


def _write(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(
        dir=path.parent, prefix=path.name
    )  # readable by the owner alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
