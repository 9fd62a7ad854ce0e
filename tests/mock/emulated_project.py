"""A project on an emulated cloud without hosts, for tasks that need no VM."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from provision.core.model import Event, Note
from provision.project.mock import ProjectMock
from provision.project.project import Project
from provision.settings import Level, Settings
from provision.testing.compute import ComputeEmulator, NullBackend


@dataclass
class EmulatedProject:
    """A project folder, its state folder, the emulated cloud, and the events of its tasks."""

    folder: Path
    state_dir: Path
    emulator: ComputeEmulator
    events: list[Event] = field(default_factory=list)

    def project(self, **settings: Any) -> Project:
        """A new project with these settings, as each task gets one."""
        chosen = Settings.from_levels([Level("test", settings)])
        return Project(
            chosen,
            self.state_dir,
            self.folder,
            emit=self.events.append,
            environ={"HOME": str(self.folder), "PATH": os.defpath},
        )

    @property
    def notes(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Note))


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedProject]:
    with ComputeEmulator(NullBackend(port=2222)) as emulator:
        answers: Callable[[ProjectMock], str] = lambda _mock: emulator.endpoint  # noqa: E731
        monkeypatch.setattr("provision.project.mock.ProjectMock.start", answers)
        folder = tmp_path / "project"
        folder.mkdir()
        yield EmulatedProject(folder, tmp_path / "state", emulator)
