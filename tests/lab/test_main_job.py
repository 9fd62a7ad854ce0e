"""The main job on the lab: the scenario of the mock, with real SSH, mounts and containers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.base_image import BaseImage
from lab.host import Lab
from provision import templating
from provision.settings import Level, Settings
from tests.acceptance.main_job import World, walk


@pytest.fixture
def world(lab: Lab, image: BaseImage, tmp_path: Path) -> Iterator[World]:
    """The lab as a host of the settings, booted with the user-data of a new VM."""
    lab.user_data = templating.user_data({})
    lab.reset_disk()

    def reboot() -> None:
        lab.reboot()
        assert lab.wait_for_unit("provision-boot.service") == "active"

    host = lab.host
    entry = {
        "address": host.address,
        "port": host.port,
        "user": host.user,
        "identity": host.identity,
        "host_key": host.host_key,
    }
    data = {"name": "lab", "hosts": {"lab": entry}, "worker": {"python": image.python}}
    project = tmp_path / "my project"
    project.mkdir()
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    yield World(
        settings=Settings.from_levels([Level("test", data)]),
        state_dir=tmp_path / "state",
        project_dir=project,
        host="lab",
        reboot=reboot,
        environ=dict(os.environ),
    )
    lab.user_data = ""


@pytest.mark.timeout(450)
def test_main_job_on_lab(world: World) -> None:
    walk(world)
