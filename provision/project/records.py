"""What is remembered of the VMs that were made, so that a task on a VM asks the cloud nothing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class VmRecord:
    """Where a VM is and how it is reached. `key_alias` is the name under which its host key is pinned."""

    name: str
    zone: str
    address: str
    port: int
    user: str
    instance_id: str
    key_alias: str
    created: str = ""
    machine_type: str = ""
    gpu: str | None = None


class VmRecords:
    """The records of one project, in one JSON file that is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> list[VmRecord]:
        """Every record, by name; a file that cannot be read counts as empty, since the cloud knows better."""
        try:
            rows = json.loads(self._path.read_text(encoding="utf-8"))
            return [VmRecord(**row) for row in rows]
        except (OSError, ValueError, TypeError):
            return []

    def get(self, name: str) -> VmRecord | None:
        """The record of that name."""
        return next((record for record in self.all() if record.name == name), None)

    def put(self, record: VmRecord) -> None:
        """Add it, or replace the one of its name."""
        with self._locked():
            self._write([*(other for other in self.all() if other.name != record.name), record])

    def remove(self, name: str) -> None:
        """Forget it."""
        with self._locked():
            self._write([record for record in self.all() if record.name != name])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among the threads and processes that change the file: each reads it whole and replaces it whole."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, records: list[VmRecord]) -> None:
        replace_whole(
            self._path,
            json.dumps(
                [asdict(record) for record in sorted(records, key=lambda record: record.name)],
                indent=1,
            ),
        )


def replace_whole(path: Path, text: str) -> None:
    """Write a file so that whoever reads it sees what was there or what is new, and nothing between."""
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(new).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(new).unlink()
        raise
