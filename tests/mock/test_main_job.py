"""The main job on the embedded mock, with no configuration."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.cloud.lifecycle.context import new_request_id
from provision.commands.mock.down import mock_down
from provision.commands.vm.list import vm_list
from provision.commands.vm.ssh import vm_ssh
from provision.project.project import Project
from provision.settings import Settings
from tests.acceptance.main_job import HERE, World, walk

_BOOTED = 'until test "$(systemctl is-active provision-boot.service)" = active; do sleep 0.1; done'


@pytest.fixture
def mock_world(tmp_path: Path) -> Iterator[World]:
    """The mock as the tasks start it: a process of its own, found through its state folder."""
    project = tmp_path / "my project"
    project.mkdir()
    subprocess.run(["git", "init", "-q", str(project)], check=True)

    def reboot() -> None:
        cloud = world.project.connect_cloud()
        cloud.stop("dev", "us-central1-a", request_id=new_request_id())
        cloud.start("dev", "us-central1-a", request_id=new_request_id())
        vm_ssh(world.project, HERE, ["sh", "-c", _BOOTED])

    def put_object(bucket: str, name: str, data: bytes) -> None:
        path = world.project.home / "mock/hosts/us-central1-a/dev/state/buckets" / bucket / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)

    world = World(
        settings=Settings.from_levels([]),
        state_dir=tmp_path / "state",
        project_dir=project,
        host="dev",
        reboot=reboot,
        environ=dict(os.environ),
        put_object=put_object,
    )
    yield world
    mock_down(Project(world.settings, world.state_dir, world.project_dir))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_main_job_on_mock(mock_world: World) -> None:
    walk(mock_world)
    assert vm_list(mock_world.project).document == {"vms": []}
