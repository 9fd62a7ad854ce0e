"""What a killed run leaves, through the use cases: vm.list names it, vm.create takes it up, vm.gc removes it."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

from provision import app
from provision.app import Done
from provision.app.clouds import cloud_of, journal_of, owner_of
from provision.app.state import VmRecords
from provision.app.vm import garbage as vm_garbage
from provision.cloud import strays
from provision.cloud.create import new_request_id
from provision.cloud.journal import INTENT, MADE
from provision.errors import EXIT_WOULD_CHANGE, CloudError, UsageError
from provision.hosts.keys import ensure_key
from tests.mock.project import ZONE, Project
from tests.specs import vm_spec

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]


def collect(project: Project, *, yes: bool = False, check: bool = False, every_key: bool = False) -> Done:
    return app.vm_gc(project.session, yes=yes, check=check, every_key=every_key, confirm=None)


def killed_after_insert(project: Project, zone: str) -> None:
    """The state of the world after a run that asked for the VM and was killed before it saw it."""
    session = project.session
    request_id = new_request_id()
    owner = owner_of(ensure_key(session.home / "key"))
    spec = vm_spec(ttl_s=None, labels={"provision-owner": owner, "provision-request": request_id})
    journal_of(session).intent(spec, zone, request_id)
    cloud_of(session).create(spec, zone, request_id=request_id)


def test_nothing_is_left_behind(project: Project) -> None:
    assert collect(project).document == {"strays": [], "deleted": [], "unseen": [], "changed": False}
    project.create()
    done = collect(project, yes=True)
    assert (done.text, done.document["changed"]) == ("nothing of ours is left behind", False)
    assert project.listed() == [("dev", "RUNNING")]


def test_a_killed_run_is_named_found_and_removed_after_asking(project: Project) -> None:
    killed_after_insert(project, "us-central1-b")
    assert project.listed() == [("dev", "RUNNING")]
    assert project.notes[-1] == "dev was being made in us-central1-b when a run ended: `invoke vm.gc` looks"
    foretold = collect(project, check=True)
    assert foretold.exit_code == EXIT_WOULD_CHANGE
    assert foretold.text.splitlines()[1].split()[:3] == ["dev", "VM", "us-central1-b"]
    assert foretold.text.endswith("a run that ended early asked for it")
    with pytest.raises(UsageError, match="nothing was deleted"):
        collect(project)
    assert project.listed() == [("dev", "RUNNING")]
    done = collect(project, yes=True)
    assert (done.exit_code, done.text) == (0, "deleted the VM dev (us-central1-b)")
    assert project.listed() == []
    assert journal_of(project.session).open() == []


def test_a_killed_run_is_taken_up_where_it_was_and_not_made_twice(project: Project) -> None:
    killed_after_insert(project, "us-central1-b")
    # The killed run had put no key into the VM's metadata: what matters here is which VM is taken.
    with pytest.raises(Exception, match="dev"):
        project.create(ssh_s=0.1, host_keys_s=0.1)
    assert [vm.zone for vm in cloud_of(project.session).list({})] == ["us-central1-b"]
    assert [entry.state for entry in journal_of(project.session).open()] == [MADE]


def test_from_a_renamed_folder_no_second_vm_is_made_and_none_is_collected(project: Project) -> None:
    project.create()
    project.folder = project.folder.rename(project.folder.with_name("renamed"))
    project.settings = project.settings.model_copy(update={"zones": ("us-central1-b",)})
    with pytest.raises(CloudError, match="you have a VM named dev already") as caught:
        project.create()
    assert (caught.value.exit_code, caught.value.where) == (5, f"{ZONE}/dev")
    assert len(cloud_of(project.session).list({})) == 1
    assert collect(project, yes=True).document["strays"] == []
    # The journal of the folder's old name still says that it belongs to somebody.
    assert collect(project, yes=True, every_key=True).document["strays"] == []


@pytest.mark.parametrize("late", ["survey", "answer"])
def test_what_a_run_finishes_meanwhile_is_not_taken_from_it(project: Project, monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    """The VM is listed while its run still works on it; the run ends well before somebody says yes."""
    killed_after_insert(project, ZONE)
    real = strays.survey

    def meanwhile() -> None:
        journal = journal_of(project.session)
        journal.mark(journal.open()[0].request_id, MADE)

    def survey(*words: Any) -> Any:
        found = real(*words)
        assert [stray.name for stray in found.strays] == ["dev"]
        if late == "survey":
            meanwhile()
        return found

    def confirm(_question: str) -> bool:
        meanwhile()
        return True

    monkeypatch.setattr(vm_garbage, "survey", survey)
    done = app.vm_gc(project.session, yes=False, check=False, confirm=confirm)
    assert done.document["deleted"] == []
    assert project.listed() == [("dev", "RUNNING")]


def test_a_lost_state_folder_leaves_strays_that_only_every_key_finds(project: Project) -> None:
    project.create()
    project.state_dir = project.state_dir.with_name("another state")
    assert collect(project, yes=True).document["strays"] == []
    (stray,) = collect(project, check=True, every_key=True).document["strays"]
    assert (stray["name"], stray["why"]) == ("dev", "no journal of this machine names it")
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    with pytest.raises(UsageError):
        app.vm_gc(project.session, yes=False, check=False, every_key=True, confirm=no)
    assert asked == [f"Delete 1 VM, made by anybody whose login name is {getpass.getuser()}?"]
    done = collect(project, yes=True, every_key=True)
    assert [gone["name"] for gone in done.document["deleted"]] == ["dev"]
    assert cloud_of(project.session).list({}) == []


def test_what_is_removed_is_forgotten(project: Project) -> None:
    project.create()
    session = project.session
    (entry,) = journal_of(session).open()
    with (session.home / "journal.jsonl").open("a", encoding="utf-8") as journal:
        journal.write(f'{{"state": "left-behind", "request_id": "{entry.request_id}"}}\n')
    assert INTENT not in {entry.state for entry in journal_of(session).open()}
    assert VmRecords(session.home / "vms.json").all() != []
    collect(project, yes=True)
    assert VmRecords(session.home / "vms.json").all() == []
