"""Orphaned VMs and disks are found, and deleted without touching anything else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from provision.cloud.api.gce import GceCloud
from provision.cloud.api.labels import IDLE_DELETE_LABEL
from provision.cloud.api.protocol import Disk, Listing
from provision.cloud.lifecycle import orphans
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.create import create_vm
from provision.cloud.lifecycle.delete import delete_vms_by_name
from provision.cloud.lifecycle.journal import (
    DELETING,
    GONE,
    INTENT,
    LEFT_BEHIND,
    MADE,
    UNSURE,
    Journal,
)
from provision.cloud.lifecycle.orphan_removal import remove_orphan
from provision.core.errors import CleanupFailed
from provision.core.model import Note, Vm, VmSpec
from provision.testing.compute import ComputeEmulator, SimulatedClock, http_error

MakeSpec = Callable[..., VmSpec]
ZONE = "us-central1-a"


@pytest.fixture
def context(cloud: GceCloud, tmp_path: Path) -> CloudContext:
    return CloudContext(
        cloud=cloud,
        journal=Journal(tmp_path / "journal.jsonl", "demo"),
        emit=lambda event: None,
    )


def report_of(context: CloudContext, **words: Any) -> orphans.OrphanReport:
    return orphans.fetch_orphans(
        context, lambda owner: owner == "me", context.journal.open(), **words
    )


def orphans_of(context: CloudContext, **words: Any) -> list[tuple[str, str, str]]:
    return [
        (orphan.kind, orphan.name, orphan.why) for orphan in report_of(context, **words).orphans
    ]


def insert_with_open_intent(context: CloudContext, cloud: GceCloud, spec: VmSpec) -> str:
    """What a run leaves that was killed before it saw its VM; the request id."""
    request_id = context.new_id()
    marked = replace(spec, labels={**spec.labels, "provision-request": request_id})
    context.journal.intent(marked, ZONE, request_id)
    cloud.create(marked, ZONE, request_id=request_id)
    return request_id


def test_vm_that_a_journal_calls_made_is_not_an_orphan(
    context: CloudContext, make_spec: MakeSpec
) -> None:
    create_vm(context, make_spec(), [ZONE])
    assert orphans_of(context) == []


def test_vm_without_journal_entry_is_an_orphan_and_deleted(
    context: CloudContext, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    create_vm(context, make_spec(name="kept"), [ZONE])
    cloud.create(make_spec(name="lost"), ZONE, request_id=context.new_id())
    (orphan,) = orphans.fetch_orphans(
        context, lambda owner: owner == "me", context.journal.open()
    ).orphans
    assert (orphan.kind, orphan.name, orphan.why, orphan.owner) == (
        "vm",
        "lost",
        orphans.NO_ENTRY,
        "me",
    )
    assert orphan.as_dict()["zone"] == ZONE
    assert remove_orphan(context, orphan)
    assert [vm.name for vm in cloud.list({})] == ["kept"]
    assert not remove_orphan(context, orphan)


def test_vm_of_another_owner_is_never_an_orphan(
    context: CloudContext, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    for name, labels in (
        ("theirs", {"provision-owner": "you"}),
        ("plain", {}),
        ("else", {"owner": "me"}),
    ):
        cloud.create(make_spec(name=name, labels=labels), ZONE, request_id=context.new_id())
    report = orphans.fetch_orphans(context, lambda owner: owner == "me", ())
    assert report.orphans == ()
    assert len(cloud.list({})) == 3


@pytest.mark.parametrize("state", [INTENT, UNSURE, DELETING, LEFT_BEHIND])
def test_vm_of_unfinished_entry_is_an_orphan_unless_busy(
    context: CloudContext, cloud: GceCloud, make_spec: MakeSpec, state: str
) -> None:
    request_id = context.new_id()
    spec = make_spec(labels={"provision-owner": "me", "provision-request": request_id})
    context.journal.intent(spec, ZONE, request_id)
    cloud.create(spec, ZONE, request_id=request_id)
    if state != INTENT:
        context.journal.mark(request_id, state)
    assert orphans_of(context, busy=["dev"]) == []
    ((kind, name, why),) = orphans_of(context)
    assert (kind, name) == ("vm", "dev")
    assert why
    (orphan,) = orphans.fetch_orphans(
        context, lambda owner: owner == "me", context.journal.open()
    ).orphans
    assert remove_orphan(context, orphan)
    assert context.journal.open() == []


def test_entry_without_vm_is_finished(context: CloudContext, make_spec: MakeSpec) -> None:
    context.journal.intent(make_spec(), ZONE, request_id := context.new_id())
    report = orphans.fetch_orphans(context, lambda owner: owner == "me", context.journal.open())
    assert (report.orphans, [entry.request_id for entry in report.finished_entries]) == (
        (),
        [request_id],
    )


def test_made_vm_in_an_unlisted_zone_keeps_its_entry(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    create_vm(context, make_spec(), [ZONE])
    emulator.script({"zone": ZONE, "fault": "unreachable"})
    report = report_of(context)
    assert (report.orphans, report.finished_entries) == ((), ())
    assert [(error.exit_code, error.where, error.what) for error in report.errors] == [
        (5, ZONE, "its VMs could not be listed")
    ]
    emulator.faults.add(http_error(503, "backendError", "no", call="instances.get", times=None))
    _, unseen = report_of(context).errors
    assert (unseen.exit_code, unseen.where) == (5, f"{ZONE}/dev"), (
        "another owner has it: nothing is left behind"
    )
    assert "backendError" in unseen.why
    assert orphans_of(context) == []


def test_orphan_in_an_unlisted_zone_is_found_by_name(
    emulator: ComputeEmulator, context: CloudContext, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    insert_with_open_intent(context, cloud, make_spec())
    emulator.script({"zone": ZONE, "fault": "unreachable"})
    assert [(kind, name) for kind, name, _ in orphans_of(context)] == [("vm", "dev")]


def test_failed_requests_become_errors_of_the_report(
    emulator: ComputeEmulator, context: CloudContext, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    """Four killed runs: one left a VM, one nothing; operation or VM of the others is unreadable."""
    for name in ("left", "nothing", "unended", "unseen"):
        spec = make_spec(
            name=name,
            labels={"provision-owner": "me", "provision-request": (request_id := context.new_id())},
        )
        zone = {"unended": "us-central1-b", "unseen": "us-central1-c"}.get(name, ZONE)
        context.journal.intent(spec, zone, request_id)
        if name == "left":
            cloud.create(spec, zone, request_id=request_id)
    refuses = http_error(503, "backendError", "no", times=None)
    emulator.faults.add(replace(refuses, call="zoneOperations.list", zone="us-central1-b"))
    emulator.faults.add(replace(refuses, call="instances.get", zone="us-central1-c"))
    emulator.faults.add(replace(refuses, call="disks.aggregatedList"))
    report = report_of(context)
    assert [orphan.name for orphan in report.orphans] == ["left"]
    assert [entry.name for entry in report.finished_entries] == ["nothing"]
    assert [(error.exit_code, error.where) for error in report.errors] == [
        (5, "demo"),
        (6, "us-central1-b/unended"),
        (6, "us-central1-c/unseen"),
    ]
    assert report.errors[1].why.startswith("a run that ended early asked for it\nbackendError: no")


def test_operations_of_killed_runs_are_waited_for_in_parallel(
    tmp_path: Path, make_spec: MakeSpec
) -> None:
    count = 8
    together = threading.Barrier(count)

    class Waiting(Disks):
        def operation_result(self, zone: str, request_id: str) -> None:
            together.wait(10)

        def get(self, name: str, zone: str) -> None:
            return None

    context = CloudContext(
        cloud=Waiting(),
        journal=Journal(tmp_path / "journal.jsonl", "demo"),
        emit=lambda event: None,
    )
    for number in range(count):
        context.journal.intent(make_spec(name=f"dev-{number}"), ZONE, str(number))
    assert len(report_of(context).finished_entries) == count


def test_vm_that_was_replaced_since_is_not_deleted(
    context: CloudContext, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    cloud.create(make_spec(), ZONE, request_id=context.new_id())
    (orphan,) = orphans.fetch_orphans(context, lambda owner: owner == "me", ()).orphans
    cloud.delete("dev", ZONE, request_id=context.new_id())
    create_vm(context, make_spec(), [ZONE])
    assert not remove_orphan(context, orphan)
    assert [vm.name for vm in cloud.list({})] == ["dev"]


def test_failed_removal_raises_and_stays_in_the_journal(
    emulator: ComputeEmulator, context: CloudContext, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    request_id = context.new_id()
    spec = make_spec(labels={"provision-owner": "me", "provision-request": request_id})
    context.journal.intent(spec, ZONE, request_id)
    cloud.create(spec, ZONE, request_id=request_id)
    (orphan,) = orphans.fetch_orphans(
        context, lambda owner: owner == "me", context.journal.open()
    ).orphans
    emulator.faults.add(http_error(503, "backendError", "no", call="instances.delete", times=None))
    with pytest.raises(CleanupFailed) as caught:
        remove_orphan(context, orphan)
    assert (caught.value.exit_code, caught.value.where) == (6, f"{ZONE}/dev")
    assert [entry.state for entry in context.journal.open()] == [LEFT_BEHIND]


# --- disks: classified without a cloud ------------------------------------------------------------


class Disks(GceCloud):
    """A cloud whose disks are scripted."""

    def __init__(self, *disks: Disk, vms: tuple[Vm, ...] = ()) -> None:
        super().__init__("demo", "http://127.0.0.1:9")
        self.there = list(disks)
        self.vms = vms

    def list_with_failures(self, labels: Any) -> Listing:
        return Listing(self.vms)

    def operation_result(self, zone: str, request_id: str) -> None:
        return None

    def list_disks(self, labels: Any) -> list[Disk]:
        return list(self.there)

    def delete_disk(self, name: str, zone: str, *, request_id: str) -> bool:
        self.there = [disk for disk in self.there if disk.name != name]
        return True


def disk(name: str, **changed: Any) -> Disk:
    plain: dict[str, Any] = {
        "size_gb": 200,
        "created": "2026-11-01T00:00:00Z",
        "labels": {"provision-owner": "me"},
    }
    return Disk(name=name, zone=ZONE, **{**plain, **changed})


def test_disk_without_vm_is_an_orphan(tmp_path: Path, make_spec: MakeSpec) -> None:
    journal = Journal(tmp_path / "journal.jsonl", "demo")
    journal.intent(make_spec(), ZONE, "r1")
    journal.mark("r1", MADE)
    journal.intent(make_spec(name="gone"), ZONE, "r2")
    journal.mark("r2", GONE)
    labels = {"provision-owner": "me", "provision-request": "r1"}
    vm = Vm(name="dev", zone=ZONE, status="TERMINATED", machine_type="m", labels=labels)
    cloud = Disks(
        disk("left"),
        disk("of-a-vm-that-is-gone", labels={**labels, "provision-request": "r2"}),
        disk("detached", labels=labels),
        disk("in-use", users=("dev",)),
        disk("theirs", labels={"provision-owner": "you"}),
        vms=(vm,),
    )
    context = CloudContext(cloud=cloud, journal=journal, emit=lambda event: None)
    report = orphans.fetch_orphans(context, lambda owner: owner == "me", journal.open())
    assert [(orphan.kind, orphan.name) for orphan in report.orphans] == [
        ("disk", "left"),
        ("disk", "of-a-vm-that-is-gone"),
    ]
    cloud.there[0] = disk("left", users=("other",))
    assert [remove_orphan(context, orphan) for orphan in report.orphans] == [False, True]
    assert [each.name for each in cloud.there] == ["left", "detached", "in-use", "theirs"]


# --- stopped for too long -------------------------------------------------------------------------

DAY_S = 86_400


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def stopped(
    cloud: GceCloud, clock: SimulatedClock, tmp_path: Path, make_spec: MakeSpec, notes: list[str]
) -> CloudContext:
    """Return owned VMs that were stopped three days ago; one has `idle_delete: 2d`, one none."""
    journal = Journal(tmp_path / "journal.jsonl", "demo")
    context = CloudContext(
        cloud=cloud,
        journal=journal,
        emit=lambda event: notes.append(event.text if isinstance(event, Note) else ""),
    )
    for name, asks in (("asks", {IDLE_DELETE_LABEL: "2d"}), ("silent", {})):
        create_vm(context, make_spec(name=name, labels={"provision-owner": "me", **asks}), [ZONE])
        cloud.stop(name, ZONE, request_id=context.new_id())
    clock.advance(3 * DAY_S)
    notes.clear()
    return context


def test_vm_stopped_longer_than_idle_delete_is_deleted(
    stopped: CloudContext, cloud: GceCloud
) -> None:
    (orphan,) = report_of(stopped).orphans
    assert (orphan.kind, orphan.name, orphan.why) == (
        "stopped",
        "asks",
        "stopped for 3d, idle_delete is 2d",
    )
    assert remove_orphan(stopped, orphan)
    assert [vm.name for vm in cloud.list({})] == ["silent"]
    assert [(entry.name, entry.state) for entry in stopped.journal.open()] == [("silent", MADE)]


def test_idle_delete_uses_the_clouds_clock_without_a_request(
    stopped: CloudContext,
    emulator: ComputeEmulator,
    clock: SimulatedClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This machine's clock is weeks away from the emulator's, and nothing comes of it."""
    assert abs(clock.now() - time.time()) > 7 * DAY_S
    emulator.calls.clear()
    assert [name for _, name, _ in orphans_of(stopped)] == ["asks"]
    assert emulator.call_ids() == ["instances.aggregatedList", "disks.aggregatedList"]
    assert stopped.cloud.current_time().timestamp() == pytest.approx(clock.now(), abs=5)
    monkeypatch.setattr(
        GceCloud, "current_time", lambda self: datetime.fromtimestamp(clock.now() - 2 * DAY_S, UTC)
    )
    assert orphans_of(stopped) == []


@pytest.mark.parametrize("date", [None, "soon"])
def test_idle_delete_deletes_nothing_without_the_clouds_clock(
    stopped: CloudContext, monkeypatch: pytest.MonkeyPatch, date: str | None
) -> None:
    cloud = GceCloud("demo", cast("GceCloud", stopped.cloud).endpoint)
    original = cloud.client._note_clock
    headers = {} if date is None else {"Date": date}
    monkeypatch.setattr(
        cloud.client,
        "_note_clock",
        lambda reply, **words: original(SimpleNamespace(headers=headers)),
    )
    report = report_of(replace(stopped, cloud=cloud))
    assert (report.orphans, [error.exit_code for error in report.errors]) == ((), [5])
    assert (report.errors[0].what, report.errors[0].why) == (
        "the cloud's time is not known",
        "no reply had a Date that can be read",
    )
    cloud.close()


def start(context: CloudContext) -> None:
    context.cloud.start("asks", ZONE, request_id=context.new_id())


def restart(context: CloudContext) -> None:
    start(context)
    context.cloud.stop("asks", ZONE, request_id=context.new_id())


def relabel(context: CloudContext) -> None:
    context.cloud.set_labels("asks", ZONE, {}, [IDLE_DELETE_LABEL], request_id=context.new_id())


def disown(context: CloudContext) -> None:
    context.cloud.set_labels("asks", ZONE, {"provision-owner": "you"}, request_id=context.new_id())


def delete(context: CloudContext) -> None:
    context.cloud.delete("asks", ZONE, request_id=context.new_id())


@pytest.mark.parametrize(
    ("meanwhile", "output"),
    [
        (
            start,
            "asks in us-central1-a was started meanwhile and is RUNNING: nothing was deleted",
        ),
        (
            restart,
            "asks in us-central1-a was started meanwhile and is TERMINATED: nothing was deleted",
        ),
        (
            relabel,
            "asks in us-central1-a no longer asks for it by its labels: nothing was deleted",
        ),
        (disown, "asks in us-central1-a is another one by now: nothing was deleted"),
        (delete, "asks in us-central1-a is gone already: nothing was deleted"),
    ],
)
def test_stopped_vm_is_looked_up_again_before_deletion(
    stopped: CloudContext,
    emulator: ComputeEmulator,
    notes: list[str],
    meanwhile: Callable[[CloudContext], None],
    output: str,
) -> None:
    (orphan,) = report_of(stopped).orphans
    meanwhile(stopped)
    emulator.calls.clear()
    assert not remove_orphan(stopped, orphan)
    assert (emulator.call_ids(), notes) == (["instances.get"], [output])
    assert [(entry.name, entry.state) for entry in stopped.journal.open()] == [
        ("asks", MADE),
        ("silent", MADE),
    ]


def test_failed_idle_deletion_keeps_the_entry_made(
    stopped: CloudContext, emulator: ComputeEmulator
) -> None:
    """An entry `left-behind` would make the next vm.create delete a VM that was started again."""
    (orphan,) = report_of(stopped).orphans
    emulator.faults.add(http_error(503, "backendError", "no", call="instances.delete", times=None))
    with pytest.raises(CleanupFailed) as caught:
        remove_orphan(stopped, orphan)
    assert (caught.value.exit_code, caught.value.where) == (6, f"{ZONE}/asks")
    assert "the stopped VM was not deleted" in str(caught.value)
    assert {entry.state for entry in stopped.journal.open()} == {MADE}
    emulator.faults.clear()
    assert [name for _, name, _ in orphans_of(stopped)] == ["asks"]


def test_run_killed_between_deletion_and_journal_is_recovered(
    stopped: CloudContext, cloud: GceCloud
) -> None:
    cloud.delete("asks", ZONE, request_id=stopped.new_id())
    report = report_of(stopped)
    assert (report.orphans, [entry.name for entry in report.finished_entries]) == ((), ["asks"])


@pytest.mark.parametrize("value", ["", "soon", "7-days", "1s"])
def test_invalid_idle_delete_label_deletes_nothing(
    stopped: CloudContext, clock: SimulatedClock, value: str
) -> None:
    stopped.cloud.set_labels("asks", ZONE, {IDLE_DELETE_LABEL: value}, request_id=stopped.new_id())
    clock.advance(900 * DAY_S)
    assert orphans_of(stopped) == []


def rename(emulator: ComputeEmulator, name: str, to: str) -> None:
    """What instances.setName does with a stopped VM."""
    instances = emulator._cloud.store.instances
    (ref,) = (ref for ref in instances if ref.name == name)
    instance = instances.pop(ref)
    instance.resource["name"] = to
    instance.ref = replace(ref, name=to)
    instances[instance.ref] = instance


def test_renamed_vm_is_not_an_orphan(
    stopped: CloudContext, emulator: ComputeEmulator, make_spec: MakeSpec
) -> None:
    rename(emulator, "silent", "quiet")
    assert report_of(stopped).finished_entries == ()
    create_vm(stopped, make_spec(name="silent"), ["us-central1-b"])
    delete_vms_by_name(stopped, "silent", "me")
    assert [(entry.name, entry.state) for entry in stopped.journal.open()] == [
        ("asks", MADE),
        ("silent", MADE),
    ]
    assert [name for _, name, _ in orphans_of(stopped)] == ["asks"]


@pytest.mark.parametrize("labels", [{"provision-request": "by-hand"}, {}])
def test_vm_without_request_label_is_not_an_orphan(
    stopped: CloudContext, labels: dict[str, str]
) -> None:
    stopped.cloud.set_labels(
        "silent", ZONE, labels, ["provision-request"], request_id=stopped.new_id()
    )
    report = report_of(stopped)
    assert ([orphan.name for orphan in report.orphans], report.finished_entries) == (["asks"], ())
