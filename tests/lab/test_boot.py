"""Boots of the lab: user-data applied by cloud-init, the boot unit, the boot script, reboots."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lab.base_image import BaseImage
from lab.host import Lab
from provision import templating
from provision.core.errors import Unreachable
from provision.core.facts import FACTS, read_facts
from provision.core.model import Status
from provision.core.resource import Resource
from provision.resources.boot import BOOT_TEXT, fragment_text
from tests.lab.conftest import Ssh, explain, summary

BOOT_UNIT = "provision-boot.service"


@pytest.fixture(params=["cloud-init", "small"])
def applier(request: pytest.FixtureRequest, lab: Lab) -> Iterator[str]:
    """User-data is applied by an unpacked cloud-init and by the lab's own program."""
    unpacked = lab.cloud_init
    if request.param == "cloud-init" and unpacked is None:
        pytest.skip("PROVISION_CLOUD_INIT names no unpacked cloud-init")
    lab.cloud_init = unpacked if request.param == "cloud-init" else None
    yield str(request.param)
    lab.cloud_init, lab.user_data = unpacked, ""


def seed(lab: Lab, recipe: list[Resource]) -> str:
    """User-data of a new machine, which carries the boot scripts."""
    facts = read_facts(lab.exec_inside("sh", "-c", "R=\n" + FACTS.render()).stdout)
    return templating.user_data(
        {"boot.sh": BOOT_TEXT, "boot.d/10-host.sh": fragment_text(recipe, facts)}
    )


@pytest.mark.usefixtures("image")
def test_user_data_provisions_new_machine(
    lab: Lab, applier: str, recipe: list[Resource], login: Callable[[], Ssh]
) -> None:
    lab.user_data = seed(lab, recipe)
    lab.reset_disk()
    assert lab.wait_for_unit(BOOT_UNIT) == "active", lab.exec_inside(
        "journalctl", "-u", BOOT_UNIT
    ).stdout
    assert lab.exec_inside("/var/lib/nvidia/bin/nvidia-smi", "-L").stdout.startswith("GPU 0: ")
    report = login().converge(recipe, check=True)
    assert summary(report)["driver"] is Status.OK, explain(report)
    assert summary(report)["driver-mount"] is Status.OK
    assert summary(report)["nvidia-smi"] is Status.OK


def test_user_data_is_applied_at_every_boot(lab: Lab, applier: str) -> None:
    lab.user_data = (
        "#cloud-config\nwrite_files:\n  - path: /etc/probe\n    permissions: '0640'\n  "
        "  content: from user-data\n"
        "runcmd:\n  - [sh, -c, 'echo ran >>/var/lib/probe-runs']\n  - echo a line "
        ">>/var/lib/probe-runs\n"
    )
    lab.reboot()
    lab.reboot()
    assert lab.exec_inside("cat", "/etc/probe").stdout == "from user-data"
    assert lab.exec_inside("stat", "-c", "%a", "/etc/probe").stdout == "640\n"
    assert lab.exec_inside("cat", "/var/lib/probe-runs").stdout == "ran\na line\n" * 2
    lab.user_data = ""
    lab.reboot()
    assert lab.exec_inside("test", "-e", "/etc/probe", check=False).returncode == 1
    lab.exec_inside("rm", "/var/lib/probe-runs")


def test_seed_keeps_newer_boot_script(lab: Lab, applier: str, image: BaseImage) -> None:
    lab.user_data = templating.user_data({"boot.sh": "#!/bin/sh\necho old >/run/which\n"})
    lab.reset_disk()
    lab.wait_for_unit(BOOT_UNIT)
    assert lab.exec_inside("cat", "/run/which").stdout == "old\n"
    lab.exec_inside("sh", "-c", "echo 'echo new >/run/which' >/var/lib/provision/boot.sh")
    lab.reboot()
    lab.wait_for_unit(BOOT_UNIT)
    assert lab.exec_inside("cat", "/run/which").stdout == "new\n"


def test_sudo_reboot_reboots_lab(lab: Lab, login: Callable[[], Ssh]) -> None:
    before = lab.exec_inside("cat", "/proc/sys/kernel/random/boot_id").stdout
    with suppress(Unreachable):  # the connection may go before the command has ended
        login()("sudo touch /etc/lost /run/lost /tmp/lost /var/lib/kept; sudo reboot")
    lab.wait_for_boot(after=before.strip())
    found = lab.exec_inside(
        "sh", "-c", "ls /etc/lost /run/lost /tmp/lost /var/lib/kept 2>/dev/null", check=False
    ).stdout
    assert found == "/var/lib/kept\n"
    assert login()("echo back").out == "back\n"
    lab.exec_inside("rm", "/var/lib/kept")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize("unit", ["provision-boot.service", "provision-host-keys.service"])
def test_systemd_accepts_units(unit: str, lab: Lab, tmp_path: Path) -> None:
    """The lab runs units with a stand-in of systemctl; here systemd verifies them."""
    lab.user_data = templating.user_data({})
    lab.reboot()
    text = lab.exec_inside("cat", f"/etc/systemd/system/{unit}").stdout
    lab.user_data = ""
    (tmp_path / unit).write_text(text)
    program = next(
        line.split("=", 1)[1].split()[1]
        for line in text.splitlines()
        if line.startswith("ExecStart=")
    )
    assert program.startswith("/")
    command = ["systemd-analyze", "verify", "--recursive-errors=no", str(tmp_path / unit)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (0, "")
