"""The inventory: VMs as the cloud lists them, static hosts, and the document for Ansible."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from provision.cloud.api.gce import GceCloud
from provision.cloud.api.protocol import Listing
from provision.commands.inventory.ansible import inventory_ansible
from provision.commands.inventory.list import inventory_list
from provision.commands.shared.targets import Targets
from provision.commands.vm.provision import vm_provision
from provision.commands.vm.show import vm_show
from provision.commands.vm.stop import vm_stop
from provision.core.errors import CloudError, UsageError
from provision.settings import Settings
from provision.settings.model import HostSettings
from provision.testing import MockHost
from tests.mock.workspace import ZONE, Workspace

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]


def names(workspace: Workspace, limit: str | None = None) -> list[str]:
    return [host["name"] for host in inventory_list(workspace.project, limit).document["hosts"]]


def ansible(workspace: Workspace, limit: str | None = None) -> dict[str, Any]:
    """The printed document, which Ansible reads."""
    found: dict[str, Any] = json.loads(inventory_ansible(workspace.project, limit).text)
    return found


def with_desk(workspace: Workspace, host: MockHost | None = None, **more: Any) -> None:
    """Add a host to the settings."""
    where = (
        {"address": "192.0.2.7"}
        if host is None
        else {"address": host.host.address, "port": host.host.port, "user": host.host.user}
    )
    workspace.settings = workspace.settings.model_copy(
        update={"hosts": {"desk": HostSettings(**{**where, **more})}}
    )


def test_static_hosts_are_listed_without_a_cloud(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        GceCloud, "list_with_failures", lambda *_: pytest.fail("the cloud was asked")
    )
    assert inventory_list(workspace.project).text == "no hosts"
    with_desk(workspace)
    done = inventory_list(workspace.project, "state=static")
    (row,) = done.document["hosts"]
    assert (row["name"], row["source"], row["state"], row["address"], row["zone"]) == (
        "desk",
        "settings",
        "static",
        "192.0.2.7",
        None,
    )
    assert not (workspace.project.home / "mock").exists()


def test_project_without_key_sends_no_request(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        GceCloud, "list_with_failures", lambda *_: pytest.fail("the cloud was asked")
    )
    workspace.settings = Settings(project="my-project")
    assert names(workspace) == []


def test_filters_select_vms_and_static_hosts(workspace: Workspace) -> None:
    workspace.create()
    (workspace.project.home / "mock").mkdir()
    with_desk(workspace)
    assert names(workspace) == ["desk", "dev"]
    assert names(workspace, "gpu=l4,state=running") == ["dev"]
    assert names(workspace, "zone=us-central1-*") == ["dev"]
    assert names(workspace, "label.provision-owner=*") == ["dev"]
    assert names(workspace, "!source=cloud") == ["desk"]
    assert names(workspace, "gpu=t4") == []
    workspace.stop()
    assert names(workspace, "state=running") == []
    assert names(workspace, "state=terminated") == ["dev"]
    with pytest.raises(UsageError, match="no host matches 'nobody'"):
        names(workspace, "nobody")


def test_inventory_sends_one_request(workspace: Workspace) -> None:
    workspace.create()
    (workspace.project.home / "mock").mkdir()
    workspace.cloud.emulator.calls.clear()
    names(workspace, "state=running")
    assert workspace.cloud.emulator.call_ids() == ["instances.aggregatedList"]


def test_tasks_send_a_request_for_filters_alone(workspace: Workspace) -> None:
    workspace.create()
    (workspace.project.home / "mock").mkdir()
    with_desk(workspace)
    workspace.cloud.emulator.calls.clear()
    done = vm_provision(workspace.project, Targets(limit="state=running,gpu=l4", check=True))
    assert list(done.document["hosts"]) == ["dev"]
    assert workspace.cloud.emulator.call_ids() == ["instances.aggregatedList"]
    workspace.cloud.emulator.calls.clear()
    assert list(
        vm_provision(workspace.project, Targets(limit="d*,!desk", check=True)).document["hosts"]
    ) == ["dev"]
    assert workspace.cloud.emulator.call_ids() == []
    with pytest.raises(UsageError, match="selects no host"):
        vm_provision(workspace.project, Targets(limit="state=terminated"))


def test_vm_without_record_is_reached(workspace: Workspace) -> None:
    """Another copy of the project folder created the VM."""
    workspace.create()
    (workspace.project.home / "mock").mkdir()
    (workspace.project.home / "vms.json").unlink()
    done = vm_provision(workspace.project, Targets(limit="state=running", check=True))
    assert (done.exit_code, list(done.document["hosts"])) == (0, ["dev"])


# --- where the cloud does not answer --------------------------------------------------------------


def hide(workspace: Workspace, *, asked_by_name: bool = True) -> None:
    """Make the zone silent: missing in listings, and by name refused as well."""
    workspace.cloud.emulator.script({"zone": ZONE, "fault": "unreachable"})
    if asked_by_name:
        workspace.cloud.emulator.script(
            {
                "call": "instances.get",
                "fault": "http",
                "http_status": 400,
                "reason": "invalid",
                "message": "no",
            }
        )


def made(workspace: Workspace) -> None:
    workspace.create()
    (workspace.project.home / "mock").mkdir()
    with_desk(workspace)


def test_vm_missing_in_listing_is_fetched_by_name(workspace: Workspace) -> None:
    made(workspace)
    hide(workspace, asked_by_name=False)
    assert names(workspace, "state=running") == ["dev"]
    (note,) = [note for note in workspace.notes if "may be missing" in note]
    assert note.startswith(f"VMs in {ZONE} may be missing here: UNREACHABLE: The scope")
    assert inventory_list(workspace.project).document["hidden"][0]["zone"] == ZONE


def test_hidden_vm_is_reported_and_never_treated_as_deleted(workspace: Workspace) -> None:
    made(workspace)
    hide(workspace)
    done = inventory_list(workspace.project, "!label.team=ml")
    assert [row["name"] for row in done.document["hosts"]] == ["desk"]
    assert done.document["hidden"] == [{"name": "dev", "zone": ZONE, "why": "invalid: no"}]
    assert (
        workspace.notes[-1] == f"dev in {ZONE} is missing here, and may run and bill: invalid: no"
    )
    assert names(workspace, "!dev") == ["desk"]
    for pattern in ("dev", "dev,state=running"):
        with pytest.raises(CloudError, match="cannot be described now") as caught:
            names(workspace, pattern)
        assert (caught.value.exit_code, caught.value.where, caught.value.why) == (
            5,
            f"{ZONE}/dev",
            "invalid: no",
        )


def test_filter_without_match_is_cloud_error_while_vms_are_hidden(
    workspace: Workspace,
) -> None:
    made(workspace)
    hide(workspace)
    with pytest.raises(CloudError, match="selects no host that the cloud described") as caught:
        vm_provision(workspace.project, Targets(limit="gpu=l4"))
    assert (caught.value.exit_code, "invalid: no" in caught.value.why) == (5, True)


def test_tasks_on_hidden_vm_report_why(workspace: Workspace) -> None:
    made(workspace)
    hide(workspace)
    for pattern in ("dev", "d*"):
        with pytest.raises(CloudError, match="cannot be described now") as caught:
            vm_stop(workspace.project, pattern)
        assert caught.value.why == "invalid: no"
    with pytest.raises(CloudError, match="cannot be described now"):
        vm_show(workspace.project, "dev")


@pytest.mark.parametrize(
    "targets",
    [Targets(host="dev", check=True), Targets(limit="d*,!desk", check=True), Targets(check=True)],
)
def test_unrecorded_vm_of_the_journal_is_fetched(workspace: Workspace, targets: Targets) -> None:
    """A run was killed before it wrote the record."""
    made(workspace)
    (workspace.project.home / "vms.json").unlink()
    assert list(vm_provision(workspace.project, targets).document["hosts"]) == ["dev"]
    hide(workspace)
    with pytest.raises(CloudError) as caught:
        vm_provision(workspace.project, targets)
    assert (caught.value.exit_code, "invalid: no" in caught.value.why) == (5, True)


def test_inventory_table_fits_a_terminal(workspace: Workspace) -> None:
    workspace.create()
    (workspace.project.home / "mock").mkdir()
    with_desk(workspace)
    head, desk, dev = inventory_list(workspace.project).text.splitlines()
    assert head.split() == ["name", "state", "gpu", "zone", "machine", "type", "address", "labels"]
    assert desk.split() == ["desk", "static", "-", "-", "-", "192.0.2.7", "-"]
    assert dev.split() == [
        "dev",
        "running",
        "nvidia-l4",
        "us-central1-a",
        "g2-standard-8",
        "127.0.0.1",
        "-",
    ]
    assert max(map(len, (head, desk, dev))) <= 100


# --- Ansible --------------------------------------------------------------------------------------


def test_ansible_document_has_connection_variables(workspace: Workspace) -> None:
    workspace.create()
    (workspace.project.home / "mock").mkdir()
    with_desk(workspace)
    vm = workspace.project.connect_cloud().list({})[0]
    reported = ansible(workspace)
    assert list(reported) == [
        "_meta",
        "all",
        "gpu_nvidia_l4",
        "state_running",
        "state_static",
        "zone_us_central1_a",
    ]
    assert reported["all"] == {
        "children": [
            "ungrouped",
            "gpu_nvidia_l4",
            "state_running",
            "state_static",
            "zone_us_central1_a",
        ]
    }
    assert reported["state_running"] == {"hosts": ["dev"]}
    dev, desk = reported["_meta"]["hostvars"]["dev"], reported["_meta"]["hostvars"]["desk"]
    assert (dev["ansible_host"], dev["ansible_user"]) == ("127.0.0.1", "provision")
    assert dev["ansible_port"] == workspace.cloud.ssh_ports["dev"]
    assert dev["ansible_ssh_private_key_file"] == str(workspace.project.home / "key")
    options = shlex.split(dev["ansible_ssh_common_args"])
    assert f"HostKeyAlias=compute.{vm.instance_id}" in options
    assert f'UserKnownHostsFile="{workspace.project.home / "known_hosts"}"' in options
    assert "StrictHostKeyChecking=yes" in options
    assert (dev["provision_gpu"], dev["provision_state"]) == ("nvidia-l4", "running")
    assert dev["provision_labels"] == dict(vm.labels)
    assert "ansible_user" not in desk
    assert "HostKeyAlias" not in desk["ansible_ssh_common_args"]
    assert ansible(workspace, "state=static")["_meta"]["hostvars"].keys() == {"desk"}


def test_ansible_uses_local_connection_for_this_machine(workspace: Workspace) -> None:
    with_desk(workspace, address="local")
    assert ansible(workspace)["_meta"]["hostvars"]["desk"]["ansible_connection"] == "local"


def test_labels_become_ansible_groups(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    workspace.create()
    (workspace.project.home / "mock").mkdir()
    vms = [
        replace(vm, labels={**vm.labels, "team": "ml-vision", "empty": ""})
        for vm in workspace.project.connect_cloud().list({})
    ]
    monkeypatch.setattr(GceCloud, "list_with_failures", lambda *_: Listing(vms))
    assert {"label_team_ml_vision", "label_empty"} <= set(ansible(workspace))
    assert not any("provision" in group for group in ansible(workspace))
    assert "team=ml-vision" in inventory_list(workspace.project).text


@pytest.mark.skipif(shutil.which("ssh") is None, reason="this machine has no ssh")
@pytest.mark.parametrize("way", ["direct", "iap"])
def test_ssh_connects_with_ansible_variables(
    workspace: Workspace, way: str, tmp_path: Path
) -> None:
    """The arguments are in the order of Ansible's connection plugin."""
    workspace.settings = workspace.settings.model_copy(update={"ssh": way})
    (workspace.project.home / "mock").mkdir(parents=True)
    (workspace.project.home / "mock" / "mock.json").write_text(
        json.dumps({"compute_endpoint": workspace.cloud.endpoint})
    )
    workspace.create()
    reported = ansible(workspace)["_meta"]["hostvars"]["dev"]
    words = [
        "-o",
        f"Port={reported['ansible_port']}",
        "-o",
        f'IdentityFile="{reported["ansible_ssh_private_key_file"]}"',
    ]
    words += [
        "-o",
        f"User={reported['ansible_user']}",
        *shlex.split(reported["ansible_ssh_common_args"]),
    ]
    done = subprocess.run(
        ["ssh", "-F", "none", *words, reported["ansible_host"], "hostname"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "dev\n"), done.stderr
