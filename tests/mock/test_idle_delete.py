"""`idle_delete` through the use cases: written on the VM, named by vm.list, kept by vm.gc."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from provision import app
from provision.app import Done, Targets
from provision.app.clouds import cloud_of, journal_of
from provision.app.mock import MOCK_PROJECT
from provision.app.state import VmRecords
from provision.app.vm.reach import Patience
from provision.app.vm.spec import wanted
from provision.cloud.create import new_request_id
from provision.cloud.gce import GceCloud
from provision.cloud.journal import DELETING, FileJournal
from provision.errors import EXIT_LEFT_BEHIND, EXIT_WOULD_CHANGE, UsageError
from provision.model import Vm
from provision.testing.compute import http_error
from tests.mock.project import ZONE, Project

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

DAY_S = 86_400
QUICK = Patience(host_keys_s=5.0, ssh_s=20.0, pause_s=0.05, attributes_pause_s=0.05)
LABEL = "provision-idle-delete"


def collect(project: Project, *, yes: bool = False, check: bool = False, every_key: bool = False) -> Done:
    return app.vm_gc(project.session, yes=yes, check=check, every_key=every_key, confirm=None)


def wants(project: Project, limit: str) -> None:
    project.settings = project.settings.model_validate({"idle_delete": limit})


@pytest.fixture
def stopped(project: Project) -> Project:
    """A VM that was made with idle_delete: 2d, and stopped three days ago."""
    wants(project, "2d")
    assert project.create().exit_code == 0
    project.stop()
    project.cloud.emulator.clock.advance(3 * DAY_S + 60)
    project.events.clear()
    return project


def test_offered_asked_for_deleted_and_forgotten(stopped: Project) -> None:
    foretold = collect(stopped, check=True)
    assert foretold.exit_code == EXIT_WOULD_CHANGE
    assert [(stray["kind"], stray["name"]) for stray in foretold.document["strays"]] == [("stopped", "dev")]
    assert foretold.text.splitlines()[1].startswith("dev   stopped VM  us-central1-a  ")
    assert foretold.text.endswith("stopped for 3d, idle_delete is 2d")
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    with pytest.raises(UsageError, match="nothing was deleted"):
        app.vm_gc(stopped.session, yes=False, check=False, confirm=no)
    assert asked == ["Delete 1 stopped VM?"]
    assert stopped.listed() == [("dev", "TERMINATED")]

    done = collect(stopped, yes=True)
    assert (done.exit_code, done.text) == (0, "deleted the stopped VM dev (us-central1-a)")
    assert (stopped.listed(), journal_of(stopped.session).open()) == ([], [])
    assert VmRecords(stopped.session.home / "vms.json").all() == []
    assert stopped.cloud.emulator.disks(MOCK_PROJECT) == []


def test_another_ones_settings_delete_nothing(stopped: Project) -> None:
    """What the VM says holds, not what the settings of whoever runs vm.gc say."""
    wants(stopped, "none")
    assert [stray["name"] for stray in collect(stopped, check=True).document["strays"]] == ["dev"]
    app.vm_label(stopped.session, f"{LABEL}-", "dev")
    wants(stopped, "2d")
    assert collect(stopped, yes=True).document["strays"] == []
    assert stopped.listed() == [("dev", "TERMINATED")]


def test_written_on_a_vm_that_is_there_already(project: Project) -> None:
    project.create()
    vm = cloud_of(project.session).list({})[0]
    assert LABEL not in vm.labels
    wants(project, "7d")
    check = project.create(Targets(check=True))
    assert (check.exit_code, check.document["changed"]) == (EXIT_WOULD_CHANGE, True)
    assert check.text == "dev: idle_delete is to be 7d, is none"
    assert project.create().document["changed"] is True
    assert check.text in project.notes
    assert cloud_of(project.session).list({})[0].labels == {**vm.labels, LABEL: "7d"}
    assert project.create().document["changed"] is False
    wants(project, "none")
    assert project.create().document["changed"] is True
    assert LABEL not in cloud_of(project.session).list({})[0].labels


def test_started_between_the_question_and_the_deletion(stopped: Project) -> None:
    cloud = cloud_of(stopped.session)

    def confirm(_question: str) -> bool:
        cloud.start("dev", ZONE, request_id=new_request_id())
        return True

    done = app.vm_gc(stopped.session, yes=False, check=False, confirm=confirm)
    assert (done.exit_code, done.text, done.document["changed"]) == (0, "nothing was deleted", False)
    assert "dev in us-central1-a was started meanwhile and is RUNNING: nothing was deleted" in stopped.notes
    assert stopped.listed() == [("dev", "RUNNING")]


def test_what_somebody_starts_again_is_wanted_again(project: Project) -> None:
    """A vm.delete was killed before it deleted anything, and its user thought better of it: nothing makes up for it now."""
    project.create()
    project.stop()
    journal = journal_of(project.session)
    journal.mark(journal.open()[0].request_id, DELETING)
    assert [stray["kind"] for stray in collect(project, check=True).document["strays"]] == ["vm"]
    assert app.vm_start(project.session, "dev", patience=QUICK).exit_code == 0
    assert collect(project, yes=True).document["strays"] == []
    assert project.create().document["vm"]["status"] == "RUNNING"
    assert project.listed() == [("dev", "RUNNING")]


def test_a_start_and_a_deletion_wait_for_one_another(stopped: Project) -> None:
    """Allowed to, it finds the VM claimed by who starts it, waits, and then sees that it runs."""
    began, ends = threading.Event(), list[Done]()
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

    starter = threading.Thread(target=lambda: ends.append(app.vm_start(stopped.session, "dev", patience=QUICK)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GceCloud, "start", start)
        done = app.vm_gc(stopped.session, yes=False, check=False, confirm=confirm)
        starter.join(60)
    assert (done.document["deleted"], ends[0].exit_code) == ([], 0)
    assert "dev in us-central1-a was started meanwhile and is RUNNING: nothing was deleted" in stopped.notes
    assert stopped.listed() == [("dev", "RUNNING")]


def test_two_that_start_it_at_once(stopped: Project) -> None:
    """The second one finds it running, and has no extension to take back any more."""
    app.vm_extend(stopped.session, "2h", "dev")
    app.vm_start(stopped.session, "dev", patience=QUICK)
    stopped.stop()
    both = threading.Barrier(2)
    real = FileJournal.claim

    def claim(journal: FileJournal, name: str, note: Callable[[str], None]) -> AbstractContextManager[None]:
        both.wait(20)
        return real(journal, name, note)

    ends: list[Done] = []
    runs = [threading.Thread(target=lambda: ends.append(app.vm_start(stopped.session, "dev", patience=QUICK))) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileJournal, "claim", claim)
        for run in runs:
            run.start()
        for run in runs:
            run.join(60)
    assert sorted((end.exit_code, end.document["changed"]) for end in ends) == [(0, False), (0, True)]
    assert stopped.cloud.emulator.counted().count("instances.start") == 2


def test_a_deletion_that_fails_is_named(stopped: Project) -> None:
    stopped.cloud.emulator.faults.add(http_error(403, "forbidden", "no", call="instances.delete", times=None))
    done = collect(stopped, yes=True)
    assert (done.exit_code, done.document["error"]["where"]) == (EXIT_LEFT_BEHIND, f"{ZONE}/dev")
    assert "gcloud compute instances delete dev --zone us-central1-a" in done.errors[0].fix
    assert stopped.listed() == [("dev", "TERMINATED")]


def test_two_at_once_delete_once(stopped: Project) -> None:
    """Both are allowed to before either deletes; the second waits for the first and finds that it is gone."""
    both = threading.Barrier(2)

    def yes(_question: str) -> bool:
        both.wait(20)
        return True

    ends: list[Done] = []
    collecting = lambda: ends.append(app.vm_gc(stopped.session, yes=False, check=False, confirm=yes))  # noqa: E731
    runs = [threading.Thread(target=collecting) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(60)
    assert sorted(len(end.document["deleted"]) for end in ends) == [0, 1]
    assert [end.exit_code for end in ends] == [0, 0]
    assert stopped.cloud.emulator.counted().count("instances.delete") == 1
    assert "dev in us-central1-a is gone already: nothing was deleted" in stopped.notes
    assert journal_of(stopped.session).open() == []


def test_a_run_that_works_on_it_keeps_it(stopped: Project) -> None:
    with journal_of(stopped.session).claim("dev", lambda note: None):
        assert collect(stopped, check=True).document["strays"] == []


def test_from_another_folder_its_journal_is_settled_too(stopped: Project) -> None:
    """With --every-key: the VM's own folder no longer takes it for made, nor remembers how it is reached."""
    home = stopped.session.home
    folder = stopped.folder
    stopped.folder = folder.with_name("another")
    stopped.folder.mkdir()
    assert collect(stopped, yes=True).document["strays"] == []
    done = collect(stopped, yes=True, every_key=True)
    assert [gone["name"] for gone in done.document["deleted"]] == ["dev"]
    assert VmRecords(home / "vms.json").all() == []
    stopped.folder = folder
    assert journal_of(stopped.session).open() == []


def test_what_cannot_be_looked_at_is_named_at_the_end(stopped: Project) -> None:
    labels = cloud_of(stopped.session).list({})[0].labels
    journal = journal_of(stopped.session)
    journal.intent(replace(wanted(stopped.session, "lost"), labels=labels), "us-central1-b", new_request_id())
    refuses = http_error(403, "forbidden", "not today", times=None)
    stopped.cloud.emulator.faults.add(replace(refuses, call="instances.get", zone="us-central1-b"))
    stopped.cloud.emulator.faults.add(replace(refuses, call="disks.aggregatedList"))
    done = collect(stopped, yes=True)
    assert [gone["name"] for gone in done.document["deleted"]] == ["dev"], "the rest went on"
    assert done.exit_code == EXIT_LEFT_BEHIND
    assert [error["where"] for error in done.document["unseen"]] == [MOCK_PROJECT, "us-central1-b/lost"]
    assert done.text == "deleted the stopped VM dev (us-central1-a)"
    told = [(error.where, error.what) for error in done.errors]
    unlooked = "a VM may be left behind and may bill: it could not be looked at"
    assert told == [(MOCK_PROJECT, "the disks could not be listed"), ("us-central1-b/lost", unlooked)]
    assert [entry.name for entry in journal.open()] == ["lost"]
    stopped.cloud.emulator.faults.clear()
    assert collect(stopped, yes=True).text == "nothing of ours is left behind"
    assert journal.open() == []


def test_named_by_what_lists_vms_until_it_is_gone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.create()
    project.stop()
    monkeypatch.setattr("provision.app.vm.rates.datetime", Later)
    wants(project, "7d")
    for task in (app.vm_list, app.vm_cost):
        project.events.clear()
        task(project.session)
        (note,) = [note for note in project.notes if "idle_delete" in note]
        assert note.endswith("(8d00h); `invoke vm.label provision-idle-delete=7d --name dev`")
    app.vm_label(project.session, f"{LABEL}=7d", "dev")
    project.events.clear()
    app.vm_list(project.session)
    (note,) = [note for note in project.notes if "idle_delete" in note]
    assert note == "to be deleted: dev (stopped for 8d, idle_delete is 7d); `invoke vm.gc` does"
    cloud_of(project.session).set_labels("dev", ZONE, {LABEL: "7-days"}, request_id=new_request_id())
    project.events.clear()
    app.vm_list(project.session)
    (note,) = [note for note in project.notes if "idle-delete" in note]
    assert note.startswith("dev: its label provision-idle-delete is '7-days', which is no time: nothing deletes it; `invoke vm.label")


class Later(datetime):
    """Eight days from now."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime.now(UTC) + timedelta(days=8)


def test_a_label_that_nobody_would_understand_is_refused(project: Project) -> None:
    with pytest.raises(UsageError, match="'week' is no time to be stopped"):
        app.vm_label(project.session, f"{LABEL}=week", "dev")
