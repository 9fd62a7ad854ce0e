"""A user's project on a mock cloud, whose tasks tests call as functions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.cloud.lifecycle.context import new_request_id
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.create.create import vm_create
from provision.commands.vm.list import vm_list
from provision.commands.vm.shared.wait_for_ssh import WaitLimits
from provision.core.model import Event, Note
from provision.project.project import Project
from provision.settings import Settings
from provision.testing import MockCloud

HERE = Targets()
ZONE = "us-central1-a"


@dataclass
class Workspace:
    """A project folder without configuration, on a mock cloud in this process."""

    folder: Path
    state_dir: Path
    cloud: MockCloud
    settings: Settings = field(default_factory=lambda: Settings.from_levels([]))
    events: list[Event] = field(default_factory=list)

    @property
    def project(self) -> Project:
        """A new project, as each task gets one."""
        return Project(
            self.settings,
            self.state_dir,
            self.folder,
            emit=self.events.append,
            environ=dict(os.environ),
        )

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]

    def create(self, targets: Targets = HERE, **waits: Any) -> TaskResult:
        waiting = {
            "host_keys_s": 5.0,
            "ssh_s": 20.0,
            "pause_s": 0.05,
            "attributes_pause_s": 0.05,
            **waits,
        }
        return vm_create(self.project, "dev", targets, limits=WaitLimits(**waiting))

    def listed(self) -> list[tuple[str, str]]:
        return [(vm["name"], vm["status"]) for vm in vm_list(self.project).document["vms"]]

    def stop(self, name: str = "dev") -> None:
        """Stop the VM through the cloud, as happens at the end of its time to live."""
        self.project.connect_cloud().stop(name, ZONE, request_id=new_request_id())
