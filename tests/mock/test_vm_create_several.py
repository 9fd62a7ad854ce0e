"""`vm.create` for several VMs at once, and for one VM in several zones at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.cloud.lifecycle.journal import MADE
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.create.create import MAX_COUNT, vm_create
from provision.commands.vm.delete import vm_delete
from provision.commands.vm.shared import vm_spec as vm_spec_module
from provision.commands.vm.shared.vm_spec import user_data
from provision.commands.vm.shared.wait_for_ssh import WaitLimits
from provision.core.errors import (
    EXIT_CLOUD,
    EXIT_WOULD_CHANGE,
    CloudError,
    NoCapacity,
    QuotaExceeded,
    UsageError,
)
from provision.core.model import Note
from provision.project.project import Project
from provision.testing.compute import stock_out
from tests.mock.workspace import HERE, ZONE, Workspace

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

QUICK = WaitLimits(host_keys_s=5.0, ssh_s=20.0, pause_s=0.05, attributes_pause_s=0.05)


def create(
    workspace: Workspace, count: int = 1, targets: Targets = HERE, **more: Any
) -> TaskResult:
    return vm_create(workspace.project, "dev", targets, count=count, limits=QUICK, **more)


def test_several_vms_are_created_once_and_second_run_changes_nothing(workspace: Workspace) -> None:
    predicted = create(workspace, 2, Targets(check=True))
    assert (predicted.exit_code, predicted.text) == (
        EXIT_WOULD_CHANGE,
        "would create dev-1, dev-2: g2-standard-8 + 1 x nvidia-l4",
    )
    assert workspace.notes[-1] == "       together $1.76 an hour, $14.10 in 8h"
    done = create(workspace, 2)
    assert (done.exit_code, done.document["changed"]) == (0, True)
    assert done.text == f"2 of 2 VMs: dev-1 ({ZONE}), dev-2 ({ZONE})"
    assert [(vm["name"], vm["status"], vm["tried"]) for vm in done.document["vms"]] == [
        (name, "RUNNING", [{"zone": ZONE, "result": "created", "reason": ""}])
        for name in ("dev-1", "dev-2")
    ]
    assert set(done.document["hosts"]) == {"dev-1", "dev-2"}
    assert {
        event.host
        for event in workspace.events
        if isinstance(event, Note) and event.text.startswith("asking")
    } == {"dev-1", "dev-2"}
    again = create(workspace, 2)
    assert (again.exit_code, again.document["changed"]) == (0, False)
    assert {host["changed"] for host in again.document["hosts"].values()} == {0}
    assert [note for note in workspace.notes if note.startswith("plan:")] == [
        "plan:  2 VMs: dev-1, dev-2"
    ] * 2, "one call for each run with a plan"
    assert create(workspace, 2, Targets(check=True)).exit_code == 0
    assert sorted(workspace.listed()) == [("dev-1", "RUNNING"), ("dev-2", "RUNNING")]


def test_failed_vm_does_not_stop_the_others(workspace: Workspace) -> None:
    workspace.cloud.emulator.faults.add(replace(stock_out(), name="dev-2"))
    done = create(workspace, 2)
    assert (done.exit_code, done.document["error"]["what"]) == (
        EXIT_CLOUD,
        "no zone had g2-standard-8 + 1 x nvidia-l4",
    )
    made, missing = done.document["vms"]
    assert (made["name"], made["status"], missing["name"], missing["changed"]) == (
        "dev-1",
        "RUNNING",
        "dev-2",
        False,
    )
    assert [row["result"] for row in missing["tried"]] == ["capacity"] * 3
    assert done.text.splitlines()[0] == f"1 of 2 VMs: dev-1 ({ZONE})"
    assert set(done.document["hosts"]) == {"dev-1"}
    assert done.document["hosts"]["dev-1"]["failed"] == 0
    assert [(entry.name, entry.state) for entry in workspace.project.journal.open()] == [
        ("dev-1", MADE)
    ]


def test_unreachable_vm_is_reported_beside_the_others(workspace: Workspace) -> None:
    create(workspace, 2)
    workspace.cloud.host("dev-2").faults.refuse_auth = True
    done = vm_create(workspace.project, "dev", HERE, count=2, limits=replace(QUICK, ssh_s=0.2))
    assert done.exit_code == 4
    assert "error" in done.document["vms"][1]
    assert set(done.document["hosts"]) == {"dev-1"}


def test_quota_is_checked_for_missing_and_stopped_vms_alone(
    workspace: Workspace,
) -> None:
    create(workspace, 2)
    workspace.stop("dev-2")
    workspace.cloud.emulator.quotas.set("NVIDIA_L4_GPUS", 3)
    predicted = create(workspace, 3, Targets(check=True))
    assert (predicted.exit_code, predicted.document["changed"]) == (EXIT_WOULD_CHANGE, True)
    assert predicted.text.splitlines() == [
        "would create dev-3: g2-standard-8 + 1 x nvidia-l4",
        f"would start dev-2 in {ZONE}",
    ]
    assert [(row["name"], row["changed"]) for row in predicted.document["vms"]] == [
        ("dev-1", False),
        ("dev-2", True),
    ]
    assert set(predicted.document["hosts"]) == {"dev-1"}
    workspace.cloud.emulator.quotas.set("NVIDIA_L4_GPUS", 2)
    with pytest.raises(QuotaExceeded, match="no room for g2-standard-8") as caught:
        create(workspace, 3, Targets(check=True))
    assert "0 left (limit 2, in use 2)" in caught.value.why, "dev-1 runs and dev-2 is to be started"


def test_create_without_quota_for_all_creates_none(workspace: Workspace) -> None:
    workspace.cloud.emulator.quotas.set("NVIDIA_L4_GPUS", 2)
    for targets in (HERE, Targets(check=True)):
        with pytest.raises(QuotaExceeded) as caught:
            create(workspace, 4, targets)
        assert (
            "needs 4 of NVIDIA_L4_GPUS in us-central1, 2 left (limit 2, in use 0)"
            in caught.value.why.splitlines()
        )
    assert workspace.listed() == []


def test_count_above_limit_is_refused_before_first_request(workspace: Workspace) -> None:
    for targets in (HERE, Targets(check=True)):
        with pytest.raises(UsageError) as caught:
            create(workspace, MAX_COUNT + 1, targets)
        assert (caught.value.where, caught.value.why, caught.value.fix) == (
            "--count",
            "allowed: at most 500 at once",
            "--count=500",
        )
    assert not workspace.cloud.emulator.calls


def test_user_data_is_rendered_once_for_all(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[Project] = []

    def counted(project: Project) -> str:
        rendered.append(project)
        return user_data(project)

    monkeypatch.setattr(vm_spec_module, "user_data", counted)
    create(workspace, 3, Targets(check=True))
    assert len(rendered) == 1


def test_check_of_several_refuses_another_shape(workspace: Workspace) -> None:
    create(workspace, 2)
    workspace.settings = workspace.settings.model_copy(update={"gpu": "nvidia-tesla-t4"})
    with pytest.raises(CloudError, match="another shape"):
        create(workspace, 2, Targets(check=True))


def test_equal_errors_are_printed_once(workspace: Workspace) -> None:
    workspace.cloud.emulator.faults.add(stock_out())
    done = create(workspace, 3)
    assert done.exit_code == EXIT_CLOUD
    (error,) = done.errors
    assert str(error).count("does not have enough") == 3, (
        "one request for each zone, not for each VM"
    )
    assert str(error).startswith("dev-1, dev-2, dev-3: no zone had g2-standard-8 + 1 x nvidia-l4")
    assert max(map(len, str(error).splitlines())) <= 80
    workspace.cloud.emulator.faults.clear()
    workspace.cloud.emulator.faults.add(stock_out(ZONE))
    workspace.events.clear()
    create(workspace, 2)
    (table,) = [note for note in workspace.notes if note.startswith("zones asked for")]
    assert table.startswith("zones asked for dev-1, dev-2:\n")


def test_count_refuses_name_of_a_host_of_the_settings(workspace: Workspace) -> None:
    hosts = (
        type(workspace.settings).from_levels([]).model_copy(update={"hosts": {"dev-2": object()}})
    )
    workspace.settings = hosts
    with pytest.raises(UsageError, match="dev-2 is a host of the settings"):
        create(workspace, 2)
    workspace.settings = workspace.settings.model_copy(update={"hosts": {}})
    assert workspace.listed() == []


def test_parallel_zones_leave_one_vm(workspace: Workspace) -> None:
    done = create(workspace, parallel_zones=3)
    assert done.exit_code == 0
    results = sorted(row["result"] for row in done.document["tried"])
    assert results.count("created") == 1
    assert set(results) <= {"created", "dropped"}
    assert workspace.listed() == [("dev", "RUNNING")]
    (entry,) = workspace.project.journal.open()
    assert (entry.state, entry.zone) == (MADE, done.document["vm"]["zone"])


def test_every_requested_zone_is_printed_with_its_refusal(workspace: Workspace) -> None:
    workspace.cloud.emulator.faults.add(stock_out(ZONE))
    create(workspace)
    (table,) = [note for note in workspace.notes if note.startswith("zones asked for dev:")]
    first, *reason, last = table.splitlines()[1:]
    assert (first, last) == (f"{ZONE}  capacity", "us-central1-b  created")
    assert reason[0].startswith("  ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: The zone")
    assert vm_delete(workspace.project, "dev", yes=True, confirm=None).exit_code == 0
    workspace.cloud.emulator.faults.add(stock_out())
    with pytest.raises(NoCapacity) as caught:
        create(workspace)
    assert [row["zone"] for row in caught.value.as_dict()["tried"]] == [
        "us-central1-a",
        "us-central1-b",
        "us-central1-c",
    ]
