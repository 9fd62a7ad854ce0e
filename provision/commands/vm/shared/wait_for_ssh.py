"""Waits until a running VM answers on SSH: recorded, its host keys pinned, connected once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_fixed,
)

from provision.cloud.api.protocol import ComputeCloud
from provision.commands.shared import host_access
from provision.core.errors import HostKeyMismatch, TunnelRefused, Unreachable
from provision.core.model import Host, Note, Vm
from provision.hosts.host_keys import HostKey
from provision.project import inventory
from provision.project.host_key_pinning import ATTRIBUTES_PAUSE_S, PublishedKeys
from provision.project.login import explain_refused_login, prepare_login, request_login_user
from provision.project.project import Project
from provision.project.records import record_of


@dataclass(frozen=True)
class WaitLimits:
    """How long to wait for a running VM: for its published host keys, and for SSH. Seconds."""

    host_keys_s: float = 180.0
    """After this the first key that the VM shows is trusted: a first boot publishes late."""
    ssh_s: float = 180.0
    pause_s: float = 2.0
    attributes_pause_s: float = ATTRIBUTES_PAUSE_S
    """Between two queries of the VM's guest attributes."""
    readings: int = 3
    """How often published keys are fetched before a different key counts as another machine's: a
    first boot may replace them, and its unit publishes every five seconds."""

    @staticmethod
    def of(project: Project) -> WaitLimits:
        """Return the limits for the settings' cloud; a mock host answers once its VM runs."""
        if project.settings.cloud == "gce":
            return WaitLimits()
        return WaitLimits(host_keys_s=5.0, pause_s=0.1, attributes_pause_s=0.1)

    @property
    def until_reachable(self) -> Retrying:
        """Retry while the VM is unreachable; then raise the last error.

        An error that waiting cannot remove is raised at once.
        """
        can_pass = retry_if_exception_type(Unreachable) & retry_if_not_exception_type(TunnelRefused)
        return Retrying(
            stop=stop_after_delay(self.ssh_s),
            wait=wait_fixed(self.pause_s),
            retry=can_pass,
            reraise=True,
        )

    @property
    def until_key_matches(self) -> Retrying:
        """Retry a few times while the key is not the pinned one; each try fetches the keys."""
        return Retrying(
            stop=stop_after_attempt(self.readings),
            wait=wait_fixed(self.attributes_pause_s),
            retry=retry_if_exception_type(HostKeyMismatch),
            reraise=True,
        )


def wait_for_ssh(project: Project, cloud: ComputeCloud, vm: Vm, limits: WaitLimits) -> None:
    """Record the VM, pin its host keys, and wait until it answers on SSH.

    Raises `Unreachable` when it has no address or does not answer in time, `HostKeyMismatch` when
    its key is not the published one.
    """
    if not vm.address and not vm.internal_address:
        raise Unreachable(
            "the VM has no address",
            where=vm.name,
            why=f"status {vm.status}",
            fix=f"invoke vm.show --name {vm.name}",
        )
    user = request_login_user(project, cloud, vm)
    record = record_of(vm, user, cloud.ssh_port(vm))
    project.records.put(record)
    target = inventory.host_of_record(project, record)
    prepare_login(project, [target])
    _pin_host_keys(project, cloud, vm, target, limits)
    try:
        limits.until_key_matches(
            lambda: limits.until_reachable(host_access.connect, project, target, cloud=cloud)
        ).close()
    except Unreachable as error:
        explain_refused_login(project, user, error)
        raise


def _pin_host_keys(
    project: Project, cloud: ComputeCloud, vm: Vm, target: Host, limits: WaitLimits
) -> None:
    """Pin the keys that the VM published; where there are none, those that it shows first."""
    pins, alias = project.known_hosts, str(target.key_alias)
    if pins.pins(target, alias, files=()).known:
        return
    keys = _wait_for_keys(
        PublishedKeys(cloud, vm, attributes_pause_s=limits.attributes_pause_s), limits
    )
    if keys:
        pins.replace(alias, [key.line for key in keys])
    else:
        _trust_on_first_use(project, target, limits)


def _wait_for_keys(published: PublishedKeys, limits: WaitLimits) -> Sequence[HostKey]:
    """The host keys that our boot unit publishes; empty when none came in time."""
    deadline = time.monotonic() + limits.host_keys_s
    while not (keys := published.fetch()) and time.monotonic() < deadline:
        time.sleep(limits.pause_s)
    return keys


def _trust_on_first_use(project: Project, target: Host, limits: WaitLimits) -> None:
    from provision.hosts.ssh import connection

    pins = project.known_hosts
    waited = f"it published no host keys within {limits.host_keys_s:g} s"
    for key in limits.until_reachable(
        connection.scan_host_keys, target, known_hosts=pins, ssh_config=project.ssh_config
    ):
        project.emit(Note(f"trusting on first use: {key} ({waited})", host=target.name))
        pins.pin(str(target.key_alias), key.line)
