"""The journal of requests for VMs, written to disk before each request, so that no VM is lost.

One JSON object a line. An entry is *open* from `intent` until `gone`, which records that nothing is
left of it; `made` records that its VM was seen running. A torn last line (the machine lost power
while writing) is ignored; an invalid entry is left out with a warning, so that one bad line does
not hide the VMs of the others.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from provision.core.files import PRIVATE, sync_folder, try_lock
from provision.core.model import VmSpec

INTENT = "intent"
MADE = "made"
GONE = "gone"
DELETING = "deleting"
LEFT_BEHIND = "left-behind"
UNSURE = "unsure"
"""The insert had no reply, and the VM did not exist when it was looked up; it may still appear."""
_TEXT_FIELDS = ("project", "name", "zone", "at")
"""The text fields of an intent, beside `asked`."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One VM that was asked for, under one requestId, and its latest state."""

    request_id: str
    project: str
    name: str
    zone: str
    at: str
    state: str = INTENT
    asked: Mapping[str, Any]
    note: str = ""


class Journal:
    """The journal of one project in a file (mode 0600).

    Lines are appended whole, so that several processes may share the file. `warn` is called with a
    line for people about each invalid entry.
    """

    def __init__(
        self,
        path: Path,
        project: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        warn: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._path = path
        self._project = project
        self._now = now
        self._warn = warn

    @property
    def folder(self) -> Path:
        """The folder of the file, which holds the other records of the project too."""
        return self._path.parent

    def intent(self, spec: VmSpec, zone: str, request_id: str) -> None:
        """Record a request that is about to be sent; it is on disk on return.

        Metadata is left out since it may contain secrets.
        """
        asked = {
            "machine_type": spec.machine_type,
            "gpu": spec.gpu,
            "gpu_count": spec.gpu_count,
            "disk_gb": spec.disk_gb,
            "image": spec.image,
            "ttl_s": spec.ttl_s,
            "labels": dict(spec.labels),
        }
        self._append(
            {
                "state": INTENT,
                "request_id": request_id,
                "project": self._project,
                "name": spec.name,
                "zone": zone,
                "asked": asked,
            }
        )

    def mark(self, request_id: str, state: str, note: str = "") -> None:
        """Record the state of an entry."""
        self._append({"state": state, "request_id": request_id, "note": note})

    def mark_name(self, name: str, zone: str, state: str, note: str = "") -> None:
        """Record the state of every open entry of this name and zone."""
        for entry in self.open():
            if (entry.name, entry.zone) == (name, zone):
                self.mark(entry.request_id, state, note)

    def entries(self) -> Sequence[Entry]:
        """Return all entries of this project, oldest first, each in its latest state."""
        entries: dict[str, Entry] = {}
        for number, line in self._lines():
            if not _is_valid(line):
                remedy = "its VM may exist and bill: `gcloud compute instances list`"
                self._warn(
                    f"{self._path}, line {number}: "
                    f"an invalid entry of the journal, ignored; {remedy}"
                )
                continue
            key = line["request_id"]
            if line["state"] == INTENT:
                fields = {name: line[name] for name in _TEXT_FIELDS}
                entries[key] = Entry(request_id=key, asked=line["asked"], **fields)
            elif key in entries:
                note = line.get("note", "")
                entries[key] = replace(entries[key], state=line["state"], note=note)
        return [entry for entry in entries.values() if entry.project == self._project]

    def open(self) -> Sequence[Entry]:
        """Return the entries whose VM may exist."""
        return [entry for entry in self.entries() if entry.state != GONE]

    @contextmanager
    def claim(self, name: str, note: Callable[[str], None]) -> Iterator[None]:
        """Hold the claim on a name: no other run of this machine makes or deletes its VM.

        Waits, with a note, for a run that holds it. The system releases the claim of a killed run,
        so an open intent that is read under the claim belongs to no running process.
        """
        handle = self._open_claim(name)
        try:
            if not try_lock(handle):
                note(f"another run is making or deleting {name}: waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def is_claimed(self, name: str) -> bool:
        """Return whether a run of this machine makes or deletes a VM of this name."""
        handle = self._open_claim(name)
        try:
            return not try_lock(handle)
        finally:
            os.close(handle)

    def _open_claim(self, name: str) -> int:
        folder = self._path.parent / "claims"
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / f"{self._project}.{name}", os.O_RDWR | os.O_CREAT, PRIVATE)

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the lines that are JSON objects, each with its number (1 = first)."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict):
                yield number, entry

    def _append(self, entry: Mapping[str, Any]) -> None:
        stamped = {"at": self._now().isoformat(timespec="seconds"), **entry}
        line = json.dumps(stamped, ensure_ascii=True).encode() + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self._path.exists()
        handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, PRIVATE)
        try:
            os.write(handle, line if _ends_with_newline(handle) else b"\n" + line)
            os.fsync(handle)
        finally:
            os.close(handle)
        if is_new:
            sync_folder(self._path.parent)


def _is_valid(line: Mapping[str, Any]) -> bool:
    """Return whether the line has the fields that an entry is read from."""
    required: tuple[str, ...] = ("state", "request_id")
    if line.get("state") == INTENT:
        required = (*required, *_TEXT_FIELDS)
        if not isinstance(line.get("asked"), dict):
            return False
    return all(isinstance(line.get(name), str) for name in required)


def _ends_with_newline(handle: int) -> bool:
    """Return whether the file is empty or its last line is complete, not torn."""
    size = os.fstat(handle).st_size
    return size == 0 or os.pread(handle, 1, size - 1) == b"\n"
