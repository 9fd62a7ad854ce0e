"""The worker container on the mock, where others use Docker too, and images that are pulled."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provision import templating
from provision.core import engine
from provision.core.model import HostReport, Outcome, Status
from provision.core.resource import Resource
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh import connection
from provision.recipes import WorkerImage, gpu_host, mps, worker
from provision.recipes.worker import no_worker
from provision.settings import Settings
from provision.testing import MockHost


def run(mock: MockHost, resources: Sequence[Resource]) -> HostReport:
    transport = connection.connect(
        mock.host, known_hosts=KnownHosts(Path("/nonexistent/known_hosts"))
    )
    try:
        return engine.converge(transport, resources, lambda event: None, clock=time.monotonic)
    finally:
        transport.close()


def settings(**changes: object) -> Settings:
    made = Settings.from_levels([])
    return made.model_copy(update={"worker": made.worker.model_copy(update=changes)})


def recipe(mock: MockHost, wanted: Settings) -> list[Resource]:
    image = WorkerImage(str(wanted.worker.image))
    host = gpu_host(wanted, host=mock.host, boot_unit=templating.boot_unit(project_dir=None))
    return [*host, *worker(wanted, image, host=mock.host)]


def outcome(report: HostReport, name: str) -> Outcome:
    return next(each for each in report.outcomes if each.resource == name)


REF = "us-docker.pkg.dev/project/repo/image:1"


@pytest.mark.slow
def test_named_image_is_pulled_with_credential_helper() -> None:
    with MockHost() as mock:
        wanted = settings(image=REF)
        report = run(mock, recipe(mock, wanted))
        assert not report.failed
        assert outcome(report, "image").status is Status.CHANGED
        assert (
            "us-docker.pkg.dev"
            in mock.run("sudo cat $PROVISION_MOCK_ROOT/var/lib/provision/docker/config.json").output
        )
        again = run(mock, recipe(mock, wanted))
        assert (again.count(Status.CHANGED), again.round_trips) == (0, 1)


@pytest.mark.slow
def test_pull_without_login_fails_with_remedy() -> None:
    with MockHost() as mock:
        wanted = settings(image=REF)
        other = settings(image="docker.io/library/other:1")
        resources = [each for each in recipe(mock, other) if each.name != "image"]
        image = next(each for each in recipe(mock, wanted) if each.name == "image")
        report = run(mock, [*resources[:10], replace(image, needs=())])
        error = outcome(report, "image").error
        assert error is not None
        assert error.what == "the registry refused the VM's identity"
        assert error.fix.startswith("add its host to registries:")


@pytest.mark.slow
def test_container_of_another_owner_is_not_replaced() -> None:
    with MockHost() as mock:
        assert (
            mock.run("sudo docker run -d --name worker --entrypoint sleep ubuntu infinity").status
            == 0
        )
        before = mock.run(
            "sudo docker container inspect -f '{{.Id}} {{.State.Running}}' worker"
        ).output
        wanted = settings(image=REF)
        error = outcome(run(mock, recipe(mock, wanted)), "container").error
        assert error is not None
        assert error.what == "a container named worker exists that provision did not make"
        assert error.fix == "set worker.name to another name"
        assert not run(mock, no_worker(wanted)).failed
        assert (
            mock.run("sudo docker container inspect -f '{{.Id}} {{.State.Running}}' worker").output
            == before
        )
        other = settings(image=REF, name="mine")
        assert not run(mock, recipe(mock, other)).failed


def built(number: int) -> WorkerImage:
    stream = io.BytesIO()
    text = f"FROM ubuntu\nLABEL number={number}\n".encode()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return WorkerImage(f"provision/worker:{number}", stream.getvalue(), str(number))


@pytest.mark.slow
def test_unused_older_images_are_removed() -> None:
    with MockHost() as mock:
        host = gpu_host(
            settings(), host=mock.host, boot_unit=templating.boot_unit(project_dir=None)
        )
        assert mock.run("sudo docker pull ubuntu").status == 0

        def tags() -> str:
            return mock.run("sudo docker image ls --format '{{.Tag}}' provision/worker").output

        for number, left in ((1, "1"), (2, "1 2"), (3, "2 3")):
            report = run(mock, [*host, *worker(settings(), built(number), host=mock.host)])
            assert not report.failed, str(report)
            assert sorted(tags().split()) == left.split()
        assert mock.run("sudo docker image inspect ubuntu").status == 0


@pytest.mark.parametrize(
    "change",
    [
        'cp -R "$dir/lib64" "$dir/new" && rm -r "$dir/lib64" && mv "$dir/new" "$dir/lib64"',
        'umount "$dir" && mount --bind "$dir" "$dir"',
    ],
    ids=["installed again", "mounted noexec"],
)
@pytest.mark.slow
def test_interrupted_driver_folder_change_is_recovered(change: str) -> None:
    """The driver folder changed after the container was started, in a run that was interrupted."""
    with MockHost() as mock:
        wanted = settings(image=REF)
        before = run(mock, recipe(mock, wanted))
        assert not before.failed
        done = mock.run(f"sudo sh -c 'dir=$PROVISION_MOCK_ROOT/var/lib/nvidia; {change}'")
        assert done.status == 0, done.output
        container = next(each for each in recipe(mock, wanted) if each.name == "container")
        found = outcome(run(mock, [replace(container, needs=(), on_change_of=())]), "container")
        assert (found.status, [change.key for change in found.diff]) == (Status.CHANGED, ["driver"])


@pytest.mark.slow
def test_unset_thread_percentage_is_restored() -> None:
    with MockHost() as mock:
        wanted = settings(image=REF)
        half = wanted.model_copy(
            update={"mps": wanted.mps.model_copy(update={"thread_percentage": 50})}
        )
        run(mock, recipe(mock, wanted))
        assert not run(mock, mps(half)).failed
        again = outcome(run(mock, mps(wanted)), "mps")
        assert (again.status, [change.key for change in again.diff]) == (
            Status.CHANGED,
            ["thread_percentage"],
        )
        asked = mock.run(
            "sudo docker exec worker sh -c "
            "'echo get_default_active_thread_percentage | nvidia-cuda-mps-control'"
        )
        assert asked.output.strip().startswith("100")
