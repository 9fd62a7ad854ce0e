"""`idle_stop` on the mock: installed at creation, restored by a boot, powers an idle VM off."""

from __future__ import annotations

import pytest

from provision.commands.shared.targets import Targets
from provision.commands.vm.provision import vm_provision
from provision.commands.vm.serial import vm_serial
from provision.commands.vm.shared.wait_for_ssh import WaitLimits
from provision.commands.vm.start import vm_start
from provision.core.model import Host
from provision.recipes import host_recipe
from provision.testing import MockHost
from tests.mock.plain_client import eventually
from tests.mock.workspace import Workspace

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

LIMIT_S = 45 * 60
QUICK = WaitLimits(host_keys_s=5.0, ssh_s=20.0, pause_s=0.05, attributes_pause_s=0.05)
TIMER = "systemctl is-active provision-idle.timer"


@pytest.fixture
def idle(workspace: Workspace) -> Workspace:
    workspace.settings = workspace.settings.model_validate({"idle_stop": "45m"})
    made = workspace.create()
    assert made.exit_code == 0
    assert {
        result["resource"]: result["status"] for result in made.document["hosts"]["dev"]["results"]
    }["idle-stop"] == "ok"
    return workspace


def run_idle_check(host: MockHost, uptime_s: int) -> None:
    """Run the check that the timer runs every minute, at that uptime."""
    host.put("/proc/uptime", f"{uptime_s}.00 0.00\n")
    assert host.run("sudo systemctl start provision-idle.service").status == 0


def test_idle_vm_powers_itself_off(idle: Workspace) -> None:
    host = idle.cloud.host("dev")
    assert host.run(TIMER).output == "active\n", (
        "the first boot installed it, before any connection"
    )
    run_idle_check(host, 100)
    run_idle_check(host, 100 + LIMIT_S - 60)
    assert idle.listed() == [("dev", "RUNNING")]
    run_idle_check(host, 100 + LIMIT_S)
    assert eventually(lambda: idle.listed() == [("dev", "TERMINATED")])
    assert "not used for 45 min: powering off (idle_stop)" in vm_serial(idle.project, "dev").text

    started = vm_start(idle.project, "dev", limits=QUICK)
    assert started.exit_code == 0
    host = idle.cloud.host("dev")
    assert host.run(TIMER).output == "active\n", "the boot installed it again"
    run_idle_check(host, 50)
    assert idle.listed() == [("dev", "RUNNING")], "a boot counts as use"


def test_busy_gpu_keeps_vm_running(idle: Workspace) -> None:
    host = idle.cloud.host("dev")
    run_idle_check(host, 100)
    (host.state / "utilization.0").write_text("7")
    run_idle_check(host, 100 + LIMIT_S)
    assert not (host.state / "poweroff").exists()
    assert idle.listed() == [("dev", "RUNNING")]


def test_unreadable_gpu_keeps_vm_running_and_is_logged_to_console(idle: Workspace) -> None:
    host = idle.cloud.host("dev")
    run_idle_check(host, 100)
    program = host.path("/var/lib/nvidia/bin/nvidia-smi")
    program.unlink()
    program.write_text(
        "#!/bin/sh\necho 'Unable to determine the device handle for GPU0: Unknown Error'\nexit 15\n"
    )
    program.chmod(0o755)
    run_idle_check(host, 100 + LIMIT_S)
    run_idle_check(host, 160 + LIMIT_S)
    assert not (host.state / "poweroff").exists()
    assert idle.listed() == [("dev", "RUNNING")]
    printed = "provision: the GPU cannot be read (nvidia-smi ended with 15): it counts as used"
    assert eventually(lambda: vm_serial(idle.project, "dev").text.count(printed) == 1)


def test_idle_stop_is_removed_when_the_setting_is_removed(idle: Workspace) -> None:
    idle.settings = idle.settings.model_validate({})
    done = vm_provision(idle.project, Targets())
    assert (
        done.exit_code,
        {
            r["resource"]
            for r in done.document["hosts"]["dev"]["results"]
            if r["status"] == "changed"
        },
    ) == (
        0,
        {"boot-steps", "idle-stop"},
    )
    host = idle.cloud.host("dev")
    assert host.run(TIMER).output == "inactive\n"
    assert not host.path("/var/lib/provision/idle.sh").exists()


def test_host_of_the_settings_gets_no_idle_stop(workspace: Workspace) -> None:
    settings = workspace.settings.model_validate(
        {"idle_stop": "45m", "hosts": {"box": {"address": "box.invalid"}}}
    )
    for host, has in (
        (None, True),
        (Host(name="dev", address="a"), True),
        (Host(name="box", address="box.invalid"), False),
    ):
        names = [resource.name for resource in host_recipe(settings, workspace.folder, host=host)]
        assert ("idle-stop" in names) is has
