"""A VM made, waited for, provisioned, verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from provision.app import converging
from provision.app.access import wants_os_login
from provision.app.clouds import cloud_of, ours
from provision.app.session import Done, Session, Targets
from provision.app.vm.documents import document, static_document
from provision.app.vm.reach import Patience, bills, reach, still_there
from provision.app.vm.spec import made, maker_of, spec_of, tell_zones, telling_what_bills, would_follow
from provision.cloud import body
from provision.cloud.catalog import Shape
from provision.cloud.create import Created, other_limit, would_label
from provision.cloud.ports import ComputeCloud
from provision.errors import EXIT_WOULD_CHANGE, worst_exit
from provision.hosts.keys import ensure_key
from provision.model import Note, Vm, VmSpec


def vm_create(
    session: Session, name: str, targets: Targets, *, count: int = 1, parallel_zones: int = 1, patience: Patience | None = None
) -> Done:
    """Make the VM, wait for SSH, pin its host keys, provision it, verify it. Run again: no change.

    `targets.host` is the name, where given; with a `count` above 1 the VMs are NAME-1, NAME-2 and so on.
    `parallel_zones` zones are asked at once. Whatever fails once the VM runs says that it runs.
    """
    name = targets.host or name
    if count > 1:
        from provision.app.vm.several import create_several

        return create_several(session, name, targets, count=count, parallel_zones=parallel_zones, patience=patience)
    if name in session.settings.hosts:
        session.emit(Note(f"{name} is a host of the settings: there is nothing to create"))
        return _provisioned(session, name, targets, static_document(session, name), changed=False)
    cloud = cloud_of(session)
    key = ensure_key(session.home / "key")
    spec = spec_of(session, name, key, os_login=wants_os_login(session, cloud))
    patience = patience or Patience.of(session)
    if targets.check:
        return _check(session, cloud, spec, targets, patience)
    with telling_what_bills(session, [name]):
        created = made(session, cloud, spec, width=parallel_zones)
        tell_zones(session, [created])
    with still_there(session, created.vm):
        reach(session, cloud, created.vm, patience)
        done = _provisioned(session, name, targets, document(created.vm), changed=created.changed, tried=_tried(created))
    if done.exit_code:
        session.emit(Note(bills(session, created.vm)))
    return done


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
    vm = ours(cloud, spec.name, spec.labels[body.OWNER_LABEL])
    if vm is None:
        maker_of(session, cloud).foretell([spec], session.settings.zones)
        return _would(f"would create {spec.name}: {Shape.of(spec)}", None)
    text = would_follow(spec, vm)
    if (said := other_limit(spec, vm)) is not None:
        session.emit(Note(said))
    label = would_label(spec, vm)
    if text is not None:
        return _would("\n".join(filter(None, (text, label))), vm)
    reach(session, cloud, vm, replace(patience, ssh_s=0.0))
    done = _provisioned(session, vm.name, targets, document(vm), changed=label is not None)
    return done if label is None else replace(done, exit_code=worst_exit([done.exit_code, EXIT_WOULD_CHANGE]), text=label)


def _would(text: str, vm: Vm | None) -> Done:
    return Done({"vm": None if vm is None else document(vm), "changed": True, "tried": [], "hosts": {}}, EXIT_WOULD_CHANGE, text)
