"""What is left in the cloud and belongs to nobody: found, and removed without touching anything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.cloud import strays
from provision.cloud.create import Maker
from provision.cloud.gce import GceCloud
from provision.cloud.journal import DELETING, GONE, INTENT, LEFT_BEHIND, MADE, UNSURE, FileJournal
from provision.cloud.ports import Disk
from provision.errors import CleanupFailed
from provision.model import Vm, VmSpec
from provision.testing.compute import ComputeEmulator, http_error

MakeSpec = Callable[..., VmSpec]
ZONE = "us-central1-a"


@pytest.fixture
def maker(cloud: GceCloud, tmp_path: Path) -> Maker:
    return Maker(cloud=cloud, journal=FileJournal(tmp_path / "journal.jsonl", "demo"), emit=lambda event: None)


def found(maker: Maker, **words: Any) -> list[tuple[str, str, str]]:
    survey = strays.survey(maker, lambda owner: owner == "me", maker.journal.open(), **words)
    return [(stray.kind, stray.name, stray.why) for stray in survey.strays]


def test_what_a_journal_calls_made_belongs_to_somebody(maker: Maker, make_spec: MakeSpec) -> None:
    maker.create(make_spec(), [ZONE])
    assert found(maker) == []


def test_what_no_journal_names_is_a_stray_and_removed(maker: Maker, cloud: GceCloud, make_spec: MakeSpec) -> None:
    maker.create(make_spec(name="kept"), [ZONE])
    cloud.create(make_spec(name="lost"), ZONE, request_id=maker.new_id())
    (stray,) = strays.survey(maker, lambda owner: owner == "me", maker.journal.open()).strays
    assert (stray.kind, stray.name, stray.why, stray.owner) == ("vm", "lost", strays.NO_ENTRY, "me")
    assert stray.as_dict()["zone"] == ZONE
    assert strays.remove(maker, stray)
    assert [vm.name for vm in cloud.list({})] == ["kept"]
    assert not strays.remove(maker, stray)


def test_what_carries_other_labels_or_none_is_never_touched(maker: Maker, cloud: GceCloud, make_spec: MakeSpec) -> None:
    for name, labels in (("theirs", {"provision-owner": "you"}), ("plain", {}), ("else", {"owner": "me"})):
        cloud.create(make_spec(name=name, labels=labels), ZONE, request_id=maker.new_id())
    survey = strays.survey(maker, lambda owner: owner == "me", ())
    assert survey.strays == ()
    assert len(cloud.list({})) == 3


@pytest.mark.parametrize("state", [INTENT, UNSURE, DELETING, LEFT_BEHIND])
def test_an_unfinished_entry_makes_its_vm_a_stray_unless_a_run_works_on_it(
    maker: Maker, cloud: GceCloud, make_spec: MakeSpec, state: str
) -> None:
    request_id = maker.new_id()
    spec = make_spec(labels={"provision-owner": "me", "provision-request": request_id})
    maker.journal.intent(spec, ZONE, request_id)
    cloud.create(spec, ZONE, request_id=request_id)
    if state != INTENT:
        maker.journal.mark(request_id, state)
    assert found(maker, busy=["dev"]) == []
    ((kind, name, why),) = found(maker)
    assert (kind, name) == ("vm", "dev")
    assert why
    (stray,) = strays.survey(maker, lambda owner: owner == "me", maker.journal.open()).strays
    assert strays.remove(maker, stray)
    assert maker.journal.open() == []


def test_an_entry_of_which_nothing_is_there_is_settled(maker: Maker, make_spec: MakeSpec) -> None:
    maker.journal.intent(make_spec(), ZONE, request_id := maker.new_id())
    survey = strays.survey(maker, lambda owner: owner == "me", maker.journal.open())
    assert (survey.strays, [entry.request_id for entry in survey.settled]) == ((), [request_id])


def test_a_vm_in_a_zone_that_no_list_shows_stays_in_the_journal(emulator: ComputeEmulator, maker: Maker, make_spec: MakeSpec) -> None:
    maker.create(make_spec(), [ZONE])
    emulator.script({"zone": ZONE, "fault": "unreachable"})
    survey = strays.survey(maker, lambda owner: owner == "me", maker.journal.open())
    strays.settle(maker, survey.settled)
    assert [entry.state for entry in maker.journal.open()] == [MADE]
    emulator.faults.clear()
    assert found(maker) == []


def test_a_zone_that_does_not_answer_settles_nothing(emulator: ComputeEmulator, maker: Maker, make_spec: MakeSpec) -> None:
    maker.journal.intent(make_spec(), ZONE, maker.new_id())
    survey = strays.survey(maker, lambda owner: owner == "me", maker.journal.open())
    emulator.faults.add(http_error(503, "backendError", "no", call="instances.get", times=None))
    strays.settle(maker, survey.settled)
    assert len(maker.journal.open()) == 1
    emulator.faults.clear()
    strays.settle(maker, survey.settled)
    assert maker.journal.open() == []


def test_a_vm_that_was_made_anew_since_it_was_found_is_left_alone(maker: Maker, cloud: GceCloud, make_spec: MakeSpec) -> None:
    cloud.create(make_spec(), ZONE, request_id=maker.new_id())
    (stray,) = strays.survey(maker, lambda owner: owner == "me", ()).strays
    cloud.delete("dev", ZONE, request_id=maker.new_id())
    maker.create(make_spec(), [ZONE])
    assert not strays.remove(maker, stray)
    assert [vm.name for vm in cloud.list({})] == ["dev"]


def test_a_failed_removal_says_what_bills_and_stays_in_the_journal(
    emulator: ComputeEmulator, maker: Maker, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    request_id = maker.new_id()
    spec = make_spec(labels={"provision-owner": "me", "provision-request": request_id})
    maker.journal.intent(spec, ZONE, request_id)
    cloud.create(spec, ZONE, request_id=request_id)
    (stray,) = strays.survey(maker, lambda owner: owner == "me", maker.journal.open()).strays
    emulator.faults.add(http_error(503, "backendError", "no", call="instances.delete", times=None))
    with pytest.raises(CleanupFailed) as caught:
        strays.remove(maker, stray)
    assert (caught.value.exit_code, caught.value.where) == (6, f"{ZONE}/dev")
    assert [entry.state for entry in maker.journal.open()] == [LEFT_BEHIND]


# --- disks: told apart without a cloud ------------------------------------------------------------------------------


class Disks(GceCloud):
    """A cloud whose disks are scripted."""

    def __init__(self, *disks: Disk, vms: tuple[Vm, ...] = ()) -> None:
        super().__init__("demo", "http://127.0.0.1:9")
        self.there = list(disks)
        self.vms = vms

    def list(self, labels: Any) -> Any:
        return self.vms

    def ended(self, zone: str, request_id: str) -> None:
        return None

    def disks(self, labels: Any) -> list[Disk]:  # type: ignore[valid-type]
        return list(self.there)

    def delete_disk(self, name: str, zone: str, *, request_id: str) -> bool:
        self.there = [disk for disk in self.there if disk.name != name]
        return True


def disk(name: str, **changed: Any) -> Disk:
    plain: dict[str, Any] = {"size_gb": 200, "created": "2026-11-01T00:00:00Z", "labels": {"provision-owner": "me"}}
    return Disk(name=name, zone=ZONE, **{**plain, **changed})


def test_a_disk_without_a_vm_is_a_stray(tmp_path: Path, make_spec: MakeSpec) -> None:
    journal = FileJournal(tmp_path / "journal.jsonl", "demo")
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
    maker = Maker(cloud=cloud, journal=journal, emit=lambda event: None)
    survey = strays.survey(maker, lambda owner: owner == "me", journal.open())
    assert [(stray.kind, stray.name) for stray in survey.strays] == [("disk", "left"), ("disk", "of-a-vm-that-is-gone")]
    cloud.there[0] = disk("left", users=("other",))
    assert [strays.remove(maker, stray) for stray in survey.strays] == [False, True]
    assert [each.name for each in cloud.there] == ["left", "detached", "in-use", "theirs"]
