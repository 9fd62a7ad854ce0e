"""Logging in through OS Login, end to end: when the project, a policy or the settings want it."""

from __future__ import annotations

import pytest

from provision import app
from provision.app import Targets
from provision.app.state import VmRecords
from provision.errors import CloudError, Unreachable
from provision.testing.compute import http_error
from tests.mock.project import Project

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

FORCED = "Constraint constraints/compute.requireOsLogin violated for project mock-project. The metadata enable-oslogin must be TRUE."


def user(project: Project) -> str:
    record = VmRecords(project.session.home / "vms.json").get("dev")
    assert record is not None
    return record.user


def metadata(project: Project) -> dict[str, str]:
    (instance,) = project.cloud.emulator.instances("mock-project")
    return {item["key"]: item["value"] for item in instance["metadata"]["items"] if item["key"] != "user-data"}


def wanted(project: Project, value: str) -> None:
    project.settings = project.settings.model_copy(update={"os_login": value})


def test_auto_follows_the_project(project: Project) -> None:
    project.cloud.emulator.project_metadata["enable-oslogin"] = "TRUE"
    made = project.create()
    assert made.exit_code == 0
    assert user(project) == "me_example_com"
    assert metadata(project)["enable-oslogin"] == "TRUE"
    assert "ssh-keys" not in metadata(project)
    again = project.create()
    assert (again.exit_code, again.document["changed"]) == (0, False)
    assert app.vm_provision(project.session, Targets(check=True)).exit_code == 0


def test_a_project_that_says_nothing_gets_a_key_in_the_metadata(project: Project) -> None:
    assert project.create().exit_code == 0
    assert user(project) == "provision"
    assert (metadata(project)["enable-oslogin"], "ssh-keys" in metadata(project)) == ("FALSE", True)
    assert not any(api.startswith("oslogin") for api in project.cloud.emulator.counted())


def test_the_settings_may_want_it(project: Project) -> None:
    wanted(project, "on")
    assert project.create().exit_code == 0
    assert user(project) == "me_example_com"


def test_off_puts_a_key_into_the_instance_whatever_the_project_says(project: Project) -> None:
    project.cloud.emulator.project_metadata["enable-oslogin"] = "TRUE"
    wanted(project, "off")
    assert project.create().exit_code == 0
    assert user(project) == "provision"


def test_a_policy_that_forces_it_is_followed(project: Project) -> None:
    project.cloud.emulator.faults.add(http_error(412, "conditionNotMet", FORCED, times=1))
    made = project.create()
    assert made.exit_code == 0
    assert user(project) == "me_example_com"
    assert "a policy of the organisation wants OS Login: asking for the VM with it" in project.notes
    assert project.listed() == [("dev", "RUNNING")]


def test_a_policy_against_the_settings_is_an_error_that_names_the_key(project: Project) -> None:
    wanted(project, "off")
    project.cloud.emulator.faults.add(http_error(412, "conditionNotMet", FORCED, times=None))
    with pytest.raises(CloudError) as caught:
        project.create()
    assert caught.value.fix == "set provision.os_login: auto"
    assert "compute.requireOsLogin" in caught.value.why
    assert project.listed() == []


def test_an_existing_vm_is_entered_as_it_says_itself(project: Project) -> None:
    """The setting is for new VMs: what was made with a key keeps it."""
    project.create()
    wanted(project, "on")
    assert project.create().exit_code == 0
    assert user(project) == "provision"


def test_a_missing_role_is_named(project: Project) -> None:
    wanted(project, "on")
    project.create()
    project.cloud.host("dev").faults.refuse_auth = True
    with pytest.raises(Unreachable) as caught:
        project.create(ssh_s=0.2)
    assert "roles/compute.osAdminLogin" in caught.value.fix
    assert "OS Login is on for this VM" in caught.value.why


def test_a_copy_of_the_project_finds_the_user_name_itself(project: Project) -> None:
    wanted(project, "on")
    project.create()
    (project.session.home / "mock").mkdir()
    (project.session.home / "vms.json").unlink()
    (found,) = app.inventory_list(project.session).document["hosts"]
    assert found["user"] == "me_example_com"
    assert app.vm_provision(project.session, Targets(limit="state=running", check=True)).exit_code == 0
