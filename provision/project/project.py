"""What every use case is given and what it returns."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provision.core.errors import spoken
from provision.core.model import Emit, Event, Note, Sink
from provision.settings import Settings


def _write_stdout(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _write_stderr(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()


def _drop(event: Event) -> None:
    del event


@dataclass(frozen=True)
class Project:
    """One call of the program: settings, where state is kept, who listens, where the user's program writes to."""

    settings: Settings
    state_dir: Path
    project_dir: Path
    emit: Emit = _drop
    program_argv0: str = "invoke"
    stdout: Sink = _write_stdout
    stderr: Sink = _write_stderr
    stdin: int | None = None
    """The file descriptor that the user's program reads; None where it has nothing to read."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    said: set[str] = field(default_factory=set, compare=False)
    """Lines that are said once in a call, such as the mock's banner."""

    def say_once(self, text: str) -> None:
        """Tell people something the first time only."""
        if text not in self.said:
            self.said.add(text)
            self.emit(Note(text))

    def spoken(self, text: str) -> str:
        """A text that names our tasks, in the words with which the user calls them."""
        return spoken(text, self.program_argv0)

    @property
    def home(self) -> Path:
        """State of this project: keys, known hosts, VMs, journal, mock. One folder for each project folder."""
        digest = hashlib.sha256(os.fsencode(self.project_dir.resolve())).hexdigest()[:12]
        return self.state_dir / "projects" / digest
