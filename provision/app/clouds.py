"""Which cloud the settings mean, whose VMs are ours there, and where what is asked of it is written down."""

from __future__ import annotations

import getpass
import hashlib
import re

from provision.app.mock import MOCK_PROJECT
from provision.app.session import Session
from provision.cloud import body
from provision.cloud.journal import FileJournal
from provision.cloud.ports import ComputeCloud
from provision.errors import CloudError, CloudNotFound
from provision.hosts.keys import KeyPair, ensure_key
from provision.model import Vm


def cloud_of(session: Session) -> ComputeCloud:
    """The cloud of the settings; the mock is started on demand."""
    from provision.cloud.gce import GceCloud

    if session.settings.cloud == "mock":
        from provision.app.mock import endpoint

        return GceCloud(session.settings.project or MOCK_PROJECT, endpoint(session))
    return GceCloud(str(session.settings.project))


def journal_of(session: Session) -> FileJournal:
    """Where what is asked of the cloud is written down before it is asked."""
    return FileJournal(session.home / "journal.jsonl", session.settings.project or MOCK_PROJECT)


def owner_of(key: KeyPair) -> str:
    """Whose a VM is: who holds the project's private key."""
    user = re.sub(r"[^a-z0-9_-]", "-", getpass.getuser().lower())[:30]
    return f"{user}-{hashlib.sha256(key.public_line.encode()).hexdigest()[:12]}"


def ours(cloud: ComputeCloud, name: str, owner: str) -> Vm | None:
    """The VM of this name that carries the owner label, in whatever zone it is."""
    return next((vm for vm in cloud.list({body.OWNER_LABEL: owner}) if vm.name == name), None)


def find(session: Session, cloud: ComputeCloud, name: str) -> Vm:
    """Our VM of this name. Raises CloudNotFound, or CloudError when one of this name carries another label."""
    owner = owner_of(ensure_key(session.home / "key"))
    found = ours(cloud, name, owner)
    if found is None:
        refuse_orphan(session, cloud, name, owner, "describe")
        raise CloudNotFound(
            f"there is no VM named {name}", why="none of this name carries this project's label", fix=f"{session.program_argv0} vm.list"
        )
    return found


def refuse_orphan(session: Session, cloud: ComputeCloud, name: str, owner: str, verb: str) -> None:
    """Raises CloudError when a VM of this name exists in any zone under another label: it may be ours from before, and bill.

    The label comes from the project's key, and the key's place from the project folder: a folder that was renamed has another.
    `verb` is what gcloud would be asked to do with it.
    """
    others = [vm for vm in cloud.list({}) if vm.name == name]
    if not others:
        return
    project = f" --project {session.settings.project}" if session.settings.project else ""
    raise CloudError(
        f"a VM named {name} exists, but not with this project's label",
        where=", ".join(f"{vm.zone}/{name}" for vm in others),
        why="\n".join(f"{vm.zone}: {vm.status}, label {body.OWNER_LABEL} is {vm.labels.get(body.OWNER_LABEL)!r}" for vm in others)
        + f"\nours is {owner!r}; it changes when the project folder is moved or renamed",
        fix="\n".join(f"gcloud compute instances {verb} {name} --zone {vm.zone}{project}" for vm in others),
    )
