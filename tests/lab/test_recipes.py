"""The toolkit's resources on the lab: first run, second run, and after a reboot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.base_image import BaseImage
from lab.host import Lab
from provision.core.model import HostReport, Status
from provision.core.resource import Resource
from provision.resources import (
    Container,
    Directory,
    ExecBindMount,
    File,
)
from provision.settings import Settings
from tests.lab.conftest import Ssh, explain, summary


def converged_twice(ssh: Ssh, resources: list[Resource]) -> None:
    """Assert that the first run changes everything and the second nothing, in one round trip."""
    first = ssh.converge(resources)
    assert set(summary(first).values()) == {Status.CHANGED}, explain(first)
    assert_unchanged(ssh.converge(resources))


def assert_unchanged(report: HostReport) -> None:
    assert report.error is None
    assert set(summary(report).values()) == {Status.OK}, explain(report)
    assert report.round_trips == 1


@pytest.fixture(scope="module")
def booted(lab: Lab) -> None:
    """Reset the lab's disk and boot it."""
    lab.reset_disk()


# --- single resources -----------------------------------------------------------------------------


@pytest.mark.usefixtures("booted")
class TestSingle:
    def test_files_and_folders_converge(self, ssh: Ssh) -> None:
        odd = '/var/lib/provision-probe/it\'s a "folder"\n$(touch /tmp/injected)/ü'
        resources: list[Resource] = [
            Directory(name="folder", path="/var/lib/provision-probe", mode="0750"),
            File(name="text", path=f"{odd}/file", content="one\ntwo\n", mode="0640"),
            File(name="bytes", path="/etc/probe", content=bytes(range(256)) * 800),
        ]
        converged_twice(ssh, resources)
        assert ssh("test -e /tmp/injected").status == 1
        ssh("sudo rm -r /var/lib/provision-probe")

    def test_full_disk_keeps_old_file(self, ssh: Ssh) -> None:
        ssh(
            "sudo sh -c 'mkdir -p /mnt/disks/small && mount -t tmpfs -o size=16k tmpfs "
            "/mnt/disks/small && echo old >/mnt/disks/small/file'"
        )
        report = ssh.converge(
            [File(name="large", path="/mnt/disks/small/file", content="x" * 60_000)]
        )
        assert summary(report) == {"large": Status.FAILED}
        assert report.outcomes[0].error is not None
        assert "No space left on device" in str(report.outcomes[0].error)
        assert "disk of the host is full" in str(report.outcomes[0].error)
        assert ssh("cat /mnt/disks/small/file; ls /mnt/disks/small | wc -l").out == "old\n1\n"
        ssh("sudo umount /mnt/disks/small")

    def test_stacked_exec_mount_is_reduced_to_one(self, ssh: Ssh) -> None:
        ssh(
            "sudo mkdir -p /var/lib/probe; for i in 1 2 3; do sudo mount --bind "
            "/var/lib/probe /var/lib/probe; done"
        )
        mount = ExecBindMount(name="mount", path="/var/lib/probe")
        converged_twice(ssh, [mount])
        assert ssh("findmnt -rno TARGET -M /var/lib/probe | wc -l").out == "1\n"
        ssh(
            "printf '#!/bin/sh\\necho ran\\n' | sudo tee /var/lib/probe/it >/dev/null; "
            "sudo chmod 755 /var/lib/probe/it"
        )
        assert ssh("/var/lib/probe/it").out == "ran\n"
        ssh("sudo umount /var/lib/probe; sudo rm -r /var/lib/probe")


# --- the host -------------------------------------------------------------------------------------


class TestHost:
    def test_check_changes_nothing(
        self, lab: Lab, login: Callable[[], Ssh], recipe: list[Resource]
    ) -> None:
        lab.reset_disk()
        report = login().converge(recipe, check=True)
        assert report.round_trips == 1
        assert summary(report)["driver"] is Status.CHANGED
        assert summary(report)["nvidia-smi"] is Status.UNKNOWN
        assert (
            lab.exec_inside(
                "sh", "-c", "ls /var/lib/provision /sys/module/nvidia", check=False
            ).stdout
            == ""
        )

    def test_second_run_of_recipe_changes_nothing(self, ssh: Ssh, recipe: list[Resource]) -> None:
        first = ssh.converge(recipe)
        assert not first.failed, explain(first)
        assert first.count(Status.UNKNOWN) + first.count(Status.SKIPPED) == 0
        assert {name for name, status in summary(first).items() if status is Status.CHANGED} >= {
            "driver",
            "driver-mount",
            "registry-login",
            "boot-unit",
        }
        assert_unchanged(ssh.converge(recipe))

    def test_driver_runs_from_driver_folder(self, ssh: Ssh) -> None:
        assert ssh(
            "LD_LIBRARY_PATH=/var/lib/nvidia/lib64 /var/lib/nvidia/bin/nvidia-smi -L"
        ).out.startswith("GPU 0: ")

    def test_docker_uses_registry_credentials(self, ssh: Ssh) -> None:
        assert '"gcr.io": "gcr"' in ssh("sudo cat /var/lib/provision/docker/config.json").out

    def test_boot_script_restores_host_after_reboot(
        self, lab: Lab, login: Callable[[], Ssh], recipe: list[Resource]
    ) -> None:
        lab.reboot()
        ssh = login()
        lost = ssh.converge(recipe, check=True)
        assert summary(lost)["driver"] is Status.CHANGED
        assert ssh("ls /dev/nvidia0").status != 0
        brought = ssh("sudo sh /var/lib/provision/boot.sh")
        assert brought.status == 0, brought.err
        assert_unchanged(ssh.converge(recipe))


# --- the worker -----------------------------------------------------------------------------------


class TestWorker:
    @pytest.fixture(autouse=True)
    def provisioned(self, ssh: Ssh, recipe: list[Resource]) -> None:
        report = ssh.converge(recipe)
        assert not report.failed, explain(report)

    def test_rendered_dockerfile_builds_and_container_runs(
        self, ssh: Ssh, recipe: list[Resource], worker_recipe: list[Resource]
    ) -> None:
        everything = [*recipe, *worker_recipe]
        first = ssh.converge(everything)
        assert not first.failed, explain(first)
        assert {summary(first)[name] for name in ("image", "container", "worker-steps")} == {
            Status.CHANGED
        }
        assert_unchanged(ssh.converge(everything))

    def test_container_programs_see_gpu_and_driver(self, ssh: Ssh, settings: Settings) -> None:
        inside = f"sudo docker exec {settings.worker.name} sh -c"
        assert ssh(f"{inside} 'nvidia-smi -L'").out.startswith("GPU 0: ")
        assert (
            ssh(
                f"{inside} 'test -c /dev/nvidia0 && test -c /dev/nvidiactl && test -c "
                "/dev/nvidia-uvm'"
            ).status
            == 0
        )
        assert ssh(f"{inside} 'touch /usr/local/nvidia/bin/x'").status != 0
        assert ssh(f"{inside} 'pwd; ulimit -Hn; cat /proc/1/comm'").out.split() == [
            "/workspace",
            "16384",
            "docker-init",
        ]
        assert (
            ssh(f"{inside} 'python -c \"import apache_beam; print(apache_beam.__version__)\"'").out
            == "2.77.0\n"
        )
        assert "/usr/local/nvidia/lib64" in ssh(f"{inside} 'echo $LD_LIBRARY_PATH'").out

    def test_workspace_files_are_executable(self, ssh: Ssh, settings: Settings) -> None:
        output = ssh(
            f"sudo docker exec -i {settings.worker.name} sh -c 'cat >it && chmod 755 "
            "it && ./it' <<'END'\n#!/bin/sh\necho executed\nEND\n"
        )
        assert output.out == "executed\n"

    def test_only_changed_settings_recreate_container(
        self,
        ssh: Ssh,
        settings: Settings,
        image: BaseImage,
        recipe: list[Resource],
        worker_recipe: list[Resource],
    ) -> None:
        before = ssh(f"sudo docker container inspect -f '{{{{.Id}}}}' {settings.worker.name}").out
        assert_unchanged(ssh.converge([*recipe, *worker_recipe]))
        assert (
            ssh(f"sudo docker container inspect -f '{{{{.Id}}}}' {settings.worker.name}").out
            == before
        )
        other = [
            Container(**{**vars(resource), "privileged": True})
            if isinstance(resource, Container)
            else resource
            for resource in worker_recipe
        ]
        report = ssh.converge([*recipe, *other])
        assert summary(report)["container"] is Status.CHANGED, explain(report)
        assert (
            ssh(
                f"sudo docker container inspect -f '{{{{.HostConfig.Privileged}}}}' "
                f"{settings.worker.name}"
            ).out
            == "true\n"
        )
        assert ssh(f"sudo docker exec {settings.worker.name} nvidia-smi -L").out.startswith("GPU 0")
        assert not ssh.converge([*recipe, *worker_recipe]).failed

    def test_boot_script_restores_worker_after_reboot(
        self,
        lab: Lab,
        login: Callable[[], Ssh],
        settings: Settings,
        recipe: list[Resource],
        worker_recipe: list[Resource],
    ) -> None:
        lab.reboot()
        ssh = login()
        brought = ssh("sudo sh /var/lib/provision/boot.sh")
        assert brought.status == 0, brought.err
        assert_unchanged(ssh.converge([*recipe, *worker_recipe]))
        assert ssh(f"sudo docker exec {settings.worker.name} nvidia-smi -L").out.startswith(
            "GPU 0: "
        )
