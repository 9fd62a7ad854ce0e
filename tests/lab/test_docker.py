"""The lab's Docker Engine: the container behaviour on which the toolkit relies (docs/facts.md)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from lab.base_image import BaseImage
from lab.host import CommandResult, Lab

CLONE = ("c", "1", "3")
PROGRAM = """
mkdir -p /var/lib/trap
printf '#!/bin/sh\\necho ran\\n' >/var/lib/trap/it
chmod 755 /var/lib/trap/it
"""


@pytest.fixture
def docker(lab: Lab, image: BaseImage) -> Iterator[_Docker]:
    yield _Docker(lab, image.reference)
    lab.exec_inside(
        "sh",
        "-c",
        "docker ps -aq | xargs -r docker rm -f >/dev/null; rm -f /dev/probe; rm -rf /var/lib/trap",
    )


class _Docker:
    def __init__(self, lab: Lab, reference: str) -> None:
        self.lab = lab
        self.reference = reference

    def __call__(self, words: str, *, check: bool = True) -> CommandResult:
        return self.lab.exec_inside(
            "docker", *shlex.split(words.replace("IMAGE", self.reference)), check=check
        )

    def run(self, flags: str, command: str, *, check: bool = True) -> CommandResult:
        return self(
            f"run --rm --network host {flags} --entrypoint sh IMAGE -c {shlex.quote(command)}",
            check=check,
        )


def test_lab_has_its_own_docker_engine(docker: _Docker) -> None:
    output = docker(
        "info --format '{{.DockerRootDir}} {{.Name}} {{.DefaultRuntime}}'"
    ).stdout.split()
    assert output == ["/var/lib/docker", "lab", "clipped"]


def test_legacy_builder_builds_images(docker: _Docker, lab: Lab) -> None:
    dockerfile = (
        f"FROM {docker.reference}\nRUN id -u >/who && python -c 'print(6*7)' >/answer\nENV A=b\n"
    )
    built = lab.exec_inside("docker", "build", "--tag", "probe", "-", stdin=dockerfile.encode())
    assert "Step 2/3" in built.stdout
    assert docker("run --rm --network host --entrypoint cat probe /who /answer").stdout == "0\n42\n"
    newer = f"FROM {docker.reference}\nRUN --mount=type=cache,target=/x true\n"
    refused = lab.exec_inside("docker", "build", "-", stdin=newer.encode(), check=False)
    assert "--mount option requires BuildKit" in refused.stderr
    docker("rmi probe")


def test_container_has_given_devices(docker: _Docker, lab: Lab) -> None:
    lab.exec_inside("mknod", "-m", "666", "/dev/probe", *CLONE)
    assert (
        docker.run(
            "--device /dev/probe", "echo x >/dev/probe && test -c /dev/probe && echo written"
        ).stdout
        == "written\n"
    )
    assert docker.run("", "test -e /dev/probe", check=False).returncode == 1
    assert docker.run("--privileged", "test -c /dev/probe && echo seen").stdout == "seen\n"


def test_missing_device_prints_diagnosed_message(docker: _Docker) -> None:
    output = docker.run("--device /dev/nvidia9", "true", check=False)
    assert (
        output.returncode == 127
    )  # Docker's client makes it so, because the text contains "no such file"
    assert "error gathering device information" in output.stderr


def test_privileged_init_and_ulimit_flags_work(docker: _Docker) -> None:
    flags = "--privileged --init --ulimit nofile=16384:16384 --shm-size 1g"
    output = docker.run(flags, "cat /proc/1/comm; ulimit -Hn; df -k /dev/shm | tail -1")
    comm, limit, shm = output.stdout.splitlines()
    assert comm == "docker-init"
    assert limit == "16384"
    assert shm.split()[1] == str(1024 * 1024)


@pytest.mark.parametrize("flags", ["", "--privileged", "--init"])
def test_docker_exec_runs_program(docker: _Docker, flags: str) -> None:
    docker(f"run --detach --name probe --network host {flags} --entrypoint sleep IMAGE infinity")
    assert docker("exec probe sh -c 'echo in'").stdout == "in\n"
    assert docker("exec --privileged probe id -u").stdout == "0\n"
    assert docker("exec probe sh -c 'exit 9'", check=False).returncode == 9


def test_env_without_value_removes_variable(docker: _Docker) -> None:
    """Unless the client has it; so a program does not get a variable of its image."""
    docker(
        "run --detach --name probe --network host --env A=b --env C=d --entrypoint "
        "sleep IMAGE infinity"
    )
    assert (
        docker("exec --env A --env NONE probe sh -c 'echo ${A-none} $C ${NONE-none}'").stdout
        == "none d none\n"
    )
    assert (
        docker.run("--env PATH --env PYTHON_VERSION", "echo ${PYTHON_VERSION-none}").stdout
        == "none\n"
    )


def test_noexec_folder_is_executable_in_container_only_if_read_only(
    docker: _Docker, lab: Lab
) -> None:
    """With runc 1.1.5 a noexec host folder is executable if mounted `:ro`, not if read-write."""
    lab.exec_inside("sh", "-c", PROGRAM)
    assert lab.exec_inside("/var/lib/trap/it", check=False).returncode == 126
    assert docker.run("--volume /var/lib/trap:/probe:ro", "/probe/it").stdout == "ran\n"
    for flags in ("", "--privileged"):
        refused = docker.run(f"{flags} --volume /var/lib/trap:/probe", "/probe/it", check=False)
        assert refused.returncode == 126
        assert "Permission denied" in refused.stderr


def test_container_keeps_mount_options_of_its_start(docker: _Docker, lab: Lab) -> None:
    lab.exec_inside("sh", "-c", PROGRAM)
    docker(
        "run --detach --name probe --network host --volume /var/lib/trap:/probe "
        "--entrypoint sleep IMAGE infinity"
    )
    lab.exec_inside(
        "sh",
        "-c",
        "mount --bind /var/lib/trap /var/lib/trap && mount -o remount,exec /var/lib/trap",
    )
    try:
        assert docker("exec probe /probe/it", check=False).returncode == 126
        docker("restart --time 1 probe")
        assert docker("exec probe /probe/it").stdout == "ran\n"
    finally:
        docker("rm --force probe")
        lab.exec_inside("umount", "/var/lib/trap")


def test_volume_is_executable_and_var_folder_is_not(docker: _Docker) -> None:
    script = "printf '#!/bin/sh\\necho ran\\n' >/work/it; chmod 755 /work/it; /work/it"
    assert docker.run("--volume probe:/work", script).stdout == "ran\n"
    docker("volume rm probe")
    assert (
        docker.run(
            "--volume /home/dev:/work", f"{script}; E=$?; rm /work/it; exit $E", check=False
        ).returncode
        == 126
    )


def test_reboot_stops_containers_and_they_start_again(docker: _Docker, lab: Lab) -> None:
    docker(
        "run --detach --name probe --init --network host --restart no --entrypoint "
        "sleep IMAGE infinity"
    )
    lab.reboot()
    assert docker("container inspect -f '{{.State.Running}}' probe").stdout == "false\n"
    docker("start probe")
    assert docker("exec probe echo back").stdout == "back\n"


def test_systemctl_stops_and_starts_docker(lab: Lab) -> None:
    try:
        lab.exec_inside("systemctl", "stop", "docker")
        assert lab.exec_inside("docker", "version", check=False).returncode != 0
        assert (
            lab.exec_inside("systemctl", "is-active", "docker", check=False).stdout == "inactive\n"
        )
    finally:
        lab.exec_inside("systemctl", "start", "docker")
    assert lab.exec_inside("docker", "version", "--format", "{{.Server.Version}}").stdout.strip()
