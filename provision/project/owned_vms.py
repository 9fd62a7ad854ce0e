"""The VMs that carry this project's owner label, as the cloud reports them now."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from provision.cloud.api.labels import OWNER_LABEL, is_owned_by
from provision.cloud.api.protocol import ComputeCloud, Listing
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.journal import DELETING, INTENT, MADE, UNSURE
from provision.cloud.lifecycle.recovery import recover_entry
from provision.core.errors import CloudError, UsageError
from provision.core.model import Vm
from provision.project.project import Project


@dataclass(frozen=True)
class HiddenVm:
    """An owned VM that the cloud did not describe; with an empty name, all VMs of a silent zone."""

    zone: str
    why: str
    name: str = ""

    def __str__(self) -> str:
        if self.name:
            return f"{self.name} in {self.zone} is missing here, and may run and bill: {self.why}"
        return f"VMs in {self.zone} may be missing here: {self.why}"

    def error(self, project: Project) -> CloudError:
        """Return the error of a task that has to act on this VM."""
        describe = f"gcloud compute instances describe {self.name} --zone {self.zone}"
        return CloudError(
            "the VM was created, and cannot be described now",
            where=f"{self.zone}/{self.name}",
            why=self.why,
            fix=describe + project.gcloud_project_flag,
        )


@dataclass(frozen=True)
class OwnedVms:
    """The owned VMs, by zone and name, and those that the cloud did not describe."""

    vms: Sequence[Vm]
    hidden: Sequence[HiddenVm] = ()

    def refuse_hidden(self, project: Project, pattern: str) -> None:
        """Raise `CloudError` when a hidden VM's name matches the name or pattern."""
        for hidden in self.hidden:
            if hidden.name and fnmatch.fnmatchcase(hidden.name, pattern):
                raise hidden.error(project)


def list_vms_from_cloud(project: Project, cloud: ComputeCloud) -> OwnedVms:
    """Return the owned VMs over all zones; print what is hidden.

    One call where the listing shows every VM that the journal has. A zone that does not answer is
    missing in a listing without an error (warning UNREACHABLE), and its VMs bill on: each VM that
    the journal has and the listing lacks is requested by name.
    """
    owner = project.ensure_owner()
    listing = cloud.list_with_failures({OWNER_LABEL: owner})
    vms = {(vm.zone, vm.name): vm for vm in listing.vms}
    hidden: list[HiddenVm] = []
    context = CloudContext(cloud=cloud, journal=project.journal, emit=project.emit)
    for entry in project.journal.open():
        if entry.state != MADE or (entry.zone, entry.name) in vms:
            continue
        try:
            vm = recover_entry(context, entry)
        except CloudError as error:
            hidden.append(HiddenVm(entry.zone, error.why or error.what, entry.name))
        else:
            if vm is not None and is_owned_by(vm, owner):
                vms[vm.zone, vm.name] = vm
    hidden += _silent_zones(listing, hidden)
    for vm_or_zone in hidden:
        project.note_once(str(vm_or_zone))
    return OwnedVms([vms[key] for key in sorted(vms)], hidden)


def _silent_zones(listing: Listing, hidden: Sequence[HiddenVm]) -> list[HiddenVm]:
    """Zones that did not answer and of which no VM is in `hidden` already."""
    covered = {vm.zone for vm in hidden}
    return [
        HiddenVm(silence.zone, silence.why)
        for silence in listing.failures
        if silence.zone not in covered
    ]


def fetch_vm(project: Project, cloud: ComputeCloud, name: str) -> Vm:
    """Return the owned VM of this name.

    Raises `UsageError` when there is none, `CloudError` when it is hidden or has another label.
    """
    owned = list_vms_from_cloud(project, cloud)
    vm = next((vm for vm in owned.vms if vm.name == name), None)
    if vm is None:
        owned.refuse_hidden(project, name)
        check_cloud_for_other_owner(project, cloud, name, "describe")
        raise unknown_vm_error(project, name, owned)
    return vm


def unknown_vm_error(project: Project, name: str, owned: OwnedVms) -> UsageError:
    """Return the error for a name or pattern that matches no owned VM; it lists the owned VMs."""
    names = ", ".join(vm.name for vm in owned.vms)
    return UsageError(
        f"there is no VM named {name}",
        where="--name",
        why=f"VMs of this project: {names}" if names else "this project has no VM",
        fix=f"{project.program_argv0} vm.list",
    )


def check_cloud_for_other_owner(
    project: Project, cloud: ComputeCloud, name: str, verb: str
) -> None:
    """Raise `CloudError` when VMs of this name exist with another owner label; one request.

    Such a VM may be an earlier one of this project, and bill: the label is derived from the key,
    and the key's folder from the project folder, so a renamed folder has another label. `verb` is
    the gcloud command that the error offers.
    """
    others = [vm for vm in cloud.list({}) if vm.name == name]
    if not others:
        return
    labels = [
        f"{vm.zone}: {vm.status}, label {OWNER_LABEL} is {vm.labels.get(OWNER_LABEL)!r}"
        for vm in others
    ]
    expected = (
        f"this project's is {project.ensure_owner()!r}; "
        "it changes when the project folder is moved or renamed"
    )
    commands = [
        f"gcloud compute instances {verb} {name} --zone {vm.zone}{project.gcloud_project_flag}"
        for vm in others
    ]
    raise CloudError(
        f"a VM named {name} exists, but not with this project's label",
        where=", ".join(f"{vm.zone}/{name}" for vm in others),
        why="\n".join([*labels, expected]),
        fix="\n".join(commands),
    )


def unfinished_vm_lines(project: Project) -> list[str]:
    """Return a line for each VM whose creation or deletion an earlier run did not finish.

    Reads the journal alone.
    """
    states = {
        INTENT: "was being created",
        UNSURE: "was requested without an answer",
        DELETING: "was being deleted",
    }
    return [
        f"{entry.name} {states.get(entry.state, 'could not be deleted')} in {entry.zone} "
        f"when a run ended: `{project.program_argv0} vm.gc` checks it"
        for entry in project.journal.open()
        if entry.state != MADE and not project.journal.is_claimed(entry.name)
    ]
