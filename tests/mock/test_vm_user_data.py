"""`vm.user-data` for a Container-Optimized OS machine that was created elsewhere."""

from __future__ import annotations

import pytest

from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.provision import vm_provision
from provision.commands.vm.user_data import vm_user_data
from provision.testing import MockHost
from tests.mock.workspace import Workspace

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

BOX = Targets(host="box")


def remark(done: TaskResult) -> str:
    (boot,) = [
        result
        for result in done.document["hosts"]["box"]["results"]
        if result["resource"] == "boot"
    ]
    assert boot["status"] == "ok"
    return str(boot.get("note", ""))


def test_user_data_restores_foreign_host_after_reboot(workspace: Workspace, cos: MockHost) -> None:
    where = cos.host
    entry = {
        "address": where.address,
        "port": where.port,
        "user": where.user,
        "identity": where.identity,
        "host_key": where.host_key,
    }
    workspace.settings = workspace.settings.model_validate(
        {"hosts": {"box": entry}, "idle_stop": "45m"}
    )
    first = vm_provision(workspace.project, BOX)
    assert first.exit_code == 0
    printed = remark(first)
    assert printed.startswith(
        "nothing brings this host back after a reboot: "
        "invoke vm.user-data > user-data && gcloud compute instances "
    )
    assert "add-metadata mock --zone mock --metadata-from-file user-data=user-data" in printed
    cos.reboot()
    assert vm_provision(workspace.project, Targets(host="box", check=True)).exit_code == 3, (
        "as the task printed"
    )

    text = vm_user_data(workspace.project).document["user_data"]
    assert text.startswith("#cloud-config")
    cos.put_user_data(text)
    assert remark(vm_provision(workspace.project, BOX)) == ""
    cos.reboot()
    assert cos.wait_for_unit("provision-boot.service") == "active"
    check = vm_provision(workspace.project, Targets(host="box", check=True))
    assert (check.exit_code, check.document["hosts"]["box"]["round_trips"]) == (0, 1)
    assert cos.run("systemctl is-active provision-idle.timer").output == "inactive\n", (
        "no host of the settings powers itself off"
    )


def test_vm_created_here_gets_no_user_data_note(workspace: Workspace) -> None:
    made = workspace.create()
    assert [
        result.get("note", "")
        for result in made.document["hosts"]["dev"]["results"]
        if result["resource"] == "boot"
    ] == [""]
