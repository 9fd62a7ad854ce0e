"""A mock host with its worker container up, reached as any SSH host of the settings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provision import templating
from provision.commands.mps.doctor import mps_doctor
from provision.commands.mps.enable import mps_enable
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core import engine
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh import connection
from provision.project.project import Project
from provision.recipes import WorkerImage, gpu_host, worker
from provision.settings import Settings
from provision.settings.model import HostSettings
from provision.testing import MockHost

REF = "us-docker.pkg.dev/project/repo/image:1"


def settings_for(mock: MockHost, image: str = REF) -> Settings:
    """Settings whose host `dev` is the mock."""
    where = mock.host
    entry = HostSettings(
        address=where.address,
        port=where.port,
        user=where.user,
        identity=where.identity,
        host_key=where.host_key,
    )
    made = Settings.from_levels([])
    return made.model_copy(
        update={"hosts": {"dev": entry}, "worker": made.worker.model_copy(update={"image": image})}
    )


@contextmanager
def running_worker(
    mock: MockHost, folder: Path, *, container: bool = True, image: str = REF
) -> Iterator[Project]:
    """A project whose host is the mock, provisioned, with its worker container running."""
    settings = settings_for(mock, image)
    host = gpu_host(settings, host=mock.host, boot_unit=templating.boot_unit(project_dir=None))
    recipe = [*host, *(worker(settings, WorkerImage(image), host=mock.host) if container else [])]
    transport = connection.connect(
        mock.host, known_hosts=KnownHosts(Path("/nonexistent/known_hosts"))
    )
    try:
        report = engine.converge(transport, recipe, lambda event: None, clock=time.monotonic)
    finally:
        transport.close()
    assert not report.failed, str(report)
    yield Project(settings, folder / "state", folder, environ={})


@dataclass(frozen=True)
class Box:
    """A host with a worker container, and its project."""

    mock: MockHost
    project: Project

    def inside(self, source: str) -> str:
        """Run shell source in the worker container as root; what it prints."""
        done = self.mock.run("sudo docker exec -i worker sh -s", stdin=source.encode())
        assert done.status == 0, done.output
        return done.output

    def run_doctor(self, *options: str) -> TaskResult:
        return mps_doctor(self.project, Targets(), options=options)

    def enable(self) -> None:
        assert mps_enable(self.project, Targets()).exit_code == 0
