"""From a VM that runs to a host that answers: remembered, its keys pinned, SSH waited for. What fails says that the VM runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_fixed,
)

from provision.cloud.api.ports import ComputeCloud
from provision.commands.shared import convergence
from provision.core.errors import (
    HostKeyMismatch,
    Interrupted,
    ProvisionError,
    TunnelRefused,
    Unreachable,
)
from provision.core.model import Host, Note, Vm
from provision.hosts.known_hosts import HostKey, KnownHosts
from provision.project import host_keys, inventory, login
from provision.project.project import Project
from provision.project.records import record_of


@dataclass(frozen=True)
class Patience:
    """How long a VM that runs is waited for: until it published its host keys, until it answers on SSH."""

    host_keys_s: float = 180.0
    """Trusting what answers first comes only after this: a first boot publishes late."""
    ssh_s: float = 180.0
    pause_s: float = 2.0
    attributes_pause_s: float = host_keys.ATTRIBUTES_PAUSE_S
    """Between two queries of its guest attributes."""
    readings: int = 3
    """How often published keys are read before a key that differs is believed to be another
    machine's: a first boot may replace them, and its unit looks every five seconds."""

    @staticmethod
    def of(project: Project) -> Patience:
        """That of the settings' cloud; a mock host is up when its VM is."""
        return (
            Patience()
            if project.settings.cloud == "gce"
            else Patience(host_keys_s=5.0, pause_s=0.1, attributes_pause_s=0.1)
        )

    @property
    def retrying(self) -> Retrying:
        """Tries again while nothing answers; then raises what the last try raised. What waiting does not help is raised at once."""
        worth_it = retry_if_exception_type(Unreachable) & retry_if_not_exception_type(TunnelRefused)
        return Retrying(
            stop=stop_after_delay(self.ssh_s),
            wait=wait_fixed(self.pause_s),
            retry=worth_it,
            reraise=True,
        )

    @property
    def rereading(self) -> Retrying:
        """Tries again, a few times, while the key is not the pinned one; each try reads what the VM has published."""
        return Retrying(
            stop=stop_after_attempt(self.readings),
            wait=wait_fixed(self.attributes_pause_s),
            retry=retry_if_exception_type(HostKeyMismatch),
            reraise=True,
        )


def bills(project: Project, vm: Vm) -> str:
    """What must be known of a VM when the task that made it did not end well."""
    state = "runs" if project.settings.cloud == "mock" else "runs and bills"
    create, delete = (
        f"`{project.program_argv0} vm.{verb} --name {vm.name}`" for verb in ("create", "delete")
    )
    return f"{vm.name} {state} in {vm.zone}; {create} continues, {delete} removes it"


@contextmanager
def still_there(project: Project, vm: Vm) -> Iterator[None]:
    """Whatever ends the block early, Ctrl-C included, says that the VM runs, and what to do about it."""
    try:
        yield
    except ProvisionError as error:
        error.why = "\n".join(filter(None, (error.why, bills(project, vm))))
        raise
    except KeyboardInterrupt as error:
        fix = f"{project.program_argv0} vm.create --name {vm.name}"
        raise Interrupted("interrupted", where=vm.name, why=bills(project, vm), fix=fix) from error


def reach(project: Project, cloud: ComputeCloud, vm: Vm, patience: Patience) -> None:
    """Remember how the VM is reached, pin its host keys, and wait until it answers on SSH."""
    if not vm.address and not vm.internal_address:
        raise Unreachable(
            "the VM has no address",
            where=vm.name,
            why=f"status {vm.status}",
            fix=f"invoke vm.show --name {vm.name}",
        )
    user = login.request_login_user(project, cloud, vm)
    record = record_of(vm, user, cloud.ssh_port(vm))
    project.records.put(record)
    target = inventory.host_of_record(project, record)
    login.prepare_login(project, [target])
    _pin(project, cloud, vm, target, patience)
    try:
        patience.rereading(
            lambda: patience.retrying(convergence.connect, project, target, cloud=cloud)
        ).close()
    except Unreachable as error:
        login.explain_refused_login(project, user, error)
        raise


def _pin(project: Project, cloud: ComputeCloud, vm: Vm, target: Host, patience: Patience) -> None:
    """Pin the keys that the VM published about itself; failing that, those that it shows first, and say so."""
    pins = project.known_hosts
    if pins.pins(target, str(target.key_alias), files=()).known:
        return
    published = _published(
        host_keys.PublishedKeys(cloud, vm, attributes_pause_s=patience.attributes_pause_s), patience
    )
    if published:
        pins.replace(str(target.key_alias), [key.line for key in published])
    else:
        _trust_first(project, pins, target, patience)


def _published(publication: host_keys.PublishedKeys, patience: Patience) -> Sequence[HostKey]:
    """The host keys that our boot unit publishes; empty when they never came."""
    deadline = time.monotonic() + patience.host_keys_s
    while not (published := publication.fetch()) and time.monotonic() < deadline:
        time.sleep(patience.pause_s)
    return published


def _trust_first(project: Project, pins: KnownHosts, target: Host, patience: Patience) -> None:
    from provision.hosts.ssh import connection

    waited = f"it published no host keys within {patience.host_keys_s:g} s"
    for key in patience.retrying(
        connection.scan_host_keys, target, known_hosts=pins, ssh_config=project.ssh_config
    ):
        project.emit(Note(f"trusting on first use: {key} ({waited})", host=target.name))
        pins.pin(str(target.key_alias), key.line)
