"""Images, containers and volumes as JSON and folders under /var/lib/docker of the host."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    import tarfile
    from typing import Any, NoReturn, TypeAlias

Record: TypeAlias = "dict[str, Any]"


class DockerError(Exception):
    """An error of the daemon or the client that ends the command with `status`."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


def daemon_error(text: str, status: int = 1) -> NoReturn:
    """Raise the daemon's `DockerError`."""
    raise DockerError(f"Error response from daemon: {text}", status)


def unpack(archive: tarfile.TarFile, folder: str) -> None:
    """Unpack an archive; from Python 3.11.4 on, refuse members outside `folder`.

    Links keep their targets, as in Docker, also absolute ones: the container resolves them.
    """
    import tarfile

    def checked(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        if not member.issym():
            return tarfile.data_filter(member, folder)
        link = tarfile.data_filter(member.replace(linkname=".", deep=False), folder)
        return link.replace(linkname=member.linkname, deep=False)

    archive.extraction_filter = checked if hasattr(tarfile, "data_filter") else None
    archive.extractall(folder)  # noqa: S202 - see above; Debian 12's 3.11.2 has no `filter=`


class Store:
    """The host's Docker as files. `root` is the host's root folder, `state` the mock's state."""

    def __init__(self, root: str, state: str) -> None:
        self.root = root
        self.state = state
        self.base = f"{root}/var/lib/docker"
        for name in ("images", "containers", "volumes"):
            os.makedirs(f"{self.base}/{name}", exist_ok=True)

    # --- paths ---

    def host_path(self, path: str) -> str:
        """The path on the host; scripts pass it with the host's root in front."""
        if self.root and (path == self.root or path.startswith(self.root + "/")):
            return path[len(self.root) :] or "/"
        return path

    def real(self, path: str) -> str:
        """The host's `path` on this machine."""
        return self.root + self.host_path(path)

    def fault(self, name: str) -> bool:
        """True when a test has set this fault."""
        return os.path.exists(f"{self.state}/faults/{name}")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock: one command at a time changes records, as one daemon does."""
        with open(f"{self.base}/.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # --- records ---

    def _file(self, kind: str, key: str) -> str:
        return f"{self.base}/{kind}/{key.replace('sha256:', '')}/record.json"

    def save(self, kind: str, key: str, record: Record) -> None:
        """Write a record atomically."""
        path = self._file(kind, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.new", "w") as file:
            json.dump(record, file, indent=1)
        os.replace(f"{path}.new", path)

    def load(self, kind: str, key: str) -> Record:
        """The record. Raises `FileNotFoundError` when it does not exist."""
        with open(self._file(kind, key)) as file:
            return dict(json.load(file))

    def all(self, kind: str) -> list[Record]:
        """Every record of a kind, the newest last."""
        found = []
        for key in os.listdir(f"{self.base}/{kind}"):
            try:
                found.append(self.load(kind, key))
            except FileNotFoundError:
                continue
        return sorted(found, key=lambda record: (record["Created"], record.get("Id", "")))

    def drop(self, kind: str, key: str) -> None:
        """Remove a record with its folder."""
        import shutil

        shutil.rmtree(os.path.dirname(self._file(kind, key)), ignore_errors=True)

    def folder(self, kind: str, key: str) -> str:
        """The folder of a record."""
        return os.path.dirname(self._file(kind, key))

    # --- look-up ---

    def image(self, ref: str) -> Record | None:
        """The image by name or id, or None."""
        tag = with_tag(ref)
        for record in self.all("images"):
            if tag in record["RepoTags"] or _is_id(ref, record["Id"]):
                return record
        return None

    def image_or_fail(self, ref: str) -> Record:
        """The image. Raises `DockerError` when it does not exist."""
        found = self.image(ref)
        if found is None:
            daemon_error(f"No such image: {with_tag(ref)}")
        return found

    def container(self, name: str) -> Record | None:
        """The container by name or id, or None."""
        for record in self.all("containers"):
            if record["Name"] == "/" + name.lstrip("/") or _is_id(name, record["Id"]):
                return record
        return None

    def container_or_fail(self, name: str) -> Record:
        """The container. Raises `DockerError` when it does not exist."""
        found = self.container(name)
        if found is None:
            daemon_error(f"No such container: {name}")
        return found


def _is_id(text: str, identity: str) -> bool:
    bare = text.removeprefix("sha256:")
    return (
        len(bare) >= 4
        and all(char in "0123456789abcdef" for char in bare)
        and identity.removeprefix("sha256:").startswith(bare)
    )


def with_tag(ref: str) -> str:
    """The reference with its tag."""
    last = ref.rsplit("/", 1)[-1]
    return ref if ":" in last or "@" in ref else f"{ref}:latest"


def new_id(*parts: str) -> str:
    """64 hexadecimal digits, a hash of the parts."""
    import hashlib

    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def now() -> str:
    """The current time in Docker's format."""
    return (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        + f".{time.time_ns() % 1_000_000_000:09d}Z"
    )


def print_line(text: str) -> None:
    """Print a line on standard output and flush it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_error(text: str) -> None:
    """Print a line on standard error and flush it."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def is_executable(path: str) -> bool:
    """True for an executable file, judged by its mode bits.

    access(2) ignores the capability with which the mock reads below closed folders.
    """
    return os.path.isfile(path) and bool(os.stat(path).st_mode & 0o111)


def which(name: str, path: str) -> str | None:
    """The first executable of that name on `path`, or None."""
    return next(
        (found for folder in path.split(":") if is_executable(found := f"{folder}/{name}")), None
    )
