"""Every host: those of the settings, the recorded VMs, and the VMs as the cloud lists them now."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from provision.cloud.lifecycle.journal import MADE
from provision.core.errors import CloudError
from provision.core.model import Host, Vm
from provision.hosts.limit_patterns import Traits, included_names, no_host_error, select_hosts
from provision.hosts.ssh import iap
from provision.project.login import prepare_login, request_login_user
from provision.project.owned_vms import HiddenVm, list_vms_from_cloud
from provision.project.project import Project
from provision.project.records import VmRecord, address_of, record_of

SSH_PORT = 22
STATIC = "static"
"""State of a host of the settings: tasks never start or stop it."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A host and the facts about its machine; a fact that is unknown is empty."""

    host: Host
    source: str
    """`settings` or `cloud`."""
    state: str
    """The cloud's status in lower case (`running`), or `static`."""
    zone: str = ""
    gpu: str = ""
    gpu_count: int = 0
    machine_type: str = ""
    instance_id: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def traits(self) -> Traits:
        """The values that filters compare, in lower case."""
        values_of = {
            "name": {self.host.name},
            "state": {self.state},
            "gpu": _gpu_spellings(self.gpu),
            "zone": {self.zone},
            "machine_type": {self.machine_type},
            "source": {self.source},
            **{f"label.{key}": {value} for key, value in self.labels.items()},
        }
        return {
            key: frozenset(value.lower() for value in values if value or key.startswith("label."))
            for key, values in values_of.items()
        }


def _gpu_spellings(gpu: str) -> set[str]:
    """The names that a filter may use: `nvidia-h100-80gb` is also `h100-80gb` and `h100`."""
    short = gpu.removeprefix("nvidia-").removeprefix("tesla-")
    return {gpu, gpu.removeprefix("nvidia-"), short, re.sub(r"-\d+gb$", "", short)}


# --- without a request ----------------------------------------------------------------------------


def recorded_hosts(project: Project) -> list[Host]:
    """Return the hosts of the settings, then the recorded VMs. No request, no file written."""
    static = _static_hosts(project)
    taken = {host.name for host in static}
    records = [record for record in project.records.all() if record.name not in taken]
    return [*static, *(host_of_record(project, record) for record in records)]


def host_of_record(project: Project, record: VmRecord) -> Host:
    """Return the host of a recorded VM, with the project's key as its identity."""
    return Host(
        name=record.name,
        address=record.address,
        port=record.port,
        user=record.user,
        identity=str(project.key_path),
        key_alias=record.key_alias,
        proxy=_tunnel_command(project, record),
    )


def _tunnel_command(project: Project, record: VmRecord) -> tuple[str, ...]:
    """The command that opens a tunnel to a VM without an external address."""
    if project.settings.ssh == "direct":
        return ()
    is_mock = project.settings.cloud == "mock"
    program = str(project.mock.gcloud_path) if is_mock else iap.PROGRAM
    return iap.tunnel_command(
        record.name, project=project.cloud_project, zone=record.zone, program=program
    )


def has_unrecorded_vm(project: Project) -> bool:
    """Return whether the journal has a created VM that is not recorded; reads local files alone.

    A run was killed before it wrote the record, or the file was lost.
    """
    if not _may_have_vms(project):
        return False
    recorded = {host.name for host in recorded_hosts(project)}
    return any(
        entry.state == MADE and entry.name not in recorded for entry in project.journal.open()
    )


def _may_have_vms(project: Project) -> bool:
    """False before the project has a key, and on the mock before it was first started."""
    return project.key_path.exists() and (project.settings.cloud != "mock" or project.mock.exists)


def _static_hosts(project: Project) -> list[Host]:
    return [_without_sudo(entry.host(name)) for name, entry in project.settings.hosts.items()]


def _without_sudo(target: Host) -> Host:
    """The host, with `become` off where the user is root: such a host may have no sudo."""
    is_root = os.geteuid() == 0 if target.is_local else target.user == "root"
    return replace(target, become="none") if is_root else target


# --- with requests --------------------------------------------------------------------------------


def prepare_access(project: Project, hosts: Sequence[Host]) -> list[Host]:
    """Make the hosts reachable, and return them at their current ports.

    Prepares the login to VMs (`prepare_login`), and starts a stopped mock, whose hosts then listen
    on other ports.
    """
    prepare_login(project, hosts)
    mocked = [
        host
        for host in hosts
        if project.settings.cloud == "mock" and host.name not in project.settings.hosts
    ]
    current = {host.name: host for host in project.mock.start_hosts(mocked)} if mocked else {}
    return [current.get(host.name, host) for host in hosts]


@dataclass(frozen=True)
class Inventory:
    """Every host as it is now, and the VMs and zones that the cloud did not describe."""

    machines: Sequence[Machine]
    hidden: Sequence[HiddenVm] = ()

    def matching(self, project: Project, pattern: str) -> list[Machine]:
        """Return the hosts that a pattern selects.

        A hidden VM is never among them, since its facts are unknown to a filter. Raises as
        `provision.hosts.limit_patterns.select_hosts`, and `CloudError` for the name of a hidden VM.
        """
        machines = {machine.host.name: machine for machine in self.machines}
        hidden = {vm.name for vm in self.hidden if vm.name and vm.name not in machines}
        for name in included_names(pattern):
            self.find(project, name)
        hosts = [
            *(machine.host for machine in self.machines),
            *(Host(name=name, address="") for name in sorted(hidden)),
        ]
        selected = select_hosts(
            hosts, pattern, {name: machine.traits for name, machine in machines.items()}
        )
        return [machines[host.name] for host in selected if host.name in machines]

    def find(self, project: Project, name: str) -> Machine | None:
        """Return the host of this name, or None. Raises `CloudError` when it is hidden."""
        machine = next((machine for machine in self.machines if machine.host.name == name), None)
        hidden = next((vm for vm in self.hidden if vm.name == name), None)
        if machine is None and hidden is not None:
            raise hidden.error(project)
        return machine


def fetch_inventory(project: Project) -> Inventory:
    """Return every host as it is now: those of the settings, then the owned VMs.

    One listing of the cloud; none where there can be no owned VM: before this project has a key, or
    a mock. Prints which VMs are hidden, and prepares the access to the others.
    """
    static = [
        Machine(host=host, source="settings", state=STATIC) for host in _static_hosts(project)
    ]
    if not _may_have_vms(project):
        return Inventory(static)
    taken = {machine.host.name for machine in static}
    owned = list_vms_from_cloud(project, project.connect_cloud())
    vms = [vm for vm in owned.vms if vm.name not in taken]
    records = _request_records(project, vms)
    hosts = prepare_access(project, [host_of_record(project, record) for record in records])
    return Inventory(
        [*static, *(_machine(host, vm) for host, vm in zip(hosts, vms, strict=True))],
        [vm for vm in owned.hidden if vm.name not in taken],
    )


def _request_records(project: Project, vms: Sequence[Vm]) -> list[VmRecord]:
    """The VMs' records at their current addresses.

    Of a VM without a record (another copy of the project created it) the login is requested.
    """
    recorded = {record.instance_id: record for record in project.records.all()}
    records = (
        recorded.get(vm.instance_id)
        or record_of(vm, request_login_user(project, project.connect_cloud(), vm), SSH_PORT)
        for vm in vms
    )
    return [
        replace(record, address=address_of(vm)) for record, vm in zip(records, vms, strict=True)
    ]


def _machine(host: Host, vm: Vm) -> Machine:
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


def fetch_matching_hosts(project: Project, pattern: str) -> list[Host]:
    """Return the hosts that a pattern selects now.

    Raises as `Inventory.matching`; for no match `UsageError`, or `CloudError` where VMs are hidden.
    """
    inventory = fetch_inventory(project)
    machines = inventory.matching(project, pattern)
    if not machines and inventory.hidden:
        raise CloudError(
            "the pattern selects no host that the cloud described",
            where=repr(pattern),
            why="\n".join(map(str, inventory.hidden)),
        )
    if not machines:
        raise no_host_error([machine.host for machine in inventory.machines], pattern)
    return [machine.host for machine in machines]
