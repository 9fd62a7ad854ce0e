"""Several VMs of one kind, made side by side and provisioned as a fleet; what was made and what was not is told one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from provision.app import converging
from provision.app.access import wants_os_login
from provision.app.clouds import cloud_of
from provision.app.session import Done, Session, Targets
from provision.app.vm.documents import document
from provision.app.vm.reach import Patience, bills, reach, still_there
from provision.app.vm.spec import made, spec_of, telling_what_bills
from provision.cloud import body
from provision.cloud.create import Attempt, Created
from provision.cloud.many import Act, each, ends
from provision.cloud.ports import ComputeCloud
from provision.errors import EXIT_WOULD_CHANGE, NoCapacity, ProvisionError, UsageError, worst_exit
from provision.hosts.keys import ensure_key
from provision.model import Event, Note, Vm, VmSpec


def create_several(
    session: Session, name: str, targets: Targets, *, count: int, parallel_zones: int = 1, patience: Patience | None = None
) -> Done:
    """Make NAME-1 … NAME-`count` side by side, then provision those that were made as a fleet. Run again: no change.

    Each VM looks for a zone of its own. One that could not be made stops no other: it is told with its reason, and the
    exit status is that of the worst.
    """
    names = [f"{name}-{number}" for number in range(1, count + 1)]
    taken = [each_name for each_name in names if each_name in session.settings.hosts]
    if taken:
        raise UsageError(
            f"{taken[0]} is a host of the settings", where="--count", why="there is nothing to create", fix="choose another --name"
        )
    cloud = cloud_of(session)
    os_login = wants_os_login(session, cloud)
    specs = [spec_of(session, each_name, ensure_key(session.home / "key"), os_login=os_login) for each_name in names]
    for spec in specs:
        body.check_spec(spec)
    if targets.check:
        return _check(session, cloud, specs, targets)
    with telling_what_bills(session, names):
        acts = each(specs, lambda spec: made(_as(session, spec.name), cloud, spec, width=parallel_zones))
        running = [act.value.vm for act in acts if act.value is not None]
        reached = ends(running, lambda vm: _reached(session, cloud, vm, patience))
    return _provisioned(session, targets, acts, reached)


def _as(session: Session, name: str) -> Session:
    """The session, whose notes say which VM they are about: several search at once."""

    def emit(event: Event) -> None:
        session.emit(replace(event, host=name) if isinstance(event, Note) and not event.host else event)

    return replace(session, emit=emit)


def _reached(session: Session, cloud: ComputeCloud, vm: Vm, patience: Patience | None) -> None:
    with still_there(session, vm):
        reach(session, cloud, vm, patience or Patience.of(session))


def _provisioned(session: Session, targets: Targets, acts: list[Act[VmSpec, Created]], reached: list[Act[Vm, None]]) -> Done:
    """The end of all: a row for each VM that was asked for, and the recap of those that answered."""
    unreached = {act.item.name: act.error for act in reached if act.error is not None}
    answering = [act.item.name for act in reached if act.error is None]
    rows = [_row(act, unreached) for act in acts]
    errors = [*(act.error for act in acts if act.error is not None), *unreached.values()]
    codes = [error.exit_code for error in errors]
    more: dict[str, Any] = {"vms": rows, "changed": any(row["changed"] for row in rows)}
    hosts: dict[str, Any] = {"hosts": {}}
    if answering:
        chosen = converging.hosts(session, replace(targets, host=None, limit=",".join(answering)))
        title = f"vm.create {acts[0].item.name} … {acts[-1].item.name}"
        finished = converging.converge(session, targets, chosen, lambda target: converging.cos_recipe(session, target), title)
        done = converging.done(finished, check=False)
        hosts, codes = done.document, [*codes, done.exit_code]
    if errors:
        hosts["error"] = errors[0].as_dict()
    for act in acts:
        if act.value is not None and worst_exit(codes):
            session.emit(Note(bills(session, act.value.vm)))
    return Done({**more, **hosts}, worst_exit(codes), _told(acts, unreached))


def _row(act: Act[VmSpec, Created], unreached: dict[str, ProvisionError]) -> dict[str, Any]:
    if act.value is None:
        error = act.error.as_dict() if act.error is not None else {}
        return {"name": act.item.name, "changed": False, "tried": _tried(act.error), "error": error}
    row = {**document(act.value.vm), "changed": act.value.changed, "tried": [attempt.as_dict() for attempt in act.value.tried]}
    return {**row, "error": unreached[act.item.name].as_dict()} if act.item.name in unreached else row


def _tried(error: ProvisionError | None) -> list[dict[str, str]]:
    return [Attempt(*row).as_dict() for row in error.tried] if isinstance(error, NoCapacity) else []


def _told(acts: list[Act[VmSpec, Created]], unreached: dict[str, ProvisionError]) -> str:
    failed = [str(act.error) for act in acts if act.error is not None] + [str(error) for error in unreached.values()]
    vms = [act.value.vm for act in acts if act.value is not None and act.item.name not in unreached]
    head = [f"{len(vms)} of {len(acts)} VMs: {', '.join(f'{vm.name} ({vm.zone})' for vm in vms) or 'none'}"]
    return "\n".join([*head, *failed])


def _check(session: Session, cloud: ComputeCloud, specs: list[VmSpec], targets: Targets) -> Done:
    """What it would make; where all are there, what a probe of them finds."""
    owner = specs[0].labels[body.OWNER_LABEL]
    there = {vm.name: vm for vm in cloud.list({body.OWNER_LABEL: owner})}
    missing = [spec.name for spec in specs if spec.name not in there]
    rows = [{**document(there[spec.name]), "changed": False} for spec in specs if spec.name in there]
    if missing:
        text = f"would create {', '.join(missing)}"
        return Done({"vms": rows, "changed": True, "hosts": {}}, EXIT_WOULD_CHANGE, text)
    chosen = converging.hosts(session, replace(targets, host=None, limit=",".join(spec.name for spec in specs)))
    finished = converging.converge(session, targets, chosen, lambda target: converging.cos_recipe(session, target), "vm.create")
    return converging.done(finished, check=True, vms=rows, changed=False)
