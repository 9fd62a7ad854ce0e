"""`vm.create` for one VM: second runs, dry runs, interruptions and failures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from provision.cloud.api.gce import GceCloud
from provision.cloud.api.protocol import Listing
from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.cost import vm_cost
from provision.commands.vm.create.create import vm_create
from provision.commands.vm.delete import vm_delete
from provision.commands.vm.list import vm_list
from provision.commands.vm.shared.running_vms import running_vm_line
from provision.commands.vm.shared.wait_for_ssh import WaitLimits
from provision.commands.vm.show import vm_show
from provision.core.errors import (
    EXIT_CLOUD,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    EXIT_WOULD_CHANGE,
    CloudError,
    Interrupted,
    Unreachable,
    UsageError,
)
from provision.core.model import Vm
from tests.mock.workspace import HERE, ZONE, Workspace

pytestmark = pytest.mark.timeout(240)

CHECK = Targets(check=True)
RUNS = (
    f"dev runs in {ZONE}; `invoke vm.create --name dev` continues, "
    "`invoke vm.delete --name dev` removes it"
)


def statuses(done: TaskResult) -> set[str]:
    return {result["status"] for result in done.document["hosts"]["dev"]["results"]}


def test_vm_is_created_provisioned_verified_listed_and_deleted(workspace: Workspace) -> None:
    predicted = workspace.create(CHECK)
    assert (predicted.exit_code, predicted.document["vm"], workspace.listed()) == (
        EXIT_WOULD_CHANGE,
        None,
        [],
    )

    made = workspace.create()
    assert (made.exit_code, made.document["changed"], made.document["tried"][0]["result"]) == (
        0,
        True,
        "created",
    )
    assert statuses(made) <= {"changed", "ok"}
    assert workspace.listed() == [("dev", "RUNNING")]
    shown = vm_show(workspace.project, "dev").document["vm"]
    assert (shown["zone"], shown["instance_id"]) == (ZONE, made.document["vm"]["instance_id"])

    check = workspace.create(CHECK)
    assert (check.exit_code, check.document["changed"], statuses(check)) == (0, False, {"ok"})
    again = workspace.create()
    assert (again.exit_code, again.document["changed"], statuses(again)) == (0, False, {"ok"})

    workspace.stop()
    assert workspace.listed() == [("dev", "TERMINATED")]
    assert vm_show(workspace.project, "dev").document["vm"]["ttl_left_s"] is None
    check = workspace.create(CHECK)
    assert (check.exit_code, check.text) == (EXIT_WOULD_CHANGE, f"would start dev in {ZONE}")
    assert workspace.listed() == [("dev", "TERMINATED")]
    started = workspace.create()
    assert (started.exit_code, started.document["changed"]) == (0, True)
    assert started.document["tried"] == [{"zone": ZONE, "result": "started", "reason": ""}]
    assert workspace.listed() == [("dev", "RUNNING")]

    with pytest.raises(UsageError, match="was not deleted") as caught:
        vm_delete(workspace.project, "dev", yes=False, confirm=None)
    assert caught.value.exit_code == EXIT_USAGE
    assert workspace.listed() == [("dev", "RUNNING")]
    assert vm_delete(workspace.project, "dev", yes=True, confirm=None).document["changed"] is True
    assert workspace.listed() == []
    assert workspace.project.records.all() == []
    gone = vm_delete(workspace.project, "dev", yes=True, confirm=None)
    assert (gone.exit_code, gone.document) == (0, {"deleted": [], "changed": False})
    with pytest.raises(UsageError, match="no VM named dev"):
        vm_show(workspace.project, "dev")
    assert not any(" runs" in note for note in workspace.notes)


@pytest.mark.slow
def test_check_probes_running_vm_and_refuses_another_shape(workspace: Workspace) -> None:
    workspace.create()
    workspace.cloud.host("dev").run("sudo umount /var/lib/nvidia; sudo rm -rf /var/lib/nvidia")
    check = workspace.create(CHECK)
    assert check.exit_code == EXIT_WOULD_CHANGE
    assert "changed" in statuses(check)

    workspace.settings = workspace.settings.model_copy(update={"machine_type": "g2-standard-16"})
    raised = []
    for targets in (CHECK, HERE):
        with pytest.raises(CloudError, match="another shape") as caught:
            workspace.create(targets)
        raised.append(caught.value.as_dict())
    assert raised[0] == raised[1]


def test_ttl_left_counts_from_last_start(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ago(**span: float) -> str:
        return (datetime.now(UTC) - timedelta(**span)).isoformat()

    def left(**changed: Any) -> tuple[int, int | None]:
        vm = replace(
            Vm(
                name="dev",
                zone=ZONE,
                status="RUNNING",
                machine_type="m",
                created=ago(days=2),
                ttl_s=8 * 3600,
            ),
            **changed,
        )
        patch.setattr(GceCloud, "list_with_failures", lambda _self, _labels: Listing([vm]))
        (shown,) = vm_list(workspace.project).document["vms"]
        return round(shown["age_s"] / 3600), shown["ttl_left_s"] and round(
            shown["ttl_left_s"] / 3600
        )

    with monkeypatch.context() as patch:
        assert left(started=ago(hours=1)) == (48, 7)
        assert left() == (48, 0)
        assert left(created=ago(hours=3)) == (3, 5)
        assert left(started=ago(hours=1), status="TERMINATED") == (48, None)


# --- the VM runs, and something fails -------------------------------------------------------------


@pytest.mark.slow
def test_unreachable_vm_error_reports_that_the_vm_runs(workspace: Workspace) -> None:
    workspace.create()
    workspace.cloud.host("dev").faults.refuse_auth = True
    with pytest.raises(Unreachable) as caught:
        workspace.create(ssh_s=0.2)
    assert caught.value.why.splitlines()[-1] == RUNS
    assert len(caught.value.why.splitlines()) > 1
    with pytest.raises(Unreachable):
        workspace.create(CHECK)


@pytest.mark.slow
def test_ctrl_c_during_ssh_wait_reports_that_the_vm_runs(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(host_access, "connect", interrupt)
        with pytest.raises(Interrupted) as caught:
            workspace.create()
    assert (caught.value.exit_code, caught.value.why) == (EXIT_INTERRUPTED, RUNS)
    assert workspace.listed() == [("dev", "RUNNING")]
    continued = workspace.create()
    assert (continued.exit_code, continued.document["changed"]) == (0, False)


@pytest.mark.parametrize(
    ("width", "count", "asked"),
    [(1, 1, ["dev"]), (2, 1, ["dev", "dev"]), (1, 2, ["dev-1", "dev-2"])],
)
def test_ctrl_c_during_insert_lists_requested_vms(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, width: int, count: int, asked: list[str]
) -> None:
    both_asked = threading.Barrier(len(asked))

    def interrupt(*_: object, **__: object) -> None:
        both_asked.wait(60)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GceCloud, "create", interrupt)
        with pytest.raises(Interrupted) as caught:
            vm_create(workspace.project, "dev", HERE, count=count, parallel_zones=width)
    *lines, remedy = caught.value.why.splitlines()
    assert caught.value.exit_code == EXIT_INTERRUPTED
    assert sorted(line.split(" in us-")[0] for line in lines) == [
        f"{name} may be in creation" for name in asked
    ]
    assert remedy.endswith(
        f"vm.delete --name {','.join(dict.fromkeys(asked))}` removes what exists"
    )
    assert workspace.listed() == []


def test_vm_in_silent_zone_is_fetched_by_name(
    workspace: Workspace,
) -> None:
    workspace.create()
    workspace.cloud.emulator.script({"zone": ZONE, "fault": "unreachable"})
    assert workspace.listed() == [("dev", "RUNNING")]
    assert [vm["name"] for vm in vm_cost(workspace.project).document["vms"]] == ["dev"]
    assert vm_show(workspace.project, "dev").document["vm"]["status"] == "RUNNING"
    workspace.cloud.emulator.script(
        {
            "call": "instances.get",
            "fault": "http",
            "http_status": 400,
            "reason": "invalid",
            "message": "no",
        }
    )
    assert workspace.listed() == []
    assert (
        workspace.notes[-1] == f"dev in {ZONE} is missing here, and may run and bill: invalid: no"
    )


def test_ctrl_c_before_first_request_reports_no_request(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(GceCloud, "zones_offering", interrupt)
    with pytest.raises(Interrupted) as caught:
        workspace.create()
    assert caught.value.why == "nothing was requested yet"


@pytest.mark.slow
def test_failed_provisioning_reports_that_the_vm_runs(workspace: Workspace) -> None:
    workspace.create()
    host = workspace.cloud.host("dev")
    host.run("sudo umount /var/lib/nvidia; sudo rm -rf /var/lib/nvidia")
    host.faults.set("installer_no_egress")
    workspace.settings = workspace.settings.model_copy(update={"driver": "580.95.05"})
    failed = workspace.create()
    assert failed.exit_code == 1
    assert workspace.notes[-1] == RUNS


def test_running_vm_line_mentions_billing_only_on_a_real_cloud(workspace: Workspace) -> None:
    real = replace(
        workspace.project,
        settings=workspace.settings.model_copy(update={"project": "p", "cloud": "gce"}),
        program_argv0="inv",
    )
    text = running_vm_line(real, Vm(name="dev", zone="z", status="RUNNING", machine_type="m"))
    assert text == (
        "dev runs and bills in z; `inv vm.create --name dev` continues, "
        "`inv vm.delete --name dev` removes it"
    )
    assert (WaitLimits.of(real).host_keys_s, WaitLimits.of(workspace.project).host_keys_s) == (
        180.0,
        5.0,
    )


# --- which VM -------------------------------------------------------------------------------------


def test_host_flag_sets_name_of_created_vm(workspace: Workspace) -> None:
    done = workspace.create(Targets(host="other", check=True))
    assert done.text.startswith("would create other: ")
    assert workspace.listed() == []


def test_renamed_project_folder_reports_vm_with_old_owner_label(workspace: Workspace) -> None:
    workspace.create()
    owner = vm_show(workspace.project, "dev").document["vm"]["labels"]["provision-owner"]
    workspace.folder = workspace.folder.rename(workspace.folder.with_name("renamed"))
    assert workspace.listed() == []
    asked: dict[str, Callable[[], TaskResult]] = {
        "describe": lambda: vm_show(workspace.project, "dev"),
        "delete": lambda: vm_delete(workspace.project, "dev", yes=True, confirm=None),
    }
    for verb, ask in asked.items():
        with pytest.raises(CloudError) as caught:
            ask()
        assert (caught.value.exit_code, caught.value.where) == (EXIT_CLOUD, f"{ZONE}/dev")
        assert owner in caught.value.why
        assert caught.value.fix == f"gcloud compute instances {verb} dev --zone {ZONE}"
    assert workspace.cloud.host("dev").run("true").status == 0
    assert vm_delete(workspace.project, "nowhere", yes=True, confirm=None).exit_code == 0
