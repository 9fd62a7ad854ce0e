"""The project of one call: settings, state folder, key pair, VM records, journal, cloud."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.cloud.lifecycle.journal import Journal
from provision.cloud.market.prices import PriceList, packaged_prices
from provision.core.errors import SettingsError, with_program
from provision.core.model import Emit, Event, Note, Sink
from provision.hosts.key_pair import ensure_key_pair
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh.config import SshConfig
from provision.project.mock import MOCK_PROJECT, ProjectMock
from provision.project.records import VmRecords
from provision.settings import Settings

if TYPE_CHECKING:
    from provision.cloud.api.client import ComputeClient
    from provision.cloud.api.protocol import ComputeCloud


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
    """One call of a task: the settings, the project's state, and the user's streams.

    Every command gets one and derives nothing from it again. The properties make no request and
    write no file; `ensure_key_pair` and `ensure_owner` may write, the `connect_…` methods may start
    the mock.
    """

    settings: Settings
    state_dir: Path
    """State of all projects of this user."""
    project_dir: Path
    emit: Emit = _drop
    program_argv0: str = "invoke"
    stdout: Sink = _write_stdout
    stderr: Sink = _write_stderr
    stdin: int | None = None
    """The file descriptor that the user's program reads; None when there is no input."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    marks: set[str] = field(default_factory=set, compare=False)
    """What `mark_once` was called with in this call."""

    # --- messages ---------------------------------------------------------------------------------

    def mark_once(self, mark: str) -> bool:
        """Remember the mark; return True the first time, False for every later call with it."""
        is_new = mark not in self.marks
        self.marks.add(mark)
        return is_new

    def note_once(self, text: str) -> None:
        """Print a line to the user, the first time only."""
        if self.mark_once(text):
            self.emit(Note(text))

    def with_program_name(self, text: str) -> str:
        """Return the text with `invoke TASK` written as the user calls the task."""
        return with_program(text, self.program_argv0)

    # --- state on this machine --------------------------------------------------------------------

    @cached_property
    def home(self) -> Path:
        """The folder with the state of this project; each project folder has its own."""
        digest = hashlib.sha256(os.fsencode(self.project_dir.resolve())).hexdigest()[:12]
        return self.state_dir / "projects" / digest

    @property
    def key_path(self) -> Path:
        """The private key file, whether or not it exists; the public one has `.pub` behind it."""
        return self.home / "key"

    def ensure_key_pair(self) -> str:
        """Return the public line of the project's key pair, and create it when there is none.

        Raises `UsageError` when the file holds something else.
        """
        return ensure_key_pair(self.key_path)

    def ensure_owner(self) -> str:
        """Return the value of the owner label: login name and digest of the project's public key.

        Creates the key pair when there is none, and raises as `ensure_key_pair`.
        """
        user = re.sub(r"[^a-z0-9_-]", "-", getpass.getuser().lower())[:30]
        public_line = self.ensure_key_pair()
        return f"{user}-{hashlib.sha256(public_line.encode()).hexdigest()[:12]}"

    @cached_property
    def records(self) -> VmRecords:
        """The records of the VMs that this project created."""
        return VmRecords(self.home / "vms.json")

    @cached_property
    def ssh_config(self) -> SshConfig:
        """The user's SSH configuration."""
        return SshConfig.of_user(self.environ)

    @cached_property
    def known_hosts(self) -> KnownHosts:
        """The project's pinned host keys, and the user's known_hosts files, which are only read."""
        return KnownHosts(self.home / "known_hosts", self.ssh_config.default_known_hosts())

    @cached_property
    def journal(self) -> Journal:
        """The journal that every request for a VM is written to before it is sent."""
        return self._journal_at(self.home / "journal.jsonl")

    def journals_of_all_projects(self) -> list[Journal]:
        """Return the journals of all project folders of this machine, as they exist now.

        Each contains only the entries of the settings' Google Cloud project.
        """
        paths = sorted((self.state_dir / "projects").glob("*/journal.jsonl"))
        return [self._journal_at(path) for path in paths]

    def _journal_at(self, path: Path) -> Journal:
        return Journal(path, self.cloud_project, warn=self.note_once)

    @cached_property
    def price_list(self) -> PriceList:
        """The price list of the settings, or the packaged one.

        Raises `SettingsError` when the file cannot be read or is not a price list.
        """
        file = self.settings.prices
        if file is None:
            return packaged_prices()
        path = self.project_dir / Path(file).expanduser()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"provision.prices is {file!r}: it cannot be read",
                where=file,
                why=str(error),
                fix=f"ls -l {path}",
            ) from error
        return PriceList.from_text(text, file)

    # --- the cloud --------------------------------------------------------------------------------

    @property
    def cloud_project(self) -> str:
        """The Google Cloud project of the settings, or the mock's."""
        return self.settings.project or MOCK_PROJECT

    @property
    def gcloud_project_flag(self) -> str:
        """The end of a gcloud command line for this project; empty on the mock."""
        return f" --project {self.settings.project}" if self.settings.project else ""

    @property
    def bills(self) -> bool:
        """True when VMs of this project cost money; the mock's do not."""
        return self.settings.cloud != "mock"

    @cached_property
    def mock(self) -> ProjectMock:
        """The embedded mock of this project; reading this starts nothing."""
        return ProjectMock(self.home / "mock", self.note_once)

    def connect_cloud(self) -> ComputeCloud:
        """Return the cloud of the settings, always the same object; start the mock on demand."""
        return self._cloud

    @cached_property
    def _cloud(self) -> ComputeCloud:
        return self.connect_cloud_with()

    def connect_cloud_with(self, **limits: Any) -> ComputeCloud:
        """Return a new cloud; `limits` are arguments of `ComputeClient`, such as `attempts`."""
        from provision.cloud.api.gce import GceCloud

        return GceCloud(self.cloud_project, self._start_endpoint(), **limits)

    def connect_client(self) -> ComputeClient:
        """Return a client for requests about no VM: offers, quotas, images. Close it after use."""
        from provision.cloud.api.client import ComputeClient

        return ComputeClient(self.cloud_project, self._start_endpoint())

    def _start_endpoint(self) -> str | None:
        """Start the mock and return its endpoint; None for Google's."""
        return self.mock.start() if self.settings.cloud == "mock" else None
