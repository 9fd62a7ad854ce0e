"""Every host there is: those of the settings, the VMs that were made, and what the cloud says of them now."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from provision.core.errors import CloudError
from provision.core.model import Host, Vm
from provision.hosts.keys import ensure_key
from provision.hosts.patterns import Traits, matching, names_in, nobody
from provision.hosts.ssh import iap
from provision.project import host_keys, mock, vm_access
from provision.project.project import Project
from provision.project.records import VmRecord, VmRecords

if TYPE_CHECKING:
    from provision.project.cloud import Hidden

SSH_PORT = 22
STATIC = "static"
"""State of a host of the settings, which nobody starts or stops here."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A host and what is known of the machine behind it; empty where nobody says."""

    host: Host
    source: str
    """`settings` or `cloud`."""
    state: str
    """The cloud's word in lower case (`running`), or `static`."""
    zone: str = ""
    gpu: str = ""
    gpu_count: int = 0
    machine_type: str = ""
    instance_id: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def traits(self) -> Traits:
        """What filters ask for."""
        found = {
            "name": {self.host.name},
            "state": {self.state},
            "gpu": _ways_to_write(self.gpu),
            "zone": {self.zone},
            "machine_type": {self.machine_type},
            "source": {self.source},
            **{f"label.{key}": {value} for key, value in self.labels.items()},
        }
        return {
            key: frozenset(value.lower() for value in values if value or key.startswith("label."))
            for key, values in found.items()
        }


def _ways_to_write(gpu: str) -> set[str]:
    """`nvidia-h100-80gb` is also `h100-80gb` and `h100`."""
    short = gpu.removeprefix("nvidia-").removeprefix("tesla-")
    return {gpu, gpu.removeprefix("nvidia-"), short, re.sub(r"-\d+gb$", "", short)}


def remembered(project: Project) -> list[Host]:
    """Every host that is known without asking anybody: those of the settings, then the VMs that were made."""
    static = _static(project)
    taken = {host.name for host in static}
    records = [record for record in _records(project).all() if record.name not in taken]
    return [*static, *_hosts_of(project, records)]


@dataclass(frozen=True)
class Inventory:
    """Every host as it is now, and the VMs and zones that could not be looked at."""

    machines: Sequence[Machine]
    hidden: Sequence[Hidden] = ()

    def matching(self, project: Project, pattern: str) -> list[Machine]:
        """The hosts that a pattern means. What is hidden is never among them: whether a filter fits it cannot be known.

        Raises as `provision.hosts.patterns.matching`, and CloudError for a name that is hidden.
        """
        machines = {machine.host.name: machine for machine in self.machines}
        unseen = {
            each.name: each for each in self.hidden if each.name and each.name not in machines
        }
        for name in names_in(pattern):
            self.named(project, name)
        hosts = [
            *(machine.host for machine in self.machines),
            *(Host(name=name, address="") for name in unseen),
        ]
        meant = matching(
            hosts, pattern, {name: machine.traits for name, machine in machines.items()}
        )
        return [machines[host.name] for host in meant if host.name in machines]

    def named(self, project: Project, name: str) -> Machine | None:
        """The host of this name. Raises CloudError when it is hidden."""
        found = next((machine for machine in self.machines if machine.host.name == name), None)
        unseen = next((each for each in self.hidden if each.name == name), None)
        if found is None and unseen is not None:
            raise unseen.error(project)
        return found


def listed(project: Project) -> Inventory:
    """Every host as it is now: those of the settings, then our VMs, which the cloud is asked for in one call; what is hidden is told.

    It is not asked where it can have none of ours: before this project has a key, or a mock.
    """
    static = [Machine(host=host, source="settings", state=STATIC) for host in _static(project)]
    taken = {machine.host.name for machine in static}
    vms, records, hidden = _vms(project, taken)
    hosts = refreshed(project, _hosts_of(project, records))
    return Inventory(
        [*static, *(_machine_of(host, vm) for host, vm in zip(hosts, vms, strict=True))], hidden
    )


def chosen(project: Project, pattern: str) -> list[Host]:
    """The hosts to act on as they are now. Raises as `Inventory.matching`; UsageError for none, CloudError where some are hidden."""
    everything = listed(project)
    found = everything.matching(project, pattern)
    if not found and everything.hidden:
        why = "\n".join(map(str, everything.hidden))
        raise CloudError(
            "the pattern leaves no host that could be looked at", where=repr(pattern), why=why
        )
    if not found:
        raise nobody([machine.host for machine in everything.machines], pattern)
    return [machine.host for machine in found]


def is_forgotten(project: Project) -> bool:
    """True when a VM that was made here is not among the remembered: a run was killed before it, or the file was lost."""
    if not _may_have_vms(project):
        return False
    from provision.cloud.lifecycle.journal import MADE
    from provision.project.cloud import journal_of

    known = {host.name for host in remembered(project)}
    return any(
        entry.state == MADE and entry.name not in known for entry in journal_of(project).open()
    )


def refreshed(project: Project, hosts: Sequence[Host]) -> list[Host]:
    """The hosts where they listen now: those of a mock that was stopped come up again on other ports."""
    mocked = [
        host
        for host in hosts
        if project.settings.cloud == "mock" and host.name not in project.settings.hosts
    ]
    now = {host.name: host for host in mock.refreshed(project, mocked)} if mocked else {}
    return [now.get(host.name, host) for host in hosts]


def _static(project: Project) -> list[Host]:
    return [_as_root(entry.host(name)) for name, entry in project.settings.hosts.items()]


def _as_root(target: Host) -> Host:
    """Who is root already needs no sudo, which such a host may lack."""
    is_root = os.geteuid() == 0 if target.is_local else target.user == "root"
    return replace(target, become="none") if is_root else target


def _may_have_vms(project: Project) -> bool:
    return (project.home / "key").exists() and (
        project.settings.cloud != "mock" or mock.exists(project)
    )


def _vms(project: Project, taken: Collection[str]) -> tuple[list[Vm], list[VmRecord], list[Hidden]]:
    """Our VMs; how each is reached: as is remembered, or else (another copy of the project made it) as it says; what is hidden."""
    if not _may_have_vms(project):
        return [], [], []
    from provision.project.cloud import cloud_of, look

    cloud, key = cloud_of(project), ensure_key(project.home / "key")
    ours = look(project, cloud)
    vms = [vm for vm in ours.vms if vm.name not in taken]
    known = {record.instance_id: record for record in _records(project).all()}
    records = [
        known.get(vm.instance_id)
        or record_of(vm, vm_access.user_of(project, cloud, vm, key), SSH_PORT)
        for vm in vms
    ]
    records = [
        replace(record, address=address_of(vm)) for record, vm in zip(records, vms, strict=True)
    ]
    return vms, records, [each for each in ours.hidden if each.name not in taken]


def _machine_of(host: Host, vm: Vm) -> Machine:
    return Machine(
        host=host,
        source="cloud",
        state=vm.status.lower(),
        zone=vm.zone,
        gpu=vm.gpu or "",
        gpu_count=vm.gpu_count,
        machine_type=vm.machine_type,
        instance_id=vm.instance_id,
        labels=dict(vm.labels),
    )


def record_of(vm: Vm, user: str, port: int) -> VmRecord:
    """How a VM is reached, as the tasks on it will read it."""
    return VmRecord(
        name=vm.name,
        zone=vm.zone,
        address=address_of(vm),
        port=port,
        user=user,
        instance_id=vm.instance_id,
        key_alias=host_keys.key_alias(vm.instance_id),
        created=vm.created,
        machine_type=vm.machine_type,
        gpu=vm.gpu,
    )


def address_of(vm: Vm) -> str:
    """Its external address, else the one inside the network; empty while it has none."""
    return vm.address or vm.internal_address or ""


def _records(project: Project) -> VmRecords:
    return VmRecords(project.home / "vms.json")


def _hosts_of(project: Project, records: Sequence[VmRecord]) -> list[Host]:
    if not records:
        return []
    if any(record.user != vm_access.USER for record in records):
        vm_access.renew(project)
    identity = str(ensure_key(project.home / "key").private_path)
    tunnel = _tunnel(project)
    return [
        Host(
            name=record.name,
            address=record.address,
            port=record.port,
            user=record.user,
            identity=identity,
            key_alias=record.key_alias,
            proxy=tunnel(record),
        )
        for record in records
    ]


def _tunnel(project: Project) -> Callable[[VmRecord], tuple[str, ...]]:
    """The words that open the way to a VM without an external address; on the mock those of a stand-in for gcloud."""
    if project.settings.ssh == "direct":
        return lambda record: ()
    program = mock.gcloud(project) if project.settings.cloud == "mock" else iap.PROGRAM
    cloud_project = project.settings.project or mock.MOCK_PROJECT
    return lambda record: iap.tunnel(
        record.name, project=cloud_project, zone=record.zone, program=program
    )
