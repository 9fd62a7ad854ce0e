"""VMs in the cloud: listed, shown, deleted."""

from __future__ import annotations

from collections.abc import Callable

from provision.app import trust
from provision.app.clouds import cloud_of, find, journal_of, owner_of, refuse_orphan
from provision.app.session import Done, Session
from provision.app.state import VmRecords
from provision.app.vm_documents import cell, document, static_document, table
from provision.cloud import body
from provision.cloud.create import delete_vm
from provision.errors import UsageError
from provision.hosts.keys import ensure_key


def vm_list(session: Session) -> Done:
    """The VMs that this project made, over all zones."""
    cloud = cloud_of(session)
    vms = [document(vm) for vm in cloud.list({body.OWNER_LABEL: owner_of(ensure_key(session.home / "key"))})]
    return Done({"vms": vms}, text=table(vms) if vms else "no VMs")


def vm_show(session: Session, name: str) -> Done:
    """One VM as the cloud describes it, or a host as the settings do."""
    if name in session.settings.hosts:
        shown = static_document(session, name)
    else:
        vm = find(session, cloud_of(session), name)
        shown = {**document(vm), "image": vm.image, "labels": dict(vm.labels), "created": vm.created}
    text = "\n".join(f"{key:13} {cell(value)}" for key, value in shown.items())
    return Done({"vm": shown}, text=text)


def vm_delete(session: Session, name: str, *, yes: bool, confirm: Callable[[str], bool] | None) -> Done:
    """Delete the VM and its disk, after asking. A host of the settings is not ours to delete: nothing happens."""
    if name in session.settings.hosts:
        return Done({"deleted": [], "changed": False}, text=f"{name} is a host of the settings: nothing to delete")
    if not yes and (confirm is None or not confirm(f"Delete the VM {name} and its disk?")):
        why = "there is no terminal to ask on" if confirm is None else "the answer was no"
        raise UsageError(f"{name} was not deleted", why=why, fix=f"{session.program_argv0} vm.delete --name {name} --yes")
    records = VmRecords(session.home / "vms.json")
    cloud, owner = cloud_of(session), owner_of(ensure_key(session.home / "key"))
    removed = delete_vm(cloud, name, owner, journal_of(session), session.emit)
    if not removed:
        refuse_orphan(session, cloud, name, owner, "delete")
    records.remove(name)
    for vm in removed:
        trust.known_hosts(session).forget(trust.key_alias(vm.instance_id))
    zones = ", ".join(vm.zone for vm in removed)
    text = f"deleted {name} ({zones})" if removed else f"there is no VM named {name}"
    return Done({"deleted": [document(vm) for vm in removed], "changed": bool(removed)}, text=text)
