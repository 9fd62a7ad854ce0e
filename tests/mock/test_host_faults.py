"""Faults on a host: each is reported, and the next run converges."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provision import templating
from provision.core import engine
from provision.core.errors import CommandFailed, CommandTimeout, ProvisionError, Unreachable
from provision.core.model import Event, HostReport, Outcome, OutputLine, Status
from provision.core.resource import Resource
from provision.hosts.known_hosts import KnownHosts
from provision.hosts.ssh import connection
from provision.recipes import gpu_host
from provision.resources import Driver, File, Gpu, NvidiaSmi
from provision.settings import Settings
from provision.testing import MockHost

pytestmark = pytest.mark.slow


@pytest.fixture
def host() -> Iterator[MockHost]:
    with MockHost() as mock:
        yield mock


def run(
    mock: MockHost,
    resources: Sequence[Resource],
    events: list[Event] | None = None,
    *,
    check: bool = False,
) -> HostReport:
    transport = connection.connect(
        mock.host, known_hosts=KnownHosts(Path("/nonexistent/known_hosts"))
    )
    try:
        return engine.converge(
            transport,
            resources,
            (events if events is not None else []).append,
            clock=time.monotonic,
            check=check,
        )
    finally:
        transport.close()


def recipe(mock: MockHost, **settings: str) -> list[Resource]:
    """The host's recipe, with a driver that retries without pauses."""
    made = Settings.from_levels([]).model_copy(update=settings)
    resources = gpu_host(made, host=mock.host, boot_unit=templating.boot_unit(project_dir=None))
    return [
        replace(each, pause_s=0.0, lock_tries=3) if isinstance(each, Driver) else each
        for each in resources
    ]


def outcome(report: HostReport, name: str) -> Outcome:
    return next(each for each in report.outcomes if each.resource == name)


def message(report: HostReport, name: str) -> ProvisionError:
    found = outcome(report, name)
    assert found.status is Status.FAILED
    assert found.error is not None
    return found.error


def was_dropped(mock: MockHost) -> bool:
    """Return whether the connection was dropped: that fault happens once and clears itself."""
    return mock.faults.cut_after_output is None


INSTALLER = {
    "installer_lock": ("another installer kept running on the host", "is locked"),
    "installer_no_egress": (
        "the driver could not be downloaded: no route out, no storage scope, or no such build",
        "Failed to download",
    ),
    "installer_signature": (
        "the driver could not be downloaded: no route out, no storage scope, or no such build",
        "signature",
    ),
    "installer_docker_timeout": (
        "the installer image could not be pulled: no route out, or Docker was not ready",
        "125",
    ),
    "installer_insmod": (
        "the kernel refused the modules: wrong flavour, Secure Boot, or an old version is loaded",
        "insmod",
    ),
    "installer_verify": (
        (
            "nvidia-smi failed after the installation: "
            "a cached driver of another version, or the GPU is lost"
        ),
        "exit status 255",
    ),
    "installer_dev_image": (
        "GPU drivers are not offered on dev images",
        "not supported on dev images",
    ),
}


@pytest.mark.parametrize("fault", INSTALLER)
def test_installer_failure_is_explained_and_next_run_converges(host: MockHost, fault: str) -> None:
    host.faults.set(fault)
    error = message(report := run(host, recipe(host)), "driver")
    what, verbatim = INSTALLER[fault]
    assert error.what == what
    assert verbatim in error.why
    assert error.fix
    assert outcome(report, "nvidia-smi").status is Status.SKIPPED
    host.faults.clear(fault)
    if fault in {"installer_insmod", "installer_verify"}:
        host.reboot()
    again = run(host, recipe(host))
    assert not again.failed
    assert again.count(Status.OK) + again.count(Status.CHANGED) == len(again.outcomes)


def test_locked_installer_is_retried_and_each_try_is_printed(host: MockHost) -> None:
    host.faults.set("installer_lock")
    events: list[Event] = []
    run(host, recipe(host), events)
    tries = [
        event.text
        for event in events
        if isinstance(event, OutputLine) and event.text.startswith("trying again")
    ]
    assert tries == ["trying again in 0 s (2 of 3)", "trying again in 0 s (3 of 3)"]


def test_missing_driver_for_the_os_build_is_reported(host: MockHost) -> None:
    error = message(run(host, recipe(host, driver="111.22.33")), "driver")
    assert error.what == "the wanted driver does not exist for this build of the OS"
    assert "111.22.33" in error.why
    assert error.fix.startswith("cos-extensions list")


def test_loaded_driver_of_another_version_requires_reboot(host: MockHost) -> None:
    assert not run(host, recipe(host)).failed
    other = recipe(host, driver="535.288.01")
    error = message(run(host, other), "driver")
    assert error.what == "another driver version is loaded; the new one needs a reboot"
    host.reboot()
    assert not run(host, other).failed
    assert "535.288.01" in host.run("cat $PROVISION_MOCK_ROOT/sys/module/nvidia/version").output


def test_driver_label_is_resolved_once(host: MockHost) -> None:
    run(host, recipe(host, driver="latest"))
    record = host.run("cat $PROVISION_MOCK_ROOT/var/lib/provision/driver").output
    assert "asked=latest\n" in record
    version = record.partition("version=")[2].split("\n")[0]
    host.reboot()
    events: list[Event] = []
    host.run("sudo rm -f $PROVISION_MOCK_ROOT/sys/module/nvidia/version")
    run(host, recipe(host, driver="latest"), events)
    printed = "\n".join(event.text for event in events if isinstance(event, OutputLine))
    assert "Getting the latest" not in printed
    assert not printed or version in printed


def test_host_without_gpu_fails_the_driver_resource() -> None:
    with MockHost(gpu=None) as mock:
        report = run(mock, recipe(mock))
        error = message(report, "gpu")
        assert error.what == "the host has 0 NVIDIA GPUs, 1 wanted"
        assert error.fix.startswith("invoke vm.show")
        acted = [each.resource for each in report.outcomes if each.status is not Status.SKIPPED]
        assert acted == ["boot", "gpu"]
        assert report.round_trips == 1


def test_sudo_with_password_is_reported(host: MockHost) -> None:
    host.faults.set("sudo_password")
    report = run(host, recipe(host))
    assert isinstance(report.error, CommandFailed)
    assert report.error.what == "sudo refuses to run the script without a password"
    assert "NOPASSWD" in report.error.fix
    assert report.count(Status.UNKNOWN) == len(report.outcomes)


def test_full_disk_keeps_old_file(host: MockHost) -> None:
    first = File(name="note", path="/var/lib/thing/note", content="old\n")
    second = replace(first, content="new\n" * 100)
    assert not run(host, [first]).failed
    host.faults.disk_full = True
    error = message(run(host, [second]), "note")
    assert error.what == "the disk of the host is full"
    assert "No space left on device" in error.why
    host.faults.disk_full = False
    assert host.run("cat $PROVISION_MOCK_ROOT/var/lib/thing/note").output == "old\n"
    assert not run(host, [second]).failed


def test_missing_command_is_reported(host: MockHost) -> None:
    host.run("rm $(command -v docker)")
    error = message(run(host, recipe(host)), "docker")
    assert error.what == "this host has no Docker"
    assert "docker: not found" in error.why


def test_hanging_command_is_ended_by_its_timeout(host: MockHost) -> None:
    class Endless(Gpu):
        def ensure(self, facts: object) -> Callable[..., object]:  # type: ignore[override]
            from provision.core.shell import script

            return script('echo "still here"\nsleep 61.735')  # type: ignore[return-value]

    report = run(host, [Endless(name="endless", count=5, timeout_s=0.5)])
    error = outcome(report, "endless").error
    assert isinstance(error, CommandTimeout)
    assert "no end after 0.5 s" in error.why
    assert "still here" in error.why
    assert host.run("ps -e -o args | grep -c '[s]leep 61.735'").output.strip() == "0"


def test_failing_nvidia_smi_is_reported(host: MockHost) -> None:
    assert not run(host, recipe(host)).failed
    host.faults.set("nvidia_smi")
    error = message(run(host, recipe(host)), "nvidia-smi")
    assert error.what.startswith("nvidia-smi does not run: ")


def test_noexec_driver_folder_is_remounted(host: MockHost) -> None:
    resources = [each for each in recipe(host) if not isinstance(each, NvidiaSmi)]
    assert not run(host, resources).failed
    host.run("sudo umount $PROVISION_MOCK_ROOT/var/lib/nvidia")
    error = message(run(host, [NvidiaSmi(name="nvidia-smi")]), "nvidia-smi")
    assert "mounted noexec" in error.what
    assert not run(host, recipe(host)).failed


def test_stacked_mount_is_removed(host: MockHost) -> None:
    run(host, recipe(host))
    for _ in range(2):
        host.run(
            "sudo mount --bind "
            "$PROVISION_MOCK_ROOT/var/lib/nvidia $PROVISION_MOCK_ROOT/var/lib/nvidia"
        )
    report = run(host, recipe(host))
    assert outcome(report, "driver-mount").status is Status.CHANGED
    assert (
        host.run(
            "findmnt -rno TARGET -M $PROVISION_MOCK_ROOT/var/lib/nvidia | wc -l"
        ).output.strip()
        == "1"
    )


@pytest.mark.parametrize("at", [0, 1, 30, 200, 700, 1500, 2600, 4000, 7000])
def test_dropped_connection_is_reported_and_next_run_converges(host: MockHost, at: int) -> None:
    resources = recipe(host)
    host.faults.cut_after_output = at
    report = run(host, resources)
    if was_dropped(host):
        assert isinstance(report.error, Unreachable)
        for each in report.outcomes:
            assert each.status is not Status.FAILED
        assert report.count(Status.UNKNOWN) > 0
    host.faults.cut_after_output = None
    assert not run(host, resources).failed
    again = run(host, resources)
    assert (again.count(Status.OK), again.round_trips) == (len(resources), 1)


def test_login_shell_output_and_flooded_stderr_are_ignored(
    host: MockHost,
) -> None:
    host.faults.login_noise = "Welcome!\n:0123:\n"
    host.faults.stderr_flood = 2_000_000
    report = run(host, recipe(host))
    assert not report.failed


def test_check_mode_writes_nothing(host: MockHost) -> None:
    digest = (
        "cd $PROVISION_MOCK_ROOT && find . -type f -newer /proc/1 2>/dev/null"
        " | sort | xargs sha256sum | sha256sum"
    )
    before = host.run(digest).output
    report = run(host, recipe(host), check=True)
    after = host.run(digest).output
    assert before == after
    assert report.round_trips == 1
    assert outcome(report, "driver").status is Status.CHANGED
    assert outcome(report, "nvidia-smi").status is Status.UNKNOWN
