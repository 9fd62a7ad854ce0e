"""Host-key pinning: the keys that a VM published about itself, pinned under its instance id.

A VM's boot unit publishes its public keys twice (templates/publish-host-keys.sh): as guest
attributes `hostkeys/TYPE` and on the serial console. Both are read through the cloud's
authenticated API, so they depend on no untrusted network. Keys can come late, and the guest agent
may replace them seconds after sshd first answers (compute-image-packages#310, kyma-project/
test-infra#3331): the published keys are fetched again before a different key counts as an attack.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from provision.cloud.api.protocol import ComputeCloud, SerialOutput
from provision.cloud.refusal import CloudRefused
from provision.core.errors import CloudError, HostKeyMismatch, UsageError
from provision.core.model import Host, Note, Vm
from provision.hosts.host_keys import HostKey
from provision.project.project import Project
from provision.project.records import key_alias

T = TypeVar("T")

ATTRIBUTES_PAUSE_S = 6.5
"""Between two queries of one VM's guest attributes: ten a minute are allowed (Compute Engine, "Set
and query guest attributes")."""

_PUBLISHED_LINE = re.compile(
    r"provision-host-key (\S+) ([A-Za-z0-9+/]+=*) (SHA256:[A-Za-z0-9+/]+|-)[ \t\r]*$", re.MULTILINE
)


def pin_keys_of_settings(project: Project, hosts: Iterable[Host]) -> None:
    """Write host keys of the settings where the system's ssh reads them, instead of older ones."""
    from provision.hosts.ssh.alias import resolve_alias

    for target in hosts:
        if target.host_key is not None:
            name = resolve_alias(target, project.ssh_config).key_name
            project.known_hosts.forget(name)
            project.known_hosts.pin(name, target.host_key)


def known_hosts_files(project: Project, target: Host) -> list[Path]:
    """Return the files in which the system's ssh finds the host's key.

    That is the project's own file, and the user's files for a host whose key neither the settings
    nor a VM gave.
    """
    pins = project.known_hosts
    return [pins.own] if target.key_alias or target.host_key else [pins.own, *pins.others[:2]]


@dataclass
class PublishedKeys:
    """The host keys that one VM has published: as guest attributes, or else on its serial console.

    `fetch` may be called as often as needed: guest attributes are requested at most once in
    `attributes_pause_s` seconds.
    """

    cloud: ComputeCloud
    vm: Vm
    clock: Callable[[], float] = time.monotonic
    attributes_pause_s: float = ATTRIBUTES_PAUSE_S
    _requested_at: float = field(default=float("-inf"), init=False)
    _console_position: int = field(default=0, init=False)
    _unfinished_line: str = field(default="", init=False)
    _console_keys: dict[str, HostKey] = field(default_factory=dict, init=False)

    def fetch(self) -> list[HostKey]:
        """Return the keys published by now, at most one of each type; empty when there are none."""
        return self._fetch_attributes() or self._fetch_console()

    def _fetch_attributes(self) -> list[HostKey]:
        if self.clock() - self._requested_at < self.attributes_pause_s:
            return []
        self._requested_at = self.clock()
        no_attributes: Mapping[str, str] = {}
        attributes = _unless_forbidden(
            lambda: self.cloud.guest_attributes(self.vm.name, self.vm.zone, "hostkeys/"),
            no_attributes,
        )
        return _valid_keys(f"{algorithm} {blob}" for algorithm, blob in attributes.items())

    def _fetch_console(self) -> list[HostKey]:
        """The last key of each type on the console whose fingerprint, printed beside it, fits."""
        output = _unless_forbidden(
            lambda: self.cloud.serial_output(
                self.vm.name, self.vm.zone, start=self._console_position
            ),
            SerialOutput("", self._console_position),
        )
        self._console_position = output.next
        text = self._unfinished_line + output.text
        lines, newline, self._unfinished_line = text.rpartition("\n")
        for algorithm, blob, fingerprint in _PUBLISHED_LINE.findall(lines + newline):
            for key in _valid_keys([f"{algorithm} {blob}"]):
                if fingerprint in {"-", key.fingerprint}:
                    self._console_keys[algorithm] = key
        return list(self._console_keys.values())


def _unless_forbidden(request: Callable[[], T], otherwise: T) -> T:
    """The answer, or `otherwise` for status 403.

    An account without the right to read guest attributes may still read the console
    (terraform-google-bastion-host#86).
    """
    try:
        return request()
    except CloudRefused as error:
        if error.refusal.http_status != 403:
            raise
        return otherwise


def _valid_keys(lines: Iterable[str]) -> list[HostKey]:
    keys = []
    for line in lines:
        try:
            keys.append(HostKey.parse(line))
        except UsageError:
            continue
    return keys


def retry_with_published_keys(
    project: Project, cloud: ComputeCloud | None, target: Host, attempt: Callable[[Host], T]
) -> T:
    """Return the result of `attempt`; on a key mismatch, pin the published keys and attempt again.

    A request is sent only after a mismatch, to `cloud` or else the project's. Raises
    `HostKeyMismatch` when the VM has published no other key.
    """
    try:
        return attempt(target)
    except HostKeyMismatch as mismatch:
        _fetch_and_pin(project, cloud, target, mismatch)
    return attempt(target)


def _fetch_and_pin(
    project: Project, cloud: ComputeCloud | None, target: Host, mismatch: HostKeyMismatch
) -> None:
    """Pin the keys that the VM publishes now. Raise the mismatch when they are the pinned ones.

    The keys are fetched once, and only of the instance whose id the pin carries; for another
    instance of this name, or when the request fails, the mismatch says so.
    """
    record = project.records.get(target.name)
    if target.key_alias is None or record is None or target.name in project.settings.hosts:
        raise mismatch
    try:
        cloud = cloud or project.connect_cloud()
        vm = cloud.get(record.name, record.zone)
        if vm is None or key_alias(vm.instance_id) != target.key_alias:
            mismatch.why += f"\n{_other_instance(vm, record.instance_id)}"
            raise mismatch
        keys = PublishedKeys(cloud, vm).fetch()
    except CloudError as error:
        mismatch.why += f"\nthe published keys could not be read: {error.why or error.what}"
        raise mismatch from error
    if not keys or not project.known_hosts.replace(target.key_alias, [key.line for key in keys]):
        mismatch.why += "\npublished by the VM: " + (", ".join(map(str, keys)) or "nothing")
        raise mismatch
    project.emit(
        Note(
            "the VM has published other host keys: pinned instead of the old ones", host=target.name
        )
    )


def _other_instance(vm: Vm | None, instance_id: str) -> str:
    state = (
        "there is no VM of this name any more"
        if vm is None
        else f"the VM of this name is another one by now, {vm.instance_id}"
    )
    return f"the pinned key is that of the instance {instance_id}; {state}"
