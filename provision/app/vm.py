"""VMs in the cloud: made, listed, shown, deleted."""

from __future__ import annotations

import getpass
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from provision import templating
from provision.app import converging
from provision.app.session import Done, Session, Targets
from provision.app.state import VmRecords
from provision.app.vm_reach import USER, Patience, bills, reach, still_there
from provision.cloud import body, catalog
from provision.cloud.create import HALTED, Created, create_vm, delete_vm, fits
from provision.cloud.journal import FileJournal
from provision.cloud.ports import ComputeCloud
from provision.errors import EXIT_WOULD_CHANGE, CloudError, CloudNotFound, UsageError
from provision.hosts.keys import KeyPair, ensure_key
from provision.model import Facts, Note, Vm, VmSpec
from provision.recipes import cos
from provision.resources import BootFragment
from provision.resources.boot import BOOT_TEXT

MOCK_PROJECT = "mock-project"


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


def vm_create(session: Session, name: str, targets: Targets, *, patience: Patience | None = None) -> Done:
    """Make the VM, wait for SSH, pin its host keys, provision it, verify it. Run again: no change.

    `targets.host` is the name, where given. Whatever fails once the VM runs says that it runs.
    """
    name = _chosen(session, name, targets)
    if name in session.settings.hosts:
        session.emit(Note(f"{name} is a host of the settings: there is nothing to create"))
        return _provisioned(session, name, targets, _static_document(session, name), changed=False)
    cloud = cloud_of(session)
    key = ensure_key(session.home / "key")
    spec = _spec(session, name, key)
    patience = patience or Patience.of(session)
    if targets.check:
        return _check(session, cloud, spec, targets, patience)
    created = create_vm(cloud, spec, session.settings.zones, _journal(session), session.emit)
    with still_there(session, created.vm):
        reach(session, cloud, created.vm, patience)
        done = _provisioned(session, name, targets, _document(created.vm), changed=created.changed, tried=_tried(created))
    if done.exit_code:
        session.emit(Note(bills(session, created.vm)))
    return done


def _chosen(session: Session, name: str, targets: Targets) -> str:
    """The one name to create: that of `--host`, or else of the settings. A pattern over hosts names nothing new."""
    if targets.limit is not None:
        fix = f"{session.program_argv0} vm.create --name {name}"
        raise UsageError("--limit names no VM to create", why="it is a pattern over hosts that exist", fix=fix)
    return targets.host or name


def _provisioned(
    session: Session, name: str, targets: Targets, vm: dict[str, Any], *, changed: bool, tried: list[dict[str, Any]] | None = None
) -> Done:
    chosen = converging.hosts(session, Targets(host=name))
    finished = converging.converge(session, targets, chosen, lambda target: converging.cos_recipe(session, target), f"vm.create {name}")
    return converging.done(finished, check=targets.check, vm=vm, changed=changed, tried=tried or [])


def _tried(created: Created) -> list[dict[str, Any]]:
    return [attempt.as_dict() for attempt in created.tried]


def _check(session: Session, cloud: ComputeCloud, spec: VmSpec, targets: Targets, patience: Patience) -> Done:
    """What `vm.create` would do: make it, start it, or what a probe of the running VM finds. Refuses what it would refuse."""
    body.check_spec(spec)
    vm = _ours(cloud, spec.name, spec.labels[body.OWNER_LABEL])
    if vm is None:
        shape = spec.machine_type + (f" + {spec.gpu_count} x {spec.gpu}" if spec.gpu else "")
        return _would(f"would create {spec.name}: {shape}", None)
    fits(spec, vm)
    if vm.status in HALTED:
        return _would(f"would start {vm.name} in {vm.zone}", vm)
    if vm.status != "RUNNING":
        return _would(f"would wait for {vm.name} in {vm.zone}, which is {vm.status}", vm)
    reach(session, cloud, vm, replace(patience, ssh_s=0.0))
    return _provisioned(session, vm.name, targets, _document(vm), changed=False)


def _would(text: str, vm: Vm | None) -> Done:
    return Done({"vm": None if vm is None else _document(vm), "changed": True, "tried": [], "hosts": {}}, EXIT_WOULD_CHANGE, text)


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


def _ours(cloud: ComputeCloud, name: str, owner: str) -> Vm | None:
    return next((vm for vm in cloud.list({body.OWNER_LABEL: owner}) if vm.name == name), None)


def _find(session: Session, cloud: ComputeCloud, name: str) -> Vm:
    owner = _owner(ensure_key(session.home / "key"))
    found = _ours(cloud, name, owner)
    if found is None:
        _refuse_orphan(session, cloud, name, owner, "describe")
        raise CloudNotFound(
            f"there is no VM named {name}", why="none of this name carries this project's label", fix=f"{session.program_argv0} vm.list"
        )
    return found


def _refuse_orphan(session: Session, cloud: ComputeCloud, name: str, owner: str, verb: str) -> None:
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


def vm_delete(session: Session, name: str, *, yes: bool, confirm: Callable[[str], bool] | None) -> Done:
    """Delete the VM and its disk, after asking. A host of the settings is not ours to delete: nothing happens."""
    if name in session.settings.hosts:
        return Done({"deleted": [], "changed": False}, text=f"{name} is a host of the settings: nothing to delete")
    if not yes and (confirm is None or not confirm(f"Delete the VM {name} and its disk?")):
        why = "there is no terminal to ask on" if confirm is None else "the answer was no"
        raise UsageError(f"{name} was not deleted", why=why, fix=f"{session.program_argv0} vm.delete --name {name} --yes")
    records = VmRecords(session.home / "vms.json")
    cloud, owner = cloud_of(session), _owner(ensure_key(session.home / "key"))
    removed = delete_vm(cloud, name, owner, _journal(session), session.emit)
    if not removed:
        _refuse_orphan(session, cloud, name, owner, "delete")
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
    return {
        "name": vm.name,
        "zone": vm.zone,
        "status": vm.status,
        "machine_type": vm.machine_type,
        "gpu": vm.gpu,
        "address": vm.address,
        "instance_id": vm.instance_id,
        "age_s": _age_s(vm.created),
        "cost_usd": None,
        "ttl_left_s": _ttl_left_s(vm),
    }


def _ttl_left_s(vm: Vm) -> int | None:
    """Seconds until the cloud stops it, counted from its last start; None when it does not run or has no limit."""
    ran_s = _age_s(vm.started or vm.created)
    return None if vm.ttl_s is None or ran_s is None or vm.status in HALTED else max(0, vm.ttl_s - ran_s)


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
