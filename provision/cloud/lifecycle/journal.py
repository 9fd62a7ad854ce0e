"""What this machine asked the cloud for, on disk before it was asked, so that a killed run leaves a trace of what may bill.

One JSON object a line. An entry is *open* from its `intent` on until `gone` says that nothing is
left of it; `made` says that the VM was seen running. A torn last line (the machine died while
writing) is ignored; an entry that lacks something is left out and named, so that one bad line hides
no VM of the others.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from provision.core.model import VmSpec

INTENT = "intent"
MADE = "made"
GONE = "gone"
DELETING = "deleting"
LEFT_BEHIND = "left-behind"
UNSURE = "unsure"
"""The insert's answer never came and the VM was not there when we looked; it may still appear."""
_WORDS = ("project", "name", "zone", "at")
"""What an intent says in words, beside what was asked."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One VM that was asked for, under one requestId, and what is known of it."""

    request_id: str
    project: str
    name: str
    zone: str
    at: str
    state: str = INTENT
    asked: Mapping[str, Any]
    note: str = ""


class Journal(Protocol):
    """Where intents are written before they are acted on."""

    def intent(self, spec: VmSpec, zone: str, request_id: str) -> None:
        """Write down what is about to be asked; on return it is on disk."""
        ...

    def mark(self, request_id: str, state: str, note: str = "") -> None:
        """Write down what became of it."""
        ...

    def mark_name(self, name: str, zone: str, state: str, note: str = "") -> None:
        """Write down what became of every open entry of this name and zone."""
        ...

    def open(self) -> Sequence[Entry]:
        """The entries of which something may exist."""
        ...

    def claim(self, name: str, note: Callable[[str], None]) -> AbstractContextManager[None]:
        """While it lasts, no other run on this machine makes or removes a VM of this name; one that does is waited for."""
        ...

    def is_claimed(self, name: str) -> bool:
        """True while a run on this machine makes or removes a VM of this name."""
        ...


class FileJournal:
    """A Journal in a file (mode 0600). Lines are appended whole, so that several processes may share it."""

    def __init__(
        self,
        path: Path,
        project: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._path = path
        self._project = project
        self._now = now
        self._say = say

    @property
    def folder(self) -> Path:
        """Where it lies, beside whatever else is remembered of the project."""
        return self._path.parent

    def intent(self, spec: VmSpec, zone: str, request_id: str) -> None:
        """Write down what is about to be asked; on return it is on disk. Metadata stays out: it may hold secrets."""
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
        """Write down what became of it."""
        self._append({"state": state, "request_id": request_id, "note": note})

    def mark_name(self, name: str, zone: str, state: str, note: str = "") -> None:
        """Write down what became of every open entry of this name and zone."""
        for entry in self.open():
            if (entry.name, entry.zone) == (name, zone):
                self.mark(entry.request_id, state, note)

    def entries(self) -> Sequence[Entry]:
        """All entries of this project, oldest first, each in its latest state."""
        found: dict[str, Entry] = {}
        for number, line in self._lines():
            if not _is_whole(line):
                remedy = "a VM that it was about may bill: `gcloud compute instances list`"
                self._say(
                    f"{self._path}, line {number}: no whole entry of the journal, left out; {remedy}"
                )
                continue
            key = line["request_id"]
            if line["state"] == INTENT:
                found[key] = Entry(
                    request_id=key, asked=line["asked"], **{word: line[word] for word in _WORDS}
                )
            elif key in found:
                found[key] = replace(found[key], state=line["state"], note=line.get("note", ""))
        return [entry for entry in found.values() if entry.project == self._project]

    def open(self) -> Sequence[Entry]:
        """The entries of which something may exist."""
        return [entry for entry in self.entries() if entry.state != GONE]

    @contextmanager
    def claim(self, name: str, note: Callable[[str], None]) -> Iterator[None]:
        """While it lasts, no other run on this machine makes or removes a VM of this name; one that does is waited for.

        The system itself gives the claim of a killed run back, so an open intent that is read under
        it is nobody's.
        """
        handle = self._claim_file(name)
        try:
            if not _locked(handle):
                note(f"another run is making or deleting {name}: waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def is_claimed(self, name: str) -> bool:
        """True while a run on this machine makes or removes a VM of this name."""
        handle = self._claim_file(name)
        try:
            return not _locked(handle)
        finally:
            os.close(handle)

    def _claim_file(self, name: str) -> int:
        folder = self._path.parent / "claims"
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / f"{self._project}.{name}", os.O_RDWR | os.O_CREAT, 0o600)

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The objects among the lines, each with its number (1 = first)."""
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
        line = (
            json.dumps(
                {"at": self._now().isoformat(timespec="seconds"), **entry}, ensure_ascii=True
            )
            + "\n"
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self._path.exists()
        handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, (b"" if _ends_whole(handle) else b"\n") + line.encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        if is_new:
            _sync_folder(self._path.parent)


def _is_whole(line: Mapping[str, Any]) -> bool:
    """Whether it has what an entry is read from."""
    if not all(isinstance(line.get(word), str) for word in ("state", "request_id")):
        return False
    return line["state"] != INTENT or (
        all(isinstance(line.get(word), str) for word in _WORDS)
        and isinstance(line.get("asked"), dict)
    )


def _locked(handle: int) -> bool:
    """Take the lock if nobody holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ends_whole(handle: int) -> bool:
    """True when the file is empty or its last line is complete: what follows a torn line begins on one of its own."""
    size = os.fstat(handle).st_size
    return size == 0 or os.pread(handle, 1, size - 1) == b"\n"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
