"""Files of this machine: replaced as a whole, locked between processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

PRIVATE = 0o600
SHARED = 0o666


def write_atomically(
    path: Path, data: bytes | str, *, mode: int = PRIVATE, durable: bool = False
) -> None:
    """Replace a file as a whole: a reader finds the old content or the new one.

    `mode` are the permissions of the new file, less the umask. With `durable` the data and the
    rename are on disk on return. Raises `OSError`; the old file is then unchanged.
    """
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to disk, so that a new or renamed file survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of `path`, alone among the threads and processes of this machine.

    The file and its folder are created where they are absent. The system releases the lock of a
    process that dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def try_lock(handle: int) -> bool:
    """Take the lock of an open file without waiting; False when another holder has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
