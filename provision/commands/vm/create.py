"""A VM made, waited for, provisioned, verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from provision.cloud.api import body
from provision.cloud.api.ports import ComputeCloud
from provision.cloud.lifecycle.create import Created, other_limit, would_label
from provision.cloud.market.catalog import Shape
from provision.commands.shared import convergence
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.shared.documents import document, static_document
from provision.commands.vm.shared.reach import Patience, bills, reach, still_there
from provision.commands.vm.shared.spec import (
    made,
    maker_of,
    spec_of,
    tell_zones,
    telling_what_bills,
    would_follow,
)
from provision.core.errors import EXIT_WOULD_CHANGE, worst_exit
from provision.core.model import Note, Vm, VmSpec
from provision.project.login import fetch_os_login_enabled
from provision.project.project import Project


def vm_create(
    project: Project,
    name: str,
    targets: Targets,
    *,
    count: int = 1,
    parallel_zones: int = 1,
    patience: Patience | None = None,
) -> TaskResult:
    """Make the VM, wait for SSH, pin its host keys, provision it, verify it. Run again: no change.

    `targets.host` is the name, where given; with a `count` above 1 the VMs are NAME-1, NAME-2 and
    so on. `parallel_zones` zones are asked at once. Whatever fails once the VM runs says that it
    runs.
    """
    name = targets.host or name
    if count > 1:
        from provision.commands.vm.create_several import create_several

        return create_several(
            project, name, targets, count=count, parallel_zones=parallel_zones, patience=patience
        )
    if name in project.settings.hosts:
        project.emit(Note(f"{name} is a host of the settings: there is nothing to create"))
        return _provisioned(project, name, targets, static_document(project, name), changed=False)
    cloud = project.connect_cloud()
    key = project.ensure_key_pair()
    spec = spec_of(project, name, key, os_login=fetch_os_login_enabled(project, cloud))
    patience = patience or Patience.of(project)
    if targets.check:
        return _check(project, cloud, spec, targets, patience)
    with telling_what_bills(project, [name]):
        created = made(project, cloud, spec, width=parallel_zones)
        tell_zones(project, [created])
    with still_there(project, created.vm):
        reach(project, cloud, created.vm, patience)
        done = _provisioned(
            project,
            name,
            targets,
            document(created.vm),
            changed=created.changed,
            tried=_tried(created),
        )
    if done.exit_code:
        project.emit(Note(bills(project, created.vm)))
    return done


def _provisioned(
    project: Project,
    name: str,
    targets: Targets,
    vm: dict[str, Any],
    *,
    changed: bool,
    tried: list[dict[str, Any]] | None = None,
) -> TaskResult:
    chosen = convergence.hosts(project, Targets(host=name))
    finished = convergence.converge(
        project,
        targets,
        chosen,
        lambda target: convergence.cos_recipe(project, target),
        f"vm.create {name}",
    )
    return convergence.done(
        finished, check=targets.check, vm=vm, changed=changed, tried=tried or []
    )


def _tried(created: Created) -> list[dict[str, Any]]:
    return [attempt.as_dict() for attempt in created.tried]


def _check(
    project: Project, cloud: ComputeCloud, spec: VmSpec, targets: Targets, patience: Patience
) -> TaskResult:
    """What `vm.create` would do: make it, start it, or what a probe of the running VM finds. Refuses what it would refuse."""
    body.check_spec(spec)
    owner = {body.OWNER_LABEL: spec.labels[body.OWNER_LABEL]}
    vm = next((vm for vm in cloud.list(owner) if vm.name == spec.name), None)
    if vm is None:
        maker_of(project, cloud).foretell([spec], project.settings.zones)
        return _would(f"would create {spec.name}: {Shape.of(spec)}", None)
    text = would_follow(spec, vm)
    if (said := other_limit(spec, vm)) is not None:
        project.emit(Note(said))
    label = would_label(spec, vm)
    if text is not None:
        return _would("\n".join(filter(None, (text, label))), vm)
    reach(project, cloud, vm, replace(patience, ssh_s=0.0))
    done = _provisioned(project, vm.name, targets, document(vm), changed=label is not None)
    return (
        done
        if label is None
        else replace(done, exit_code=worst_exit([done.exit_code, EXIT_WOULD_CHANGE]), text=label)
    )


def _would(text: str, vm: Vm | None) -> TaskResult:
    return TaskResult(
        {"vm": None if vm is None else document(vm), "changed": True, "tried": [], "hosts": {}},
        EXIT_WOULD_CHANGE,
        text,
    )
