"""OS Login, end to end: enabled by the project, by a policy, or by the settings."""

from __future__ import annotations

import time

import pytest

from provision.commands.inventory.list import inventory_list
from provision.commands.shared.targets import Targets
from provision.commands.vm.delete import vm_delete
from provision.commands.vm.gc import vm_gc
from provision.commands.vm.provision import vm_provision
from provision.core.errors import EXIT_LEFT_BEHIND, EXIT_UNREACHABLE, CloudError, Unreachable
from provision.project import login
from provision.testing.compute import http_error
from tests.mock.workspace import Workspace

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

FORCED = (
    "Constraint constraints/compute.requireOsLogin violated for project mock-project. "
    "The metadata enable-oslogin must be TRUE."
)


def user(workspace: Workspace) -> str:
    record = workspace.project.records.get("dev")
    assert record is not None
    return record.user


def metadata(workspace: Workspace) -> dict[str, str]:
    (instance,) = workspace.cloud.emulator.instances("mock-project")
    return {
        item["key"]: item["value"]
        for item in instance["metadata"]["items"]
        if item["key"] != "user-data"
    }


def set_os_login(workspace: Workspace, value: str) -> None:
    workspace.settings = workspace.settings.model_copy(update={"os_login": value})


def test_auto_follows_project_metadata(workspace: Workspace) -> None:
    workspace.cloud.emulator.project_metadata["enable-oslogin"] = "TRUE"
    made = workspace.create()
    assert made.exit_code == 0
    assert user(workspace) == "me_example_com"
    assert metadata(workspace)["enable-oslogin"] == "TRUE"
    assert "ssh-keys" not in metadata(workspace)
    again = workspace.create()
    assert (again.exit_code, again.document["changed"]) == (0, False)
    assert vm_provision(workspace.project, Targets(check=True)).exit_code == 0


def test_auto_without_project_metadata_puts_key_into_metadata(workspace: Workspace) -> None:
    assert workspace.create().exit_code == 0
    assert user(workspace) == "provision"
    assert (metadata(workspace)["enable-oslogin"], "ssh-keys" in metadata(workspace)) == (
        "FALSE",
        True,
    )
    assert not any(api.startswith("oslogin") for api in workspace.cloud.emulator.call_ids())


def test_on_enables_os_login(workspace: Workspace) -> None:
    set_os_login(workspace, "on")
    assert workspace.create().exit_code == 0
    assert user(workspace) == "me_example_com"


def test_off_puts_key_into_metadata_despite_project(workspace: Workspace) -> None:
    workspace.cloud.emulator.project_metadata["enable-oslogin"] = "TRUE"
    set_os_login(workspace, "off")
    assert workspace.create().exit_code == 0
    assert user(workspace) == "provision"


def test_enforced_os_login_policy_is_followed(workspace: Workspace) -> None:
    workspace.cloud.emulator.faults.add(http_error(412, "conditionNotMet", FORCED, times=1))
    made = workspace.create()
    assert made.exit_code == 0
    assert user(workspace) == "me_example_com"
    assert (
        "a policy of the organisation demands OS Login: requesting the VM with it"
        in workspace.notes
    )
    assert workspace.listed() == [("dev", "RUNNING")]


def test_policy_against_off_is_error_with_setting_as_remedy(workspace: Workspace) -> None:
    set_os_login(workspace, "off")
    workspace.cloud.emulator.faults.add(http_error(412, "conditionNotMet", FORCED, times=None))
    with pytest.raises(CloudError) as caught:
        workspace.create()
    assert caught.value.fix == "set provision.os_login: auto"
    assert "compute.requireOsLogin" in caught.value.why
    assert workspace.listed() == []


def test_login_to_existing_vm_follows_its_own_metadata(workspace: Workspace) -> None:
    """The setting applies to new VMs; a VM created with a key keeps it."""
    workspace.create()
    set_os_login(workspace, "on")
    assert workspace.create().exit_code == 0
    assert user(workspace) == "provision"


def test_missing_os_login_role_is_explained(workspace: Workspace) -> None:
    set_os_login(workspace, "on")
    workspace.create()
    workspace.cloud.host("dev").faults.refuse_auth = True
    with pytest.raises(Unreachable) as caught:
        workspace.create(ssh_s=0.2)
    assert "roles/compute.osAdminLogin" in caught.value.fix
    assert "OS Login is on for this VM" in caught.value.why


def test_project_copy_requests_login_user(workspace: Workspace) -> None:
    set_os_login(workspace, "on")
    workspace.create()
    (workspace.project.home / "mock").mkdir()
    (workspace.project.home / "vms.json").unlink()
    (found,) = inventory_list(workspace.project).document["hosts"]
    assert found["user"] == "me_example_com"
    assert (
        vm_provision(workspace.project, Targets(limit="state=running", check=True)).exit_code == 0
    )


# --- the key has an end ---------------------------------------------------------------------------

DAY_S = 86_400


def provision_exit_code(workspace: Workspace) -> int:
    return vm_provision(workspace.project, Targets(check=True)).exit_code


def advance_clocks(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """Advance the clocks of this machine and of the cloud."""
    at = login.now() + days * DAY_S
    monkeypatch.setattr(login, "now", lambda: at)
    workspace.cloud.emulator.clock.advance(days * DAY_S)


@pytest.fixture
def forever(workspace: Workspace) -> Workspace:
    """A VM without a time limit, which outlives the imported key."""
    workspace.settings = workspace.settings.model_copy(update={"os_login": "on", "ttl": "none"})
    workspace.create()
    return workspace


def test_key_is_imported_for_30_days(forever: Workspace) -> None:
    ((account, keys),) = forever.cloud.emulator.logins.snapshot().items()
    (key,) = keys.values()
    imported = login.recorded_login(forever.project)
    assert imported is not None
    assert (imported.account, imported.user, imported.key.split("/")[1]) == (
        account,
        "me_example_com",
        account,
    )
    assert int(key["expirationTimeUsec"]) == imported.expires_s * 1_000_000
    assert 29 * DAY_S < imported.expires_s - time.time() <= 30 * DAY_S


def test_expired_key_cannot_log_in(forever: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert provision_exit_code(forever) == 0
    advance_clocks(forever, monkeypatch, 31)
    monkeypatch.setattr(login, "renew_imported_key", lambda project: None)
    assert provision_exit_code(forever) == EXIT_UNREACHABLE


@pytest.mark.parametrize("days", [24, 31])
def test_task_renews_key_in_its_last_week_and_after(
    forever: Workspace, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    forever.cloud.emulator.calls.clear()
    assert provision_exit_code(forever) == 0
    assert forever.cloud.emulator.call_ids() == []
    advance_clocks(forever, monkeypatch, days)
    assert provision_exit_code(forever) == 0
    assert "oslogin.users.sshPublicKeys.patch" in forever.cloud.emulator.call_ids()
    imported = login.recorded_login(forever.project)
    assert imported is not None
    assert imported.expires_s == int(login.now()) + 30 * DAY_S


def test_failed_renewal_is_printed_and_task_continues(
    forever: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance_clocks(forever, monkeypatch, 24)
    forever.cloud.emulator.faults.add(
        http_error(403, "forbidden", "not you", call="oslogin.*", times=None)
    )
    assert provision_exit_code(forever) == 0
    (note,) = [note for note in forever.notes if "login profile" in note]
    assert note.startswith(
        "this project's key in your login profile expires in 5 days, and it was not renewed: "
    )
    assert "not you" in note


def test_gc_removes_imported_key_when_no_vm_is_left(forever: Workspace) -> None:
    logins = forever.cloud.emulator.logins
    assert vm_gc(forever.project, yes=True, check=False, confirm=None).document["strays"] == []
    vm_delete(forever.project, "dev", yes=True, confirm=None)
    seen = vm_gc(forever.project, yes=False, check=True, confirm=None)
    assert (
        seen.exit_code,
        [stray["kind"] for stray in seen.document["strays"]],
        len(logins.keys),
    ) == (3, ["key"], 1)
    done = vm_gc(
        forever.project,
        yes=False,
        check=False,
        confirm=lambda question: question == "Delete 1 key?",
    )
    assert (done.exit_code, logins.keys) == (0, ())
    assert done.text == "deleted the key me@example.com (OS Login)"
    assert vm_gc(forever.project, yes=True, check=False, confirm=None).text == "no orphans"
    assert forever.create().exit_code == 0


def test_failed_key_removal_is_reported(forever: Workspace) -> None:
    vm_delete(forever.project, "dev", yes=True, confirm=None)
    forever.cloud.emulator.faults.add(
        http_error(403, "forbidden", "not you", call="oslogin.*", times=None)
    )
    done = vm_gc(forever.project, yes=True, check=False, confirm=None)
    assert done.exit_code == EXIT_LEFT_BEHIND
    assert "gcloud compute os-login ssh-keys remove --key-file" in done.document["error"]["fix"]
    assert login.recorded_login(forever.project) is not None
