"""Host keys of a VM, end to end: published by its boot unit, pinned under its id, read again before an alarm."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from provision import app
from provision.app import Targets
from provision.cloud.gce import GceCloud
from provision.cloud.ports import SerialOutput
from provision.errors import EXIT_UNREACHABLE, CloudError, HostKeyMismatch, ProvisionError
from provision.hosts.known_hosts import HostKey, KnownHosts
from tests.mock.project import ZONE, Project

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICs4zTd2SBmzFQwbYqAShqsdwbvZo4TzuxFCzVSm9BYD"
RENEWED = "the VM has published other host keys: pinned instead of the old ones"


def pins(project: Project) -> list[str]:
    return (project.session.home / "known_hosts").read_text().splitlines()


def shown(project: Project) -> str:
    """The line of the key that the VM's server shows."""
    return str(project.cloud.host("dev").host.host_key)


def provisioned(project: Project) -> ProvisionError | None:
    """How a task on the VM ended for its host: None when it was reached."""
    done = app.vm_provision(project.session, Targets(check=True))
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
    monkeypatch.setattr(GceCloud, "serial", lambda *_, **__: SerialOutput("", 0))


def test_what_the_boot_unit_publishes_is_pinned_under_the_instance_id(project: Project) -> None:
    made = project.create()
    assert f"compute.{made.document['vm']['instance_id']} {shown(project)}" in pins(project)
    assert not any("first use" in note for note in project.notes)


def test_the_serial_console_is_enough(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    without_attributes(monkeypatch)
    project.create()
    assert any(line.endswith(shown(project)) for line in pins(project))
    assert not any("first use" in note for note in project.notes)


def test_what_is_trusted_on_first_use_is_said(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    project.create(host_keys_s=0.2)
    key = HostKey.parse(shown(project))
    assert f"trusting on first use: {key} (it published no host keys within 0.2 s)" in project.notes
    assert any(line.endswith(key.line) for line in pins(project))


def test_keys_that_were_replaced_are_read_again_and_pinned(project: Project) -> None:
    """The guest agent made new host keys after the first ones were pinned."""
    made = project.create()
    alias = f"compute.{made.document['vm']['instance_id']}"
    KnownHosts(project.session.home / "known_hosts").forget(alias)
    KnownHosts(project.session.home / "known_hosts").pin(alias, OTHER)
    project.events.clear()
    assert provisioned(project) is None
    assert RENEWED in project.notes
    assert [line for line in pins(project) if line.startswith(alias)] == [f"{alias} {shown(project)}"]


def test_keys_that_are_published_late_are_waited_for(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The boot unit looks every five seconds: what it says next is believed."""
    project.create()
    project.cloud.host("dev").change_host_key()
    real, looks = GceCloud.guest_attributes, []

    def late(cloud: GceCloud, name: str, zone: str, namespace: str) -> Mapping[str, str]:
        if namespace == "hostkeys/":
            looks.append(namespace)
            if len(looks) == 2:
                kind, blob = shown(project).split()
                project.cloud.emulator.publish("dev", ZONE, f"hostkeys/{kind}", blob)
        return real(cloud, name, zone, namespace)

    monkeypatch.setattr(GceCloud, "guest_attributes", late)
    assert project.create().exit_code == 0
    assert (len(looks), RENEWED in project.notes) == (2, True)


def test_another_key_than_the_published_one_is_an_alarm(project: Project) -> None:
    project.create()
    expected = HostKey.parse(shown(project))
    project.cloud.host("dev").change_host_key()
    seen = HostKey.parse(shown(project))
    before = pins(project)
    error = provisioned(project)
    assert isinstance(error, HostKeyMismatch)
    assert error.what == "the host's key has changed"
    assert f"seen:     {seen}" in error.why
    assert str(expected) in error.why.splitlines()[0]
    assert f"published by the VM: {expected}" in error.why.splitlines()
    assert pins(project) == before
    with pytest.raises(HostKeyMismatch) as caught:
        project.create()
    assert caught.value.exit_code == EXIT_UNREACHABLE


@pytest.mark.skipif(shutil.which("ssh") is None, reason="this machine has no ssh")
def test_a_shell_reads_the_keys_again_too(project: Project) -> None:
    made = project.create()
    alias = f"compute.{made.document['vm']['instance_id']}"
    KnownHosts(project.session.home / "known_hosts").forget(alias)
    KnownHosts(project.session.home / "known_hosts").pin(alias, OTHER)
    assert app.vm_ssh(project.session, Targets(), ["sh", "-c", "exit 3"]).exit_code == 3
    assert RENEWED in project.notes
    project.cloud.host("dev").change_host_key()
    with pytest.raises(HostKeyMismatch, match="is not the pinned one") as caught:
        app.vm_ssh(project.session, Targets(), ["true"])
    assert "published by the VM: ssh-ed25519 SHA256:" in caught.value.why
    assert "Host key verification failed" in caught.value.why
    assert "@@" not in caught.value.why
    assert str(project.session.home / "known_hosts") in caught.value.fix
    assert "/tmp/provision-" not in caught.value.why + caught.value.fix


def test_another_instance_of_the_same_name_is_not_asked_for_its_keys(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.create()
    project.cloud.host("dev").change_host_key()
    cloud = app.vm_show(project.session, "dev").document["vm"]
    real = GceCloud.get

    def another(self: GceCloud, name: str, zone: str) -> object:
        from dataclasses import replace

        vm = real(self, name, zone)
        return vm and replace(vm, instance_id="1")

    monkeypatch.setattr(GceCloud, "get", another)
    error = provisioned(project)
    assert isinstance(error, HostKeyMismatch)
    assert f"the pinned key is that of the instance {cloud['instance_id']}; the VM of this name is another one by now, 1" in error.why


def test_a_cloud_that_does_not_answer_leaves_the_alarm(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.create()
    project.cloud.host("dev").change_host_key()

    def down(*_: object) -> None:
        raise CloudError("the VM could not be read", why="no route")

    monkeypatch.setattr(GceCloud, "get", down)
    error = provisioned(project)
    assert isinstance(error, HostKeyMismatch)
    assert "what the VM publishes could not be read: no route" in error.why


def test_pins_that_were_lost_are_read_again(project: Project) -> None:
    project.create()
    (project.session.home / "known_hosts").unlink()
    assert provisioned(project) is None
    assert any(line.endswith(shown(project)) for line in pins(project))


def test_deleting_the_vm_forgets_its_keys(project: Project, tmp_path: Path) -> None:
    made = project.create()
    app.vm_delete(project.session, "dev", yes=True, confirm=None)
    assert not any(made.document["vm"]["instance_id"] in line for line in pins(project))
