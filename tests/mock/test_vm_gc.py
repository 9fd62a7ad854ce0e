"""VMs of killed runs: vm.list prints them, vm.create recovers them, vm.gc deletes them."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

from provision.cloud.lifecycle import orphans
from provision.cloud.lifecycle.context import new_request_id
from provision.cloud.lifecycle.journal import INTENT, MADE
from provision.commands.shared.result import TaskResult
from provision.commands.vm import gc as vm_gc_module
from provision.commands.vm.gc import vm_gc
from provision.core.errors import EXIT_WOULD_CHANGE, CloudError, UsageError
from tests.mock.workspace import ZONE, Workspace
from tests.specs import vm_spec

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]


def collect(
    workspace: Workspace, *, yes: bool = False, check: bool = False, every_key: bool = False
) -> TaskResult:
    return vm_gc(workspace.project, yes=yes, check=check, every_key=every_key, confirm=None)


def killed_after_insert(workspace: Workspace, zone: str) -> None:
    """Leave what a run leaves that was killed after it requested the VM."""
    project = workspace.project
    request_id = new_request_id()
    owner = project.ensure_owner()
    spec = vm_spec(ttl_s=None, labels={"provision-owner": owner, "provision-request": request_id})
    project.journal.intent(spec, zone, request_id)
    project.connect_cloud().create(spec, zone, request_id=request_id)


def test_gc_without_orphans_changes_nothing(workspace: Workspace) -> None:
    assert collect(workspace).document == {
        "strays": [],
        "deleted": [],
        "unseen": [],
        "changed": False,
    }
    workspace.create()
    done = collect(workspace, yes=True)
    assert (done.text, done.document["changed"]) == ("no orphans", False)
    assert workspace.listed() == [("dev", "RUNNING")]


def test_gc_deletes_vm_of_killed_run_after_confirmation(workspace: Workspace) -> None:
    killed_after_insert(workspace, "us-central1-b")
    assert workspace.listed() == [("dev", "RUNNING")]
    assert (
        workspace.notes[-1]
        == "dev was being created in us-central1-b when a run ended: `invoke vm.gc` checks it"
    )
    predicted = collect(workspace, check=True)
    assert predicted.exit_code == EXIT_WOULD_CHANGE
    assert predicted.text.splitlines()[1].split()[:3] == ["dev", "VM", "us-central1-b"]
    assert predicted.text.endswith("a run that ended early asked for it")
    with pytest.raises(UsageError, match="nothing was deleted"):
        collect(workspace)
    assert workspace.listed() == [("dev", "RUNNING")]
    done = collect(workspace, yes=True)
    assert (done.exit_code, done.text) == (0, "deleted the VM dev (us-central1-b)")
    assert workspace.listed() == []
    assert workspace.project.journal.open() == []


def test_create_recovers_vm_of_killed_run(workspace: Workspace) -> None:
    killed_after_insert(workspace, "us-central1-b")
    # The killed run had put no key into the VM's metadata: what matters here is which VM is taken.
    with pytest.raises(Exception, match="dev"):
        workspace.create(ssh_s=0.1, host_keys_s=0.1)
    assert [vm.zone for vm in workspace.project.connect_cloud().list({})] == ["us-central1-b"]
    assert [entry.state for entry in workspace.project.journal.open()] == [MADE]


def test_renamed_folder_creates_no_second_vm_and_deletes_none(
    workspace: Workspace,
) -> None:
    workspace.create()
    workspace.folder = workspace.folder.rename(workspace.folder.with_name("renamed"))
    workspace.settings = workspace.settings.model_copy(update={"zones": ("us-central1-b",)})
    with pytest.raises(CloudError, match="you have a VM named dev already") as caught:
        workspace.create()
    assert (caught.value.exit_code, caught.value.where) == (5, f"{ZONE}/dev")
    assert len(workspace.project.connect_cloud().list({})) == 1
    assert collect(workspace, yes=True).document["strays"] == []
    # The journal of the folder's old name still lists it as owned.
    assert collect(workspace, yes=True, every_key=True).document["strays"] == []


@pytest.mark.parametrize("late", ["search", "answer"])
def test_gc_keeps_vm_that_a_run_completes_meanwhile(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """The VM is listed while its run creates it; the run completes before the user confirms."""
    killed_after_insert(workspace, ZONE)
    real = orphans.fetch_orphans

    def meanwhile() -> None:
        journal = workspace.project.journal
        journal.mark(journal.open()[0].request_id, MADE)

    def fetch_orphans(*words: Any) -> Any:
        found = real(*words)
        assert [stray.name for stray in found.orphans] == ["dev"]
        if late == "search":
            meanwhile()
        return found

    def confirm(_question: str) -> bool:
        meanwhile()
        return True

    monkeypatch.setattr(vm_gc_module, "fetch_orphans", fetch_orphans)
    done = vm_gc(workspace.project, yes=False, check=False, confirm=confirm)
    assert done.document["deleted"] == []
    assert workspace.listed() == [("dev", "RUNNING")]


def test_orphans_of_lost_state_folder_need_every_key(workspace: Workspace) -> None:
    workspace.create()
    workspace.state_dir = workspace.state_dir.with_name("another state")
    assert collect(workspace, yes=True).document["strays"] == []
    (stray,) = collect(workspace, check=True, every_key=True).document["strays"]
    assert (stray["name"], stray["why"]) == ("dev", "no journal of this machine names it")
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    with pytest.raises(UsageError):
        vm_gc(workspace.project, yes=False, check=False, every_key=True, confirm=no)
    assert asked == [f"Delete 1 VM, created by any user with the login name {getpass.getuser()}?"]
    done = collect(workspace, yes=True, every_key=True)
    assert [gone["name"] for gone in done.document["deleted"]] == ["dev"]
    assert workspace.project.connect_cloud().list({}) == []


def test_gc_removes_record_and_pinned_keys(workspace: Workspace) -> None:
    workspace.create()
    project = workspace.project
    (entry,) = project.journal.open()
    with (project.home / "journal.jsonl").open("a", encoding="utf-8") as journal:
        journal.write(f'{{"state": "left-behind", "request_id": "{entry.request_id}"}}\n')
    assert INTENT not in {entry.state for entry in project.journal.open()}
    assert project.records.all() != []
    collect(workspace, yes=True)
    assert project.records.all() == []
