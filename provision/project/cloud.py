"""Which cloud the settings mean, whose VMs are ours there, and where what is asked of it is written down."""

from __future__ import annotations

import fnmatch
import getpass
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.cloud.api import body
from provision.cloud.api.ports import ComputeCloud
from provision.cloud.lifecycle.context import Means, is_ours
from provision.cloud.lifecycle.insert import resume
from provision.cloud.lifecycle.journal import DELETING, INTENT, MADE, UNSURE, FileJournal
from provision.cloud.market.prices import PriceList, packaged
from provision.core.errors import CloudError, SettingsError, UsageError
from provision.core.model import Vm
from provision.hosts.keys import KeyPair, ensure_key
from provision.project.mock import MOCK_PROJECT
from provision.project.project import Project

if TYPE_CHECKING:
    from provision.cloud.api.client import ComputeClient


def cloud_of(project: Project, **limits: Any) -> ComputeCloud:
    """The cloud of the settings; the mock is started on demand. `limits` are those of `ComputeClient`."""
    from provision.cloud.api.gce import GceCloud

    if project.settings.cloud == "mock":
        from provision.project.mock import endpoint

        return GceCloud(project.settings.project or MOCK_PROJECT, endpoint(project), **limits)
    return GceCloud(str(project.settings.project), **limits)


def client_of(project: Project) -> ComputeClient:
    """Requests to that cloud that are about no VM: what it offers, quotas, images. Close it after use."""
    from provision.cloud.api.client import ComputeClient

    if project.settings.cloud == "mock":
        from provision.project.mock import endpoint

        return ComputeClient(project.settings.project or MOCK_PROJECT, endpoint(project))
    return ComputeClient(str(project.settings.project))


def prices_of(project: Project) -> PriceList:
    """The price list of the settings, or the packaged one. Raises SettingsError for one that cannot be read."""
    named = project.settings.prices
    if named is None:
        return packaged()
    path = project.project_dir / Path(named).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"provision.prices is {named!r}: it cannot be read",
            where=named,
            why=str(error),
            fix=f"ls -l {path}",
        ) from error
    return PriceList.from_text(text, named)


def journal_of(project: Project) -> FileJournal:
    """Where what is asked of the cloud is written down before it is asked."""
    return FileJournal(
        project.home / "journal.jsonl",
        project.settings.project or MOCK_PROJECT,
        say=project.say_once,
    )


def every_journal(project: Project) -> list[FileJournal]:
    """The journals of all project folders of this machine, as far as they concern the settings' Google Cloud project."""
    cloud_project = project.settings.project or MOCK_PROJECT
    return [
        FileJournal(path, cloud_project, say=project.say_once)
        for path in sorted((project.state_dir / "projects").glob("*/journal.jsonl"))
    ]


def unfinished(project: Project) -> list[str]:
    """A line for each VM that an earlier run asked for, or began to delete, and did not live to see the end of."""
    journal = journal_of(project)
    words = {
        INTENT: "was being made",
        UNSURE: "was asked for without an answer",
        DELETING: "was being deleted",
    }
    remedy = f"`{project.program_argv0} vm.gc` looks"
    return [
        f"{entry.name} {words.get(entry.state, 'could not be deleted')} in {entry.zone} when a run ended: {remedy}"
        for entry in journal.open()
        if entry.state != MADE and not journal.is_claimed(entry.name)
    ]


def owner_of(key: KeyPair) -> str:
    """Whose a VM is: who holds the project's private key."""
    user = re.sub(r"[^a-z0-9_-]", "-", getpass.getuser().lower())[:30]
    return f"{user}-{hashlib.sha256(key.public_line.encode()).hexdigest()[:12]}"


def ours(cloud: ComputeCloud, name: str, owner: str) -> Vm | None:
    """The VM of this name that carries the owner label, in whatever zone it is."""
    return next((vm for vm in cloud.list({body.OWNER_LABEL: owner}) if vm.name == name), None)


@dataclass(frozen=True)
class Hidden:
    """A VM of ours that the cloud would not describe, or with an empty name whatever a zone holds that did not answer."""

    zone: str
    why: str
    name: str = ""

    def __str__(self) -> str:
        if self.name:
            return f"{self.name} in {self.zone} is missing here, and may run and bill: {self.why}"
        return f"VMs in {self.zone} may be missing here: {self.why}"

    def error(self, project: Project) -> CloudError:
        """For a task that is to act on it."""
        flag = f" --project {project.settings.project}" if project.settings.project else ""
        fix = f"gcloud compute instances describe {self.name} --zone {self.zone}{flag}"
        return CloudError(
            "the VM was made, and cannot be looked at now",
            where=f"{self.zone}/{self.name}",
            why=self.why,
            fix=fix,
        )


@dataclass(frozen=True)
class Known:
    """Our VMs, by zone and name, and what could not be looked at."""

    vms: Sequence[Vm]
    hidden: Sequence[Hidden] = ()

    def refuse_hidden(self, project: Project, pattern: str) -> None:
        """Raises CloudError when what a name or pattern means may be there, though the cloud did not say so."""
        for hidden in self.hidden:
            if hidden.name and fnmatch.fnmatchcase(hidden.name, pattern):
                raise hidden.error(project)


def look(project: Project, cloud: ComputeCloud) -> Known:
    """Our VMs over all zones; one call where the list shows all that the journal knows. What is hidden is told.

    A zone that does not answer is missing in the list without an error (warning UNREACHABLE), and
    its VMs bill on: what the journal calls made and the list lacks is asked for by name.
    """
    owner = owner_of(ensure_key(project.home / "key"))
    listing = cloud.listing({body.OWNER_LABEL: owner})
    found = {(vm.zone, vm.name): vm for vm in listing.vms}
    hidden: list[Hidden] = []
    means = Means(cloud=cloud, journal=journal_of(project), emit=project.emit)
    for entry in means.journal.open():
        if entry.state != MADE or (entry.zone, entry.name) in found:
            continue
        try:
            vm = resume(means, entry)
        except CloudError as error:
            hidden.append(Hidden(entry.zone, error.why or error.what, entry.name))
        else:
            if vm is not None and is_ours(vm, owner):
                found[vm.zone, vm.name] = vm
    told = {each.zone for each in hidden}
    hidden += [
        Hidden(silence.zone, silence.why) for silence in listing.silent if silence.zone not in told
    ]
    for each in hidden:
        project.say_once(str(each))
    return Known([vm for _, vm in sorted(found.items(), key=lambda item: item[0])], hidden)


def mine(project: Project, cloud: ComputeCloud) -> Sequence[Vm]:
    """Our VMs over all zones, as `look` finds them."""
    return look(project, cloud).vms


def find(project: Project, cloud: ComputeCloud, name: str) -> Vm:
    """Our VM of this name. Raises UsageError for none, CloudError when it is hidden or carries another label."""
    owner = owner_of(ensure_key(project.home / "key"))
    known = look(project, cloud)
    found = next((vm for vm in known.vms if vm.name == name), None)
    if found is None:
        known.refuse_hidden(project, name)
        refuse_orphan(project, cloud, name, owner, "describe")
        raise no_such_vm(project, name, known)
    return found


def no_such_vm(project: Project, name: str, known: Known) -> UsageError:
    """The error for a name or pattern that means none of our VMs; it names those that there are."""
    named = ", ".join(vm.name for vm in known.vms)
    why = f"VMs of this project: {named}" if named else "this project has no VM"
    return UsageError(
        f"there is no VM named {name}",
        where="--name",
        why=why,
        fix=f"{project.program_argv0} vm.list",
    )


def refuse_orphan(project: Project, cloud: ComputeCloud, name: str, owner: str, verb: str) -> None:
    """Raises CloudError when a VM of this name exists in any zone under another label: it may be ours from before, and bill.

    The label comes from the project's key, and the key's place from the project folder: a folder
    that was renamed has another. `verb` is what gcloud would be asked to do with it.
    """
    others = [vm for vm in cloud.list({}) if vm.name == name]
    if not others:
        return
    flag = f" --project {project.settings.project}" if project.settings.project else ""
    raise CloudError(
        f"a VM named {name} exists, but not with this project's label",
        where=", ".join(f"{vm.zone}/{name}" for vm in others),
        why="\n".join(
            f"{vm.zone}: {vm.status}, label {body.OWNER_LABEL} is {vm.labels.get(body.OWNER_LABEL)!r}"
            for vm in others
        )
        + f"\nours is {owner!r}; it changes when the project folder is moved or renamed",
        fix="\n".join(
            f"gcloud compute instances {verb} {name} --zone {vm.zone}{flag}" for vm in others
        ),
    )
