"""Fixtures: one lab for the whole session, with the base image of the worker loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.base_image import BaseImage, base_image
from lab.host import Lab
from lab.image import Gpu
from lab.programs import LabError, engine_folder, find_programs
from provision import templating
from provision.core.engine import converge
from provision.core.job import script_command
from provision.core.model import HostReport, Outcome, Status, Transport
from provision.core.resource import Resource
from provision.core.shell import Script
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh.connection import connect
from provision.image.dockerfile import ImageSpec, prepare
from provision.recipes import WorkerImage, gpu_host, worker
from provision.settings import Level, Settings

pytest.register_assert_rewrite("tests.acceptance.main_job")

ROOT = Path(__file__).parent.parent.parent
ENGINE = engine_folder(os.environ)  # read here: the tests' own environment is scrubbed
GPU = Gpu.from_environment(os.environ)
BEAM = os.environ.get("PROVISION_LAB_BEAM", "auto")
CLOUD_INIT = os.environ.get("PROVISION_CLOUD_INIT")
REQUIRED = os.environ.get("PROVISION_LAB_REQUIRED") == "1"


TIMEOUT_S = 300
"""Of a test with its fixtures: the first test waits for pip and for the base image."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set a longer time limit for lab tests."""
    for item in items:
        if (
            Path(__file__).parent in item.path.parents
            and item.get_closest_marker("timeout") is None
        ):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@dataclass(frozen=True)
class CommandOutput:
    """The result of a command."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Ssh:
    """An SSH connection of the toolkit to the lab."""

    transport: Transport

    def __call__(self, command: str, *, timeout_s: float = 120.0) -> CommandOutput:
        """Run a command line as the login user."""
        out, err = bytearray(), bytearray()
        status = self.transport.exchange(
            command, on_stdout=out.extend, on_stderr=err.extend, timeout_s=timeout_s
        )
        return CommandOutput(status, out.decode(), err.decode())

    def script(self, body: Script) -> CommandOutput:
        """Run a script of the toolkit as root."""
        command, stdin = script_command(body, become="sudo")
        out, err = bytearray(), bytearray()
        status = self.transport.exchange(
            command, stdin, on_stdout=out.extend, on_stderr=err.extend, timeout_s=120
        )
        return CommandOutput(status, out.decode(), err.decode())

    def converge(self, resources: list[Resource], *, check: bool = False) -> HostReport:
        """Apply a recipe to the lab."""
        return converge(
            self.transport, resources, lambda event: None, clock=time.monotonic, check=check
        )


def summary(report: HostReport) -> dict[str, Status]:
    """The status of each resource."""
    return {outcome.resource: outcome.status for outcome in report.outcomes}


def explain(report: HostReport) -> str:
    """The errors of a report, for the message of an assertion."""
    bad: list[Outcome] = [
        outcome for outcome in report.outcomes if outcome.status not in {Status.OK, Status.CHANGED}
    ]
    return "\n".join(
        [
            str(report.error),
            *(
                f"{outcome.resource}: {outcome.status} {outcome.note}\n{outcome.error}"
                for outcome in bad
            ),
        ]
    )


def unpacked_cloud_init() -> Path | None:
    """The folder of the cloud-init that PROVISION_CLOUD_INIT unpacks; None without the variable."""
    if CLOUD_INIT is None:
        return None
    subprocess.run([CLOUD_INIT, "--version"], check=True, capture_output=True, timeout=300)
    return ROOT / ".cache" / "cloud-init"


@pytest.fixture(scope="session")
def lab(clean_session: None) -> Iterator[Lab]:
    """A running lab. Without one tests are skipped, or fail with PROVISION_LAB_REQUIRED=1."""
    folder = Path(tempfile.mkdtemp(prefix="provision-lab-", dir="/var/tmp"))
    machine = Lab(folder, gpu=GPU, engine=ENGINE, cloud_init=unpacked_cloud_init())
    try:
        machine.start()
    except LabError as error:
        shutil.rmtree(folder)
        if REQUIRED:
            pytest.fail(f"the lab cannot start: {error}")
        pytest.skip(f"the lab cannot start: {error}")
    try:
        yield machine
    finally:
        machine.remove()


@pytest.fixture(scope="session")
def image(lab: Lab) -> BaseImage:
    """The base image of the worker, loaded."""
    made = base_image(ROOT / ".cache" / "lab", find_programs(lab.engine).busybox, beam=BEAM)
    lab.load_base_image(made)
    return made


@pytest.fixture
def login(lab: Lab, tmp_path: Path) -> Iterator[Callable[[], Ssh]]:
    """A function that opens SSH connections, also after a reboot."""
    opened: list[Transport] = []

    def open_one() -> Ssh:
        opened.append(
            connect(lab.host, known_hosts=KnownHosts(tmp_path / "known_hosts"), timeout_s=20)
        )
        return Ssh(opened[-1])

    yield open_one
    for transport in opened:
        transport.close()


@pytest.fixture
def ssh(login: Callable[[], Ssh]) -> Ssh:
    """One SSH connection."""
    return login()


@pytest.fixture
def settings(image: BaseImage) -> Settings:
    """The default settings, with the Python that this machine's base image has."""
    return Settings.from_levels([Level("test", {"worker": {"python": image.python}})])


@pytest.fixture
def recipe(settings: Settings) -> list[Resource]:
    return gpu_host(settings, boot_unit=templating.boot_unit())


@pytest.fixture
def worker_recipe(settings: Settings, image: BaseImage) -> list[Resource]:
    build = prepare(ImageSpec(python=image.python), project_dir=None)
    return worker(settings, WorkerImage(build.reference, build.context, build.digest))


@pytest.fixture
def worker_container(
    login: Callable[[], Ssh],
    recipe: list[Resource],
    worker_recipe: list[Resource],
    settings: Settings,
) -> str:
    """The name of the running worker container."""
    report = login().converge([*recipe, *worker_recipe])
    assert not report.failed, explain(report)
    return settings.worker.name
