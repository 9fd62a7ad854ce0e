"""The file system of the lab, compared with Google's "Disks and file system overview" of COS."""

from __future__ import annotations

import pytest

from lab.host import Lab
from tests.lab.conftest import Ssh

EXECUTABLE = (
    "/var/lib/docker",
    "/var/lib/google",
    "/var/lib/toolbox",
    "/var/lib/cloud",
    "/etc",
    "/mnt/disks",
    "/run",
)
NOEXEC = (
    "/var",
    "/var/lib/nvidia",
    "/var/tmp",
    "/home",
    "/home/dev",
    "/tmp",
    "/mnt/stateful_partition",
)
READ_ONLY = ("/", "/root", "/mnt", "/usr", "/usr/local/bin", "/opt")


@pytest.fixture(scope="module", autouse=True)
def rebooted(lab: Lab) -> None:
    """Undo the mounts of recipes that other tests applied to the lab."""
    lab.reboot()


def run_from(ssh: Ssh, folder: str) -> int:
    """The status of a program in `folder`: 0 if it is executable there, else 126."""
    make = f'cd {folder} && printf "#!/bin/sh\\nexit 0\\n" >probe && chmod 755 probe'
    return ssh(f"sudo sh -c '{make} && {{ ./probe; E=$?; rm probe; exit $E; }}'").status


@pytest.mark.parametrize("folder", EXECUTABLE)
def test_programs_run_from_exec_folder(ssh: Ssh, folder: str) -> None:
    assert run_from(ssh, folder) == 0


@pytest.mark.parametrize("folder", NOEXEC)
def test_programs_do_not_run_from_noexec_folder(ssh: Ssh, folder: str) -> None:
    assert run_from(ssh, folder) == 126


@pytest.mark.parametrize("folder", READ_ONLY)
def test_root_cannot_write_to_read_only_folder(ssh: Ssh, folder: str) -> None:
    output = ssh(f"sudo touch {folder}/probe")
    assert output.status != 0
    assert "Read-only file system" in output.err


def test_shell_runs_script_from_noexec_folder(ssh: Ssh) -> None:
    assert (
        ssh("echo 'echo ran' >/home/dev/probe && sh /home/dev/probe; rm /home/dev/probe").out
        == "ran\n"
    )


def test_lab_identifies_as_cos(ssh: Ssh) -> None:
    lines = ssh("cat /etc/os-release").out.splitlines()
    assert "ID=cos" in lines
    assert "VERSION_ID=125" in lines
    assert any(line.startswith("BUILD_ID=") for line in lines)


def test_lab_has_no_python(ssh: Ssh) -> None:
    assert ssh("python3 -c 'print(1)'").status == 127
    assert ssh("command -v python3").out == ""


def test_lab_has_its_own_var(lab: Lab, ssh: Ssh) -> None:
    assert ssh("sudo sh -c 'echo mine >/var/lib/mine'").status == 0
    assert (lab.state.disk / "var/lib/mine").read_text() == "mine\n"
    assert ssh("test -e /var/lib/dpkg").status == 1


def test_no_mount_of_machine_is_visible(ssh: Ssh) -> None:
    targets = ssh("findmnt -rno TARGET").out.split()
    allowed = (
        "/proc",
        "/sys",
        "/dev",
        "/tmp",
        "/run",
        "/etc",
        "/mnt",
        "/var",
        "/home",
        "/root",
        "/usr",
    )
    assert [target for target in targets if target != "/" and not target.startswith(allowed)] == []


def test_no_process_of_machine_is_visible(ssh: Ssh) -> None:
    assert "/init" in ssh("tr '\\0' ' ' </proc/1/cmdline").out
    assert len(ssh("ls -d /proc/[0-9]*").out.split()) < 50


def test_gpu_is_on_pci_bus_without_driver(lab: Lab) -> None:
    if lab.gpu.real:
        pytest.skip("the machine's own driver is loaded before the lab is")
    lab.reset_disk()  # the connection goes with the machine
    found = lab.exec_inside(
        "sh", "-c", "grep -l 0x10de /sys/bus/pci/devices/*/vendor"
    ).stdout.split()
    assert len(found) == 1
    assert (
        lab.exec_inside("sh", "-c", "ls /dev/nvidia* /sys/module/nvidia", check=False).stdout == ""
    )


def test_orphans_are_reaped(ssh: Ssh) -> None:
    ssh("sh -c 'sleep 0.01 & exec true'; sleep 0.3")
    assert "Z" not in ssh("cat /proc/[0-9]*/stat | sed 's/.*) //' | cut -d ' ' -f 1").out
