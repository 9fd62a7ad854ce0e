"""VMs in the cloud: made, listed, shown, deleted."""

from __future__ import annotations

import getpass
import hashlib
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from provision import templating
from provision.app import converging
from provision.app.session import Done, Session, Targets
from provision.app.state import VmRecord, VmRecords
from provision.cloud import body, catalog
from provision.cloud.create import Created, create_vm, delete_vm
from provision.cloud.journal import FileJournal
from provision.cloud.ports import ComputeCloud
from provision.errors import EXIT_WOULD_CHANGE, CloudNotFound, Unreachable, UsageError
from provision.hosts.keys import KeyPair, ensure_key
from provision.model import Facts, Host, Note, Vm, VmSpec
from provision.recipes import cos
from provision.resources import BootFragment
from provision.resources.boot import BOOT_TEXT

USER = "provision"
"""Account that the key in the instance's metadata makes: with sudo and Docker (guest agent's defaults)."""
MOCK_PROJECT = "mock-project"
SSH_WAIT_S = 180.0
_HOST_KEYS_WAIT_S = 60.0


def cloud_of(session: Session) -> ComputeCloud:
    """The cloud of the settings; the mock is started on demand."""
    from provision.cloud.gce import GceCloud

    if session.settings.cloud == "mock":
        from provision.app.mock import endpoint

        return GceCloud(session.settings.project or MOCK_PROJECT, endpoint(session))
    return GceCloud(str(session.settings.project))


def _journal(session: Session) -> FileJournal:
    return FileJournal(session.home / "journal.jsonl", session.settings.project or MOCK_PROJECT)


def _owner(key: KeyPair) -> str:
    """Whose a VM is: who holds the project's private key."""
    user = re.sub(r"[^a-z0-9_-]", "-", getpass.getuser().lower())[:30]
    return f"{user}-{hashlib.sha256(key.public_line.encode()).hexdigest()[:12]}"


def vm_create(session: Session, name: str, targets: Targets) -> Done:
    """Make the VM, wait for SSH, pin its host keys, provision it, verify it. Run again: no change."""
    if name in session.settings.hosts:
        session.emit(Note(f"{name} is a host of the settings: there is nothing to create"))
        return _provisioned(session, name, targets, _static_document(session, name), changed=False)
    cloud = cloud_of(session)
    key = ensure_key(session.home / "key")
    spec = _spec(session, name, key)
    if targets.check:
        return _check(cloud, spec, _owner(key))
    created = create_vm(cloud, spec, session.settings.zones, _journal(session), session.emit)
    record = _record(session, cloud, created.vm)
    return _provisioned(session, record.name, targets, _document(created.vm), changed=created.changed, tried=_tried(created))


def _provisioned(
    session: Session, name: str, targets: Targets, vm: dict[str, Any], *, changed: bool, tried: list[dict[str, Any]] | None = None
) -> Done:
    chosen = converging.hosts(session, Targets(host=name))
    finished = converging.converge(session, targets, chosen, lambda target: converging.cos_recipe(session, target), f"vm.create {name}")
    return converging.done(finished, check=targets.check, vm=vm, changed=changed, tried=tried or [])


def _tried(created: Created) -> list[dict[str, Any]]:
    return [attempt.as_dict() for attempt in created.tried]


def _check(cloud: ComputeCloud, spec: VmSpec, owner: str) -> Done:
    existing = [vm for vm in cloud.list({body.OWNER_LABEL: owner}) if vm.name == spec.name]
    if existing:
        return Done(
            {"vm": _document(existing[0]), "changed": False, "tried": [], "hosts": {}}, text=f"{spec.name} exists in {existing[0].zone}"
        )
    text = f"would create {spec.name}: {spec.machine_type}" + (f" + {spec.gpu_count} x {spec.gpu}" if spec.gpu else "")
    return Done({"vm": None, "changed": True, "tried": [], "hosts": {}}, EXIT_WOULD_CHANGE, text)


def _spec(session: Session, name: str, key: KeyPair) -> VmSpec:
    settings = session.settings
    machine_type = catalog.machine_for(settings.gpu, settings.gpu_count, settings.machine_type)
    return VmSpec(
        name=name,
        machine_type=machine_type,
        gpu=settings.gpu,
        gpu_count=settings.gpu_count if settings.gpu else 0,
        disk_gb=settings.disk_gb,
        image=settings.image,
        image_project=body.COS_PROJECT,
        ttl_s=settings.ttl_s,
        labels={body.OWNER_LABEL: _owner(key)},
        metadata=body.standard_metadata(user=USER, public_key=key.public_line, user_data=user_data(session)),
    )


def user_data(session: Session) -> str:
    """cloud-init user-data: the boot unit, and a seed of the boot script for the first boot.

    The steps are those of the recipe for a host that says ID=cos; what provisioning writes later replaces the seed.
    """
    unit = templating.boot_unit(project_dir=session.project_dir)
    recipe = cos(session.settings, boot_unit=unit, extras=())
    files = {"boot.sh": BOOT_TEXT}
    for resource in recipe:
        if isinstance(resource, BootFragment):
            content = (resource.desired(Facts(os_id="cos")) or {}).get("content", "")
            files[f"boot.d/{resource.file}"] = str(content)
    return templating.user_data(files, project_dir=session.project_dir)


def _record(session: Session, cloud: ComputeCloud, vm: Vm) -> VmRecord:
    """Wait until the VM answers on SSH with a key that is pinned, and remember how it is reached."""
    if not vm.address and not vm.internal_address:
        raise Unreachable("the VM has no address", where=vm.name, why=f"status {vm.status}", fix=f"invoke vm.show --name {vm.name}")
    alias = f"compute.{vm.instance_id}"
    record = VmRecord(
        name=vm.name,
        zone=vm.zone,
        address=vm.address or str(vm.internal_address),
        port=cloud.ssh_port(vm),
        user=USER,
        instance_id=vm.instance_id,
        key_alias=alias,
        created=vm.created,
        machine_type=vm.machine_type,
        gpu=vm.gpu,
    )
    VmRecords(session.home / "vms.json").put(record)
    target = next(host for host in converging.inventory(session) if host.name == vm.name)
    _pin(session, cloud, vm, target)
    _wait_for_ssh(session, target)
    return record


def _pin(session: Session, cloud: ComputeCloud, vm: Vm, target: Host) -> None:
    """Pin the keys that the VM published about itself; failing that, those that it shows first, and say so.

    Our boot unit publishes them as guest attributes `hostkeys/TYPE`. The pin's name is the instance id, since addresses
    are given to other machines later.
    """
    pins = converging.known_hosts(session)
    if pins.pins(target, str(target.key_alias), files=()).known:
        return
    deadline = time.monotonic() + (_HOST_KEYS_WAIT_S if session.settings.cloud == "gce" else 5.0)
    while not (published := cloud.guest_attributes(vm.name, vm.zone, "hostkeys/")) and time.monotonic() < deadline:
        time.sleep(2.0 if session.settings.cloud == "gce" else 0.1)
    if published:
        for kind, blob in published.items():
            pins.pin(str(target.key_alias), f"{kind} {blob}")
        return
    from provision.hosts import ssh
    from provision.hosts.ssh_config import SshConfig

    retrying = Retrying(stop=stop_after_delay(SSH_WAIT_S), wait=wait_fixed(3), retry=retry_if_exception_type(Unreachable), reraise=True)
    keys = retrying(ssh.scan, target, known_hosts=pins, ssh_config=SshConfig.of_user(session.environ))
    for key in keys:
        session.emit(Note(f"trusting on first use: {key}", host=vm.name))
        pins.pin(str(target.key_alias), key.line)


def _wait_for_ssh(session: Session, target: Host) -> None:
    """Connect once; a VM refuses for a while after it runs."""
    retrying = Retrying(stop=stop_after_delay(SSH_WAIT_S), wait=wait_fixed(2), retry=retry_if_exception_type(Unreachable), reraise=True)
    retrying(converging.connect, session, target).close()


def vm_list(session: Session) -> Done:
    """The VMs that this project made, over all zones."""
    cloud = cloud_of(session)
    vms = [_document(vm) for vm in cloud.list({body.OWNER_LABEL: _owner(ensure_key(session.home / "key"))})]
    return Done({"vms": vms}, text=_table(vms) if vms else "no VMs")


def vm_show(session: Session, name: str) -> Done:
    """One VM as the cloud describes it, or a host as the settings do."""
    if name in session.settings.hosts:
        document = _static_document(session, name)
    else:
        vm = _find(session, cloud_of(session), name)
        document = {**_document(vm), "image": vm.image, "labels": dict(vm.labels), "created": vm.created}
    text = "\n".join(f"{key:13} {_cell(value)}" for key, value in document.items())
    return Done({"vm": document}, text=text)


def _find(session: Session, cloud: ComputeCloud, name: str) -> Vm:
    owner = _owner(ensure_key(session.home / "key"))
    found = next((vm for vm in cloud.list({body.OWNER_LABEL: owner}) if vm.name == name), None)
    if found is None:
        raise CloudNotFound(
            f"there is no VM named {name}", why="none of this name carries this project's label", fix=f"{session.program_argv0} vm.list"
        )
    return found


def vm_delete(session: Session, name: str, *, yes: bool, confirm: Callable[[str], bool] | None) -> Done:
    """Delete the VM and its disk, after asking. A host of the settings is not ours to delete: nothing happens."""
    if name in session.settings.hosts:
        return Done({"deleted": [], "changed": False}, text=f"{name} is a host of the settings: nothing to delete")
    if not yes and (confirm is None or not confirm(f"Delete the VM {name} and its disk?")):
        why = "there is no terminal to ask on" if confirm is None else "the answer was no"
        raise UsageError(f"{name} was not deleted", why=why, fix=f"{session.program_argv0} vm.delete --name {name} --yes")
    records = VmRecords(session.home / "vms.json")
    removed = delete_vm(cloud_of(session), name, _owner(ensure_key(session.home / "key")), _journal(session), session.emit)
    records.remove(name)
    for vm in removed:
        converging.known_hosts(session).forget(f"compute.{vm.instance_id}")
    zones = ", ".join(vm.zone for vm in removed)
    text = f"deleted {name} ({zones})" if removed else f"there is no VM named {name}"
    return Done({"deleted": [_document(vm) for vm in removed], "changed": bool(removed)}, text=text)


def _static_document(session: Session, name: str) -> dict[str, Any]:
    entry = session.settings.hosts[name]
    return {
        "name": name,
        "zone": None,
        "status": "STATIC",
        "machine_type": None,
        "gpu": session.settings.gpu,
        "address": entry.address,
        "instance_id": None,
    }


def _document(vm: Vm) -> dict[str, Any]:
    age_s = _age_s(vm.created)
    return {
        "name": vm.name,
        "zone": vm.zone,
        "status": vm.status,
        "machine_type": vm.machine_type,
        "gpu": vm.gpu,
        "address": vm.address,
        "instance_id": vm.instance_id,
        "age_s": age_s,
        "cost_usd": None,
        "ttl_left_s": None if vm.ttl_s is None or age_s is None else max(0, vm.ttl_s - age_s),
    }


def _age_s(created: str) -> int | None:
    try:
        return max(0, int((datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()))
    except (TypeError, ValueError):
        return None


def _table(vms: list[dict[str, Any]]) -> str:
    columns = ("name", "zone", "status", "machine_type", "gpu", "address", "age", "ttl left")
    rows = [columns, *((*(_cell(vm[key]) for key in columns[:6]), _span(vm["age_s"]), _span(vm["ttl_left_s"])) for vm in vms)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    return "-" if value is None else str(value)


def _span(seconds: int | None) -> str:
    if seconds is None:
        return "-"
    hours, rest = divmod(seconds, 3600)
    return f"{hours}h{rest // 60:02}m" if hours else f"{rest // 60}m{rest % 60:02}s"
