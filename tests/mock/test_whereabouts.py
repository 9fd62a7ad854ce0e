"""A VM that is not reached: what the cloud knows of it is said, and a VM that moved is found again."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from provision import app
from provision.app import Targets
from provision.app.clouds import cloud_of
from provision.app.state import VmRecord, VmRecords
from provision.cloud.create import new_request_id
from provision.cloud.gce import GceCloud
from provision.errors import EXIT_UNREACHABLE, Unreachable
from provision.settings.model import HostSettings
from provision.testing.compute import http_error
from tests.mock.project import ZONE, Project

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
CHECK = Targets(check=True)


def records(project: Project) -> VmRecords:
    return VmRecords(project.session.home / "vms.json")


def record(project: Project) -> VmRecord:
    found = records(project).get("dev")
    assert found is not None
    return found


def refused(project: Project) -> Unreachable:
    with pytest.raises(Unreachable) as caught:
        app.dev_exec(project.session, Targets(), ["true"])
    assert caught.value.exit_code == EXIT_UNREACHABLE
    return caught.value


def test_a_vm_that_stopped_is_said_to_have(project: Project) -> None:
    project.create()
    project.stop()
    error = refused(project)
    assert (error.what, error.where, error.fix) == ("the VM does not run", "dev", "invoke vm.start --name dev")
    first, second = error.why.splitlines()
    assert first.startswith(f"it is TERMINATED in {ZONE}, stopped 20")
    assert second.startswith("no SSH connection to provision@127.0.0.1 port ")
    done = app.vm_provision(project.session, CHECK)
    assert done.document["hosts"]["dev"]["error"]["what"] == "the VM does not run"


@pytest.mark.skipif(shutil.which("ssh") is None, reason="this machine has no ssh")
def test_vm_ssh_says_so_too(project: Project) -> None:
    project.create()
    project.stop()
    with pytest.raises(Unreachable, match="the VM does not run"):
        app.vm_ssh(project.session, Targets(), ["true"])


def test_a_vm_at_another_address_is_found_there(project: Project) -> None:
    """Somebody stopped and started it: an external address is another one after that."""
    project.create()
    address = record(project).address
    records(project).put(replace(record(project), address="127.0.0.9"))
    assert app.vm_provision(project.session, CHECK).exit_code == 0
    assert project.notes[-1] == f"it is at {address} by now, no longer at 127.0.0.9"
    assert record(project).address == address
    project.cloud.emulator.calls.clear()
    assert app.vm_provision(project.session, CHECK).exit_code == 0
    assert project.cloud.emulator.counted() == []


def test_a_vm_that_is_gone_is_said_to_be(project: Project) -> None:
    project.create()
    cloud_of(project.session).delete("dev", ZONE, request_id=new_request_id())
    error = refused(project)
    assert (error.what, error.fix) == ("the VM is gone", "invoke vm.create --name dev")
    assert error.why.startswith(f"there is none in {ZONE}; this one was {record(project).instance_id}\n")


def test_a_cloud_that_does_not_say_changes_nothing(project: Project) -> None:
    project.create()
    project.stop()
    project.cloud.emulator.faults.add(http_error(403, "forbidden", "not you", call="instances.get", times=None))
    assert refused(project).what.startswith("no SSH connection to provision@127.0.0.1")


def test_a_vm_that_runs_and_refuses_is_left_with_its_own_words(project: Project) -> None:
    project.create()
    project.cloud.host("dev").faults.refuse_auth = True
    assert refused(project).what.startswith("no key is accepted")


def test_for_a_host_of_the_settings_nobody_is_asked(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.create()
    project.settings = project.settings.model_copy(update={"hosts": {"dev": HostSettings(address="127.0.0.9", port=9, host_key=None)}})
    monkeypatch.setattr(GceCloud, "get", lambda *_: pytest.fail("the cloud was asked"))
    assert refused(project).what.startswith("no SSH connection to")
