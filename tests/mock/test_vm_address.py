"""A VM that does not answer: stopped, deleted, or reached at its new address."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from provision.cloud.api.gce import GceCloud
from provision.cloud.lifecycle.context import new_request_id
from provision.commands.dev.exec import dev_exec
from provision.commands.shared.targets import Targets
from provision.commands.vm.provision import vm_provision
from provision.commands.vm.ssh import vm_ssh
from provision.core.errors import EXIT_UNREACHABLE, Unreachable
from provision.project.records import VmRecord, VmRecords
from provision.settings.model import HostSettings
from provision.testing.compute import http_error
from tests.mock.workspace import ZONE, Workspace

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
CHECK = Targets(check=True)


def records(workspace: Workspace) -> VmRecords:
    return workspace.project.records


def record(workspace: Workspace) -> VmRecord:
    found = records(workspace).get("dev")
    assert found is not None
    return found


def refused(workspace: Workspace) -> Unreachable:
    with pytest.raises(Unreachable) as caught:
        dev_exec(workspace.project, Targets(), ["true"])
    assert caught.value.exit_code == EXIT_UNREACHABLE
    return caught.value


def test_stopped_vm_is_reported_as_stopped(workspace: Workspace) -> None:
    workspace.create()
    workspace.stop()
    error = refused(workspace)
    assert (error.what, error.where, error.fix) == (
        "the VM does not run",
        "dev",
        "invoke vm.start --name dev",
    )
    first, second = error.why.splitlines()
    assert first.startswith(f"it is TERMINATED in {ZONE}, stopped 20")
    assert second.startswith("no SSH connection to provision@127.0.0.1 port ")
    done = vm_provision(workspace.project, CHECK)
    assert done.document["hosts"]["dev"]["error"]["what"] == "the VM does not run"


@pytest.mark.skipif(shutil.which("ssh") is None, reason="this machine has no ssh")
def test_vm_ssh_reports_stopped_vm(workspace: Workspace) -> None:
    workspace.create()
    workspace.stop()
    with pytest.raises(Unreachable, match="the VM does not run"):
        vm_ssh(workspace.project, Targets(), ["true"])


def test_moved_vm_is_reached_at_new_address(workspace: Workspace) -> None:
    """After a stop and a start a VM has another external address."""
    workspace.create()
    address = record(workspace).address
    records(workspace).put(replace(record(workspace), address="127.0.0.9"))
    assert vm_provision(workspace.project, CHECK).exit_code == 0
    assert workspace.notes[-1] == f"it is at {address} by now, no longer at 127.0.0.9"
    assert record(workspace).address == address
    workspace.cloud.emulator.calls.clear()
    assert vm_provision(workspace.project, CHECK).exit_code == 0
    assert workspace.cloud.emulator.call_ids() == []


def test_deleted_vm_is_reported_as_gone(workspace: Workspace) -> None:
    workspace.create()
    workspace.project.connect_cloud().delete("dev", ZONE, request_id=new_request_id())
    error = refused(workspace)
    assert (error.what, error.fix) == ("the VM is gone", "invoke vm.create --name dev")
    assert error.why.startswith(
        f"there is none in {ZONE}; this one was {record(workspace).instance_id}\n"
    )


def test_original_error_stays_when_cloud_does_not_answer(workspace: Workspace) -> None:
    workspace.create()
    workspace.stop()
    workspace.cloud.emulator.faults.add(
        http_error(403, "forbidden", "not you", call="instances.get", times=None)
    )
    assert refused(workspace).what.startswith("no SSH connection to provision@127.0.0.1")


def test_original_error_stays_for_running_vm_at_same_address(workspace: Workspace) -> None:
    workspace.create()
    workspace.cloud.host("dev").faults.refuse_auth = True
    assert refused(workspace).what.startswith("no key is accepted")


def test_unreachable_host_of_the_settings_sends_no_request(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.create()
    workspace.settings = workspace.settings.model_copy(
        update={"hosts": {"dev": HostSettings(address="127.0.0.9", port=9, host_key=None)}}
    )
    monkeypatch.setattr(GceCloud, "get", lambda *_: pytest.fail("the cloud was asked"))
    assert refused(workspace).what.startswith("no SSH connection to")
