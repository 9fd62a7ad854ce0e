"""Whom to believe: the host keys of a VM, as it published them itself, pinned under its instance id.

A VM's boot unit publishes its public keys twice (templates/publish-host-keys.sh.j2): as guest
attributes `hostkeys/TYPE` and on the serial console. Both are read through the cloud's
authenticated API, so they need no network that is trusted. Keys can come late, and the guest agent
may replace them seconds after sshd first answers (compute-image-packages#310, kyma-project/
test-infra#3331): so what was published is read again before a key that differs is called an attack.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from provision.cloud.api.ports import ComputeCloud, SerialOutput
from provision.cloud.refusal import CloudRefused
from provision.core.errors import CloudError, HostKeyMismatch, UsageError
from provision.core.model import Host, Note, Vm
from provision.hosts.known_hosts import HostKey, KnownHosts
from provision.hosts.ssh.config import SshConfig
from provision.project.project import Project
from provision.project.records import VmRecords

T = TypeVar("T")

ATTRIBUTES_PAUSE_S = 6.5
"""Between two queries of one VM's guest attributes: ten a minute are allowed (Compute Engine, "Set
and query guest attributes")."""

_PRINTED = re.compile(
    r"provision-host-key (\S+) ([A-Za-z0-9+/]+=*) (SHA256:[A-Za-z0-9+/]+|-)[ \t\r]*$", re.MULTILINE
)


def known_hosts(project: Project) -> KnownHosts:
    """The toolkit's own pins of this project, then the user's known-hosts files, which are only read."""
    return KnownHosts(
        project.home / "known_hosts", SshConfig.of_user(project.environ).default_known_hosts()
    )


def key_alias(instance_id: str) -> str:
    """The name under which a VM's keys are pinned: its instance id, since names and addresses are given to other machines later."""
    return f"compute.{instance_id}"


def pin_settings(project: Project, hosts: Iterable[Host]) -> None:
    """Host keys of the settings, put where the system's ssh finds them; each replaces what was known under that name."""
    from provision.hosts.ssh.alias import alias_of

    pins, config = known_hosts(project), SshConfig.of_user(project.environ)
    for target in hosts:
        if target.host_key is not None:
            name = alias_of(target, config).key_name
            pins.forget(name)
            pins.pin(name, target.host_key)


def pin_files(project: Project, target: Host) -> list[Path]:
    """Where the system's ssh finds the host's key: in our own file, and where neither the settings nor a VM gave it, in the user's."""
    pins = known_hosts(project)
    return [pins.own] if target.key_alias or target.host_key else [pins.own, *pins.others[:2]]


@dataclass
class Publication:
    """What one VM has published about itself so far: looked for in its guest attributes, then on its serial console.

    `look` may be called as often as wanted: guest attributes are asked for once in
    `attributes_pause_s` seconds at most.
    """

    cloud: ComputeCloud
    vm: Vm
    clock: Callable[[], float] = time.monotonic
    attributes_pause_s: float = ATTRIBUTES_PAUSE_S
    _asked_at: float = field(default=float("-inf"), init=False)
    _read_to: int = field(default=0, init=False)
    _rest: str = field(default="", init=False)
    _printed: dict[str, HostKey] = field(default_factory=dict, init=False)

    def look(self) -> list[HostKey]:
        """The keys published by now, at most one of each type; empty while there are none."""
        return self._attributes() or self._console()

    def _attributes(self) -> list[HostKey]:
        if self.clock() - self._asked_at < self.attributes_pause_s:
            return []
        self._asked_at = self.clock()
        nothing: Mapping[str, str] = {}
        found = _unless_forbidden(
            lambda: self.cloud.guest_attributes(self.vm.name, self.vm.zone, "hostkeys/"), nothing
        )
        return _readable(f"{kind} {blob}" for kind, blob in found.items())

    def _console(self) -> list[HostKey]:
        """The last key of each type that was printed on it; a line is believed when its fingerprint is that of its key."""
        read = lambda: self.cloud.serial(self.vm.name, self.vm.zone, start=self._read_to)  # noqa: E731
        output = _unless_forbidden(read, SerialOutput("", self._read_to))
        self._read_to = output.next
        whole, newline, self._rest = (self._rest + output.text).rpartition("\n")
        for kind, blob, fingerprint in _PRINTED.findall(whole + newline):
            for key in _readable([f"{kind} {blob}"]):
                if fingerprint in {"-", key.fingerprint}:
                    self._printed[kind] = key
        return list(self._printed.values())


def _unless_forbidden(ask: Callable[[], T], otherwise: T) -> T:
    """Whoever may not read guest attributes may still read the console (terraform-google-bastion-host#86)."""
    try:
        return ask()
    except CloudRefused as error:
        if error.refusal.http_status != 403:
            raise
        return otherwise


def _readable(lines: Iterable[str]) -> list[HostKey]:
    keys = []
    for line in lines:
        try:
            keys.append(HostKey.parse(line))
        except UsageError:
            continue
    return keys


def trusting(
    project: Project, cloud: ComputeCloud | None, target: Host, attempt: Callable[[Host], T]
) -> T:
    """What `attempt` returns; once more where the host's key was not the pinned one and the VM has published that other key."""
    try:
        return attempt(target)
    except HostKeyMismatch as mismatch:
        _published_anew(project, cloud, target, mismatch)
    return attempt(target)


def _published_anew(
    project: Project, cloud: ComputeCloud | None, target: Host, mismatch: HostKeyMismatch
) -> None:
    """After a key that is not the pinned one: pin what the VM publishes by now. Raises the mismatch when that is nothing new.

    The keys are read once, and only of the instance whose id the pin carries; with another one of
    this name, or without an answer of the cloud, the mismatch says so.
    """
    record = VmRecords(project.home / "vms.json").get(target.name)
    if target.key_alias is None or record is None or target.name in project.settings.hosts:
        raise mismatch
    try:
        cloud = cloud or _cloud(project)
        vm = cloud.get(record.name, record.zone)
        if vm is None or key_alias(vm.instance_id) != target.key_alias:
            mismatch.why += f"\n{_replaced(vm, record.instance_id)}"
            raise mismatch
        published = Publication(cloud, vm).look()
    except CloudError as error:
        mismatch.why += f"\nwhat the VM publishes could not be read: {error.why or error.what}"
        raise mismatch from error
    if not published or not known_hosts(project).replace(
        target.key_alias, [key.line for key in published]
    ):
        mismatch.why += "\npublished by the VM: " + (", ".join(map(str, published)) or "nothing")
        raise mismatch
    project.emit(
        Note(
            "the VM has published other host keys: pinned instead of the old ones", host=target.name
        )
    )


def _cloud(project: Project) -> ComputeCloud:
    from provision.project.cloud import cloud_of

    return cloud_of(project)


def _replaced(vm: Vm | None, instance_id: str) -> str:
    now = (
        "there is no VM of this name any more"
        if vm is None
        else f"the VM of this name is another one by now, {vm.instance_id}"
    )
    return f"the pinned key is that of the instance {instance_id}; {now}"
