"""`idle_delete`: a label of the VM, printed by vm.list, applied by vm.gc."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from provision.cloud.api.gce import GceCloud
from provision.cloud.lifecycle.context import new_request_id
from provision.cloud.lifecycle.journal import DELETING, Journal
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.cost import vm_cost
from provision.commands.vm.extend import vm_extend
from provision.commands.vm.gc import vm_gc
from provision.commands.vm.label import vm_label
from provision.commands.vm.list import vm_list
from provision.commands.vm.shared.vm_spec import vm_spec_of_settings
from provision.commands.vm.shared.wait_for_ssh import WaitLimits
from provision.commands.vm.start import vm_start
from provision.core.errors import EXIT_LEFT_BEHIND, EXIT_WOULD_CHANGE, UsageError
from provision.core.model import Vm
from provision.project.mock import MOCK_PROJECT
from provision.project.records import VmRecords
from provision.testing.compute import http_error
from tests.mock.workspace import ZONE, Workspace

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

DAY_S = 86_400
QUICK = WaitLimits(host_keys_s=5.0, ssh_s=20.0, pause_s=0.05, attributes_pause_s=0.05)
LABEL = "provision-idle-delete"


def collect(
    workspace: Workspace, *, yes: bool = False, check: bool = False, every_key: bool = False
) -> TaskResult:
    return vm_gc(workspace.project, yes=yes, check=check, every_key=every_key, confirm=None)


def set_idle_delete(workspace: Workspace, limit: str) -> None:
    workspace.settings = workspace.settings.model_validate({"idle_delete": limit})


@pytest.fixture
def stopped(workspace: Workspace) -> Workspace:
    """A VM created with idle_delete: 2d, and stopped three days ago."""
    set_idle_delete(workspace, "2d")
    assert workspace.create().exit_code == 0
    workspace.stop()
    workspace.cloud.emulator.clock.advance(3 * DAY_S + 60)
    workspace.events.clear()
    return workspace


def test_gc_deletes_overdue_vm_after_confirmation(stopped: Workspace) -> None:
    predicted = collect(stopped, check=True)
    assert predicted.exit_code == EXIT_WOULD_CHANGE
    assert [(stray["kind"], stray["name"]) for stray in predicted.document["strays"]] == [
        ("stopped", "dev")
    ]
    assert predicted.text.splitlines()[1].startswith("dev   stopped VM  us-central1-a  ")
    assert predicted.text.endswith("stopped for 3d, idle_delete is 2d")
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    with pytest.raises(UsageError, match="nothing was deleted"):
        vm_gc(stopped.project, yes=False, check=False, confirm=no)
    assert asked == ["Delete 1 stopped VM?"]
    assert stopped.listed() == [("dev", "TERMINATED")]

    done = collect(stopped, yes=True)
    assert (done.exit_code, done.text) == (0, "deleted the stopped VM dev (us-central1-a)")
    assert (stopped.listed(), stopped.project.journal.open()) == ([], [])
    assert stopped.project.records.all() == []
    assert stopped.cloud.emulator.disks(MOCK_PROJECT) == []


def test_label_of_the_vm_overrides_the_callers_settings(stopped: Workspace) -> None:
    """The label decides, not the settings of the user who runs vm.gc."""
    set_idle_delete(stopped, "none")
    assert [stray["name"] for stray in collect(stopped, check=True).document["strays"]] == ["dev"]
    vm_label(stopped.project, f"{LABEL}-", "dev")
    set_idle_delete(stopped, "2d")
    assert collect(stopped, yes=True).document["strays"] == []
    assert stopped.listed() == [("dev", "TERMINATED")]


def test_create_updates_label_of_existing_vm(workspace: Workspace) -> None:
    workspace.create()
    vm = workspace.project.connect_cloud().list({})[0]
    assert LABEL not in vm.labels
    set_idle_delete(workspace, "7d")
    check = workspace.create(Targets(check=True))
    assert (check.exit_code, check.document["changed"]) == (EXIT_WOULD_CHANGE, True)
    assert check.text == "dev: idle_delete is to be 7d, is none"
    assert workspace.create().document["changed"] is True
    assert check.text in workspace.notes
    assert workspace.project.connect_cloud().list({})[0].labels == {**vm.labels, LABEL: "7d"}
    assert workspace.create().document["changed"] is False
    set_idle_delete(workspace, "none")
    assert workspace.create().document["changed"] is True
    assert LABEL not in workspace.project.connect_cloud().list({})[0].labels


def test_vm_started_before_deletion_is_kept(stopped: Workspace) -> None:
    cloud = stopped.project.connect_cloud()

    def confirm(_question: str) -> bool:
        cloud.start("dev", ZONE, request_id=new_request_id())
        return True

    done = vm_gc(stopped.project, yes=False, check=False, confirm=confirm)
    assert (done.exit_code, done.text, done.document["changed"]) == (
        0,
        "nothing was deleted",
        False,
    )
    assert (
        "dev in us-central1-a was started meanwhile and is RUNNING: nothing was deleted"
        in stopped.notes
    )
    assert stopped.listed() == [("dev", "RUNNING")]


def test_start_cancels_an_unfinished_deletion(workspace: Workspace) -> None:
    """A killed vm.delete deleted nothing; after a start, no later run completes it."""
    workspace.create()
    workspace.stop()
    journal = workspace.project.journal
    journal.mark(journal.open()[0].request_id, DELETING)
    assert [stray["kind"] for stray in collect(workspace, check=True).document["strays"]] == ["vm"]
    assert vm_start(workspace.project, "dev", limits=QUICK).exit_code == 0
    assert collect(workspace, yes=True).document["strays"] == []
    assert workspace.create().document["vm"]["status"] == "RUNNING"
    assert workspace.listed() == [("dev", "RUNNING")]


def test_start_and_deletion_exclude_each_other(stopped: Workspace) -> None:
    """After confirmation vm.gc finds the VM claimed, waits, and then finds it running."""
    began, ends = threading.Event(), list[TaskResult]()
    real = GceCloud.start

    def start(cloud: GceCloud, name: str, zone: str, *, request_id: str) -> Vm:
        began.set()
        assert waiting.wait(20)
        return real(cloud, name, zone, request_id=request_id)

    waiting = threading.Event()

    def confirm(_question: str) -> bool:
        starter.start()
        assert began.wait(20)
        threading.Timer(0.3, waiting.set).start()
        return True

    starter = threading.Thread(
        target=lambda: ends.append(vm_start(stopped.project, "dev", limits=QUICK))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GceCloud, "start", start)
        done = vm_gc(stopped.project, yes=False, check=False, confirm=confirm)
        starter.join(60)
    assert (done.document["deleted"], ends[0].exit_code) == ([], 0)
    assert (
        "dev in us-central1-a was started meanwhile and is RUNNING: nothing was deleted"
        in stopped.notes
    )
    assert stopped.listed() == [("dev", "RUNNING")]


def test_parallel_starts_start_once(stopped: Workspace) -> None:
    """The second start finds it running, and has no extension to reset."""
    vm_extend(stopped.project, "2h", "dev")
    vm_start(stopped.project, "dev", limits=QUICK)
    stopped.stop()
    both = threading.Barrier(2)
    real = Journal.claim

    def claim(
        journal: Journal, name: str, note: Callable[[str], None]
    ) -> AbstractContextManager[None]:
        both.wait(20)
        return real(journal, name, note)

    ends: list[TaskResult] = []
    runs = [
        threading.Thread(target=lambda: ends.append(vm_start(stopped.project, "dev", limits=QUICK)))
        for _ in range(2)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "claim", claim)
        for run in runs:
            run.start()
        for run in runs:
            run.join(60)
    assert sorted((end.exit_code, end.document["changed"]) for end in ends) == [
        (0, False),
        (0, True),
    ]
    assert stopped.cloud.emulator.call_ids().count("instances.start") == 2


def test_failed_deletion_is_reported(stopped: Workspace) -> None:
    stopped.cloud.emulator.faults.add(
        http_error(403, "forbidden", "no", call="instances.delete", times=None)
    )
    done = collect(stopped, yes=True)
    assert (done.exit_code, done.document["error"]["where"]) == (EXIT_LEFT_BEHIND, f"{ZONE}/dev")
    assert "gcloud compute instances delete dev --zone us-central1-a" in done.errors[0].fix
    assert stopped.listed() == [("dev", "TERMINATED")]


def test_parallel_deletions_delete_once(stopped: Workspace) -> None:
    """Both are confirmed before either deletes; the second waits and finds the VM gone."""
    both = threading.Barrier(2)

    def yes(_question: str) -> bool:
        both.wait(20)
        return True

    ends: list[TaskResult] = []
    collecting = lambda: ends.append(vm_gc(stopped.project, yes=False, check=False, confirm=yes))  # noqa: E731
    runs = [threading.Thread(target=collecting) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(60)
    assert sorted(len(end.document["deleted"]) for end in ends) == [0, 1]
    assert [end.exit_code for end in ends] == [0, 0]
    assert stopped.cloud.emulator.call_ids().count("instances.delete") == 1
    assert "dev in us-central1-a is gone already: nothing was deleted" in stopped.notes
    assert stopped.project.journal.open() == []


def test_claimed_vm_is_kept(stopped: Workspace) -> None:
    with stopped.project.journal.claim("dev", lambda note: None):
        assert collect(stopped, check=True).document["strays"] == []


def test_every_key_updates_journal_and_records_of_the_vms_own_folder(stopped: Workspace) -> None:
    """With --every-key the VM's own folder loses its journal entry and its record."""
    home = stopped.project.home
    folder = stopped.folder
    stopped.folder = folder.with_name("another")
    stopped.folder.mkdir()
    assert collect(stopped, yes=True).document["strays"] == []
    done = collect(stopped, yes=True, every_key=True)
    assert [gone["name"] for gone in done.document["deleted"]] == ["dev"]
    assert VmRecords(home / "vms.json").all() == []
    stopped.folder = folder
    assert stopped.project.journal.open() == []


def test_unlisted_resources_are_reported_at_the_end(stopped: Workspace) -> None:
    labels = stopped.project.connect_cloud().list({})[0].labels
    journal = stopped.project.journal
    journal.intent(
        replace(vm_spec_of_settings(stopped.project, "lost"), labels=labels),
        "us-central1-b",
        new_request_id(),
    )
    refuses = http_error(403, "forbidden", "not today", times=None)
    stopped.cloud.emulator.faults.add(replace(refuses, call="instances.get", zone="us-central1-b"))
    stopped.cloud.emulator.faults.add(replace(refuses, call="disks.aggregatedList"))
    done = collect(stopped, yes=True)
    assert [gone["name"] for gone in done.document["deleted"]] == ["dev"], (
        "the other VMs were handled"
    )
    assert done.exit_code == EXIT_LEFT_BEHIND
    assert [error["where"] for error in done.document["unseen"]] == [
        MOCK_PROJECT,
        "us-central1-b/lost",
    ]
    assert done.text == "deleted the stopped VM dev (us-central1-a)"
    reported = [(error.where, error.what) for error in done.errors]
    unlooked = "a VM may be left behind and may bill: it could not be looked at"
    assert reported == [
        (MOCK_PROJECT, "the disks could not be listed"),
        ("us-central1-b/lost", unlooked),
    ]
    assert [entry.name for entry in journal.open()] == ["lost"]
    stopped.cloud.emulator.faults.clear()
    assert collect(stopped, yes=True).text == "no orphans"
    assert journal.open() == []


def test_list_and_cost_print_overdue_vms(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.create()
    workspace.stop()
    monkeypatch.setattr("provision.cloud.lifecycle.vm_times.datetime", Later)
    set_idle_delete(workspace, "7d")
    for task in (vm_list, vm_cost):
        workspace.events.clear()
        task(workspace.project)
        (note,) = [note for note in workspace.notes if "idle_delete" in note]
        assert note.endswith("(8d00h); `invoke vm.label provision-idle-delete=7d --name dev`")
    vm_label(workspace.project, f"{LABEL}=7d", "dev")
    workspace.events.clear()
    vm_list(workspace.project)
    (note,) = [note for note in workspace.notes if "idle_delete" in note]
    assert note == (
        "overdue for deletion: dev (stopped for 8d, idle_delete is 7d); delete with `invoke vm.gc`"
    )
    workspace.project.connect_cloud().set_labels(
        "dev", ZONE, {LABEL: "7-days"}, request_id=new_request_id()
    )
    workspace.events.clear()
    vm_list(workspace.project)
    (note,) = [note for note in workspace.notes if "idle-delete" in note]
    assert note.startswith(
        "dev: its label provision-idle-delete is '7-days', which is not a time: "
        "no vm.gc deletes it; `invoke vm.label"
    )


class Later(datetime):
    """Eight days from now."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime.now(UTC) + timedelta(days=8)


def test_invalid_idle_delete_label_is_refused(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="'week' is not a time to be stopped"):
        vm_label(workspace.project, f"{LABEL}=week", "dev")
