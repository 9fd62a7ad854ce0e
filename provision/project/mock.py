"""The mock of a project: where its state is, and its cloud and hosts, started on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from provision.core.model import Host
from provision.project.project import Project

MOCK_PROJECT = "mock-project"
BANNER = "mock: no project is set, so all of this is local and nothing is billed"


def folder(project: Project) -> Path:
    """Where the mock of this project keeps its state."""
    return project.home / "mock"


def endpoint(project: Project) -> str:
    """Where the emulator listens; the mock is started when it does not run."""
    from provision.cloud.api.client import preload
    from provision.testing import background

    project.say_once(BANNER)
    return background.up(folder(project), meanwhile=preload).compute_endpoint


def exists(project: Project) -> bool:
    """True when this project has a mock, whether or not it runs."""
    return folder(project).is_dir()


def refreshed(project: Project, hosts: Sequence[Host]) -> list[Host]:
    """The mock hosts where they listen now: a mock that was stopped comes up again, with its state, on other ports."""
    from provision.testing import background

    project.say_once(BANNER)
    state = background.up(folder(project))
    return [replace(host, port=state.ssh_ports.get(host.name, host.port)) for host in hosts]


def gcloud(project: Project) -> str:
    """The path of a program that opens tunnels to mock hosts as `gcloud` does to VMs."""
    from provision.testing import gcloud as stand_in

    return str(stand_in.install(folder(project)))
