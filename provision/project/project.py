"""What every use case is given and what it returns."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.core.errors import ProvisionError, UsageError, spoken
from provision.core.fleet import DEFAULT_FORKS, Pace
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


@dataclass(frozen=True)
class Targets:
    """Which hosts a task acts on and how it goes over them."""

    host: str | None = None
    limit: str | None = None
    forks: int = DEFAULT_FORKS
    serial: int | None = None
    max_fail: int | None = None
    check: bool = False
    diff: bool = False

    def __post_init__(self) -> None:
        if self.host is not None and self.limit is not None:
            raise UsageError(
                "--host and --limit cannot be given together",
                why="--host names one host, --limit a pattern",
                fix="leave one of them out",
            )
        if self.host is not None and not self.host.strip():
            raise UsageError(
                "--host names no host",
                why="it is empty",
                fix="--host NAME, or leave it out for the VM of the settings",
            )

    @property
    def pace(self) -> Pace:
        """Forks, batches, failure budget."""
        return Pace(self.forks, self.serial, self.max_fail)


@dataclass(frozen=True)
class Done:
    """How a use case ended: the document of `--json`, the exit status, and text for people where there is any.

    The text is what was found or done, well or not; `errors` are failures beside it, which people
    read on standard error.
    """

    document: dict[str, Any]
    exit_code: int = 0
    text: str = ""
    errors: tuple[ProvisionError, ...] = ()
