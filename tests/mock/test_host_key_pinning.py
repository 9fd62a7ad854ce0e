"""Host keys of a VM, end to end: published by its boot unit, pinned under its instance id."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from provision.cloud.api.gce import GceCloud
from provision.cloud.api.protocol import SerialOutput
from provision.commands.shared.targets import Targets
from provision.commands.vm.delete import vm_delete
from provision.commands.vm.provision import vm_provision
from provision.commands.vm.show import vm_show
from provision.commands.vm.ssh import vm_ssh
from provision.core.errors import EXIT_UNREACHABLE, CloudError, HostKeyMismatch, ProvisionError
from provision.hosts.host_keys import HostKey
from tests.mock.workspace import ZONE, Workspace

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICs4zTd2SBmzFQwbYqAShqsdwbvZo4TzuxFCzVSm9BYD"
RENEWED = "the VM has published other host keys: pinned instead of the old ones"


def pins(workspace: Workspace) -> list[str]:
    return (workspace.project.home / "known_hosts").read_text().splitlines()


def server_key(workspace: Workspace) -> str:
    """The key of the VM's SSH server, as a line of known_hosts."""
    return str(workspace.cloud.host("dev").host.host_key)


def provisioning_error(workspace: Workspace) -> ProvisionError | None:
    """Provision the VM; return the error of its host, None when it was reached."""
    done = vm_provision(workspace.project, Targets(check=True))
    if done.exit_code != EXIT_UNREACHABLE:
        return None
    error = done.document["hosts"]["dev"]["error"]
    return HostKeyMismatch(**error) if "key" in error["what"] else CloudError(**error)


def without_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = GceCloud.guest_attributes

    def only_ours(cloud: GceCloud, name: str, zone: str, namespace: str) -> Mapping[str, str]:
        return {} if namespace == "hostkeys/" else real(cloud, name, zone, namespace)

    monkeypatch.setattr(GceCloud, "guest_attributes", only_ours)


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    without_attributes(monkeypatch)
    monkeypatch.setattr(GceCloud, "serial_output", lambda *_, **__: SerialOutput("", 0))


def test_published_keys_are_pinned_under_instance_id(workspace: Workspace) -> None:
    made = workspace.create()
    assert f"compute.{made.document['vm']['instance_id']} {server_key(workspace)}" in pins(
        workspace
    )
    assert not any("first use" in note for note in workspace.notes)


def test_keys_on_serial_console_are_pinned(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_attributes(monkeypatch)
    workspace.create()
    assert any(line.endswith(server_key(workspace)) for line in pins(workspace))
    assert not any("first use" in note for note in workspace.notes)


def test_trust_on_first_use_is_printed(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(monkeypatch)
    workspace.create(host_keys_s=0.2)
    key = HostKey.parse(server_key(workspace))
    assert (
        f"trusting on first use: {key} (it published no host keys within 0.2 s)" in workspace.notes
    )
    assert any(line.endswith(key.line) for line in pins(workspace))


def test_replaced_keys_are_fetched_again_and_pinned(workspace: Workspace) -> None:
    """The guest agent creates new host keys after the first ones were pinned."""
    made = workspace.create()
    alias = f"compute.{made.document['vm']['instance_id']}"
    workspace.project.known_hosts.forget(alias)
    workspace.project.known_hosts.pin(alias, OTHER)
    workspace.events.clear()
    assert provisioning_error(workspace) is None
    assert RENEWED in workspace.notes
    assert [line for line in pins(workspace) if line.startswith(alias)] == [
        f"{alias} {server_key(workspace)}"
    ]


def test_late_keys_are_waited_for(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The boot unit publishes every five seconds; its next keys are pinned."""
    workspace.create()
    workspace.cloud.host("dev").change_host_key()
    real, looks = GceCloud.guest_attributes, []

    def late(cloud: GceCloud, name: str, zone: str, namespace: str) -> Mapping[str, str]:
        if namespace == "hostkeys/":
            looks.append(namespace)
            if len(looks) == 2:
                kind, blob = server_key(workspace).split()
                workspace.cloud.emulator.publish("dev", ZONE, f"hostkeys/{kind}", blob)
        return real(cloud, name, zone, namespace)

    monkeypatch.setattr(GceCloud, "guest_attributes", late)
    assert workspace.create().exit_code == 0
    assert (len(looks), RENEWED in workspace.notes) == (2, True)


def test_key_other_than_published_is_mismatch(workspace: Workspace) -> None:
    workspace.create()
    expected = HostKey.parse(server_key(workspace))
    workspace.cloud.host("dev").change_host_key()
    seen = HostKey.parse(server_key(workspace))
    before = pins(workspace)
    error = provisioning_error(workspace)
    assert isinstance(error, HostKeyMismatch)
    assert error.what == "the host's key has changed"
    assert f"seen:     {seen}" in error.why
    assert str(expected) in error.why.splitlines()[0]
    assert f"published by the VM: {expected}" in error.why.splitlines()
    assert pins(workspace) == before
    with pytest.raises(HostKeyMismatch) as caught:
        workspace.create()
    assert caught.value.exit_code == EXIT_UNREACHABLE


@pytest.mark.skipif(shutil.which("ssh") is None, reason="this machine has no ssh")
def test_vm_ssh_fetches_replaced_keys(workspace: Workspace) -> None:
    made = workspace.create()
    alias = f"compute.{made.document['vm']['instance_id']}"
    workspace.project.known_hosts.forget(alias)
    workspace.project.known_hosts.pin(alias, OTHER)
    assert vm_ssh(workspace.project, Targets(), ["sh", "-c", "exit 3"]).exit_code == 3
    assert RENEWED in workspace.notes
    workspace.cloud.host("dev").change_host_key()
    with pytest.raises(HostKeyMismatch, match="is not the pinned one") as caught:
        vm_ssh(workspace.project, Targets(), ["true"])
    assert "published by the VM: ssh-ed25519 SHA256:" in caught.value.why
    assert "Host key verification failed" in caught.value.why
    assert "@@" not in caught.value.why
    assert str(workspace.project.home / "known_hosts") in caught.value.fix
    assert "/tmp/provision-" not in caught.value.why + caught.value.fix


def test_keys_of_another_instance_are_not_fetched(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.create()
    workspace.cloud.host("dev").change_host_key()
    cloud = vm_show(workspace.project, "dev").document["vm"]
    real = GceCloud.get

    def another(self: GceCloud, name: str, zone: str) -> object:
        from dataclasses import replace

        vm = real(self, name, zone)
        return vm and replace(vm, instance_id="1")

    monkeypatch.setattr(GceCloud, "get", another)
    error = provisioning_error(workspace)
    assert isinstance(error, HostKeyMismatch)
    assert (
        f"the pinned key is that of the instance {cloud['instance_id']}; "
        "the VM of this name is another one by now, 1" in error.why
    )


def test_mismatch_stays_when_cloud_does_not_answer(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.create()
    workspace.cloud.host("dev").change_host_key()

    def down(*_: object) -> None:
        raise CloudError("the VM could not be read", why="no route")

    monkeypatch.setattr(GceCloud, "get", down)
    error = provisioning_error(workspace)
    assert isinstance(error, HostKeyMismatch)
    assert "the published keys could not be read: no route" in error.why


def test_lost_pins_are_fetched_again(workspace: Workspace) -> None:
    workspace.create()
    (workspace.project.home / "known_hosts").unlink()
    assert provisioning_error(workspace) is None
    assert any(line.endswith(server_key(workspace)) for line in pins(workspace))


def test_delete_removes_pinned_keys(workspace: Workspace, tmp_path: Path) -> None:
    made = workspace.create()
    vm_delete(workspace.project, "dev", yes=True, confirm=None)
    assert not any(made.document["vm"]["instance_id"] in line for line in pins(workspace))
