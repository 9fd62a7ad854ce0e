"""Several VMs of one kind, made side by side and provisioned as a fleet; what was made and what was not is told one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.app import converging
from provision.app.access import wants_os_login
from provision.app.clouds import cloud_of, mine
from provision.app.session import Done, Session, Targets
from provision.app.vm.documents import document
from provision.app.vm.reach import Patience, bills, reach, still_there
from provision.app.vm.spec import made, maker_of, spec_of, tell_zones, telling_what_bills, would_follow
from provision.cloud import body
from provision.cloud.catalog import Shape
from provision.cloud.create import HALTED, Created, other_limit, would_label
from provision.cloud.many import Act, each, ends
from provision.cloud.ports import ComputeCloud
from provision.cloud.search import Attempt, Search, check_starts
from provision.errors import EXIT_OK, EXIT_WOULD_CHANGE, NoCapacity, ProvisionError, UsageError, worst_exit
from provision.hosts.keys import ensure_key
from provision.model import Event, Note, Vm, VmSpec

MOST = 500
"""So many VMs may be asked for at once: more is rather a slip, and it is refused before anything is asked."""


def create_several(
    session: Session, name: str, targets: Targets, *, count: int, parallel_zones: int = 1, patience: Patience | None = None
) -> Done:
    """Make NAME-1 … NAME-`count` side by side, then provision those that were made as a fleet. Run again: no change.

    Each VM looks for a zone of its own. One that could not be made stops no other: it is told with its reason, and the
    exit status is that of the worst.
    """
    if count > MOST:
        raise UsageError(f"{count} VMs are too many", where="--count", why=f"allowed: at most {MOST} at once", fix=f"--count={MOST}")
    names = [f"{name}-{number}" for number in range(1, count + 1)]
    taken = [each_name for each_name in names if each_name in session.settings.hosts]
    if taken:
        raise UsageError(
            f"{taken[0]} is a host of the settings", where="--count", why="there is nothing to create", fix="choose another --name"
        )
    cloud, key = cloud_of(session), ensure_key(session.home / "key")
    os_login = wants_os_login(session, cloud)
    spec = spec_of(session, names[0], key, os_login=os_login)
    specs = [replace(spec, name=each_name) for each_name in names]
    for spec in specs:
        body.check_spec(spec)
    patience = patience or Patience.of(session)
    there = {vm.name: vm for vm in mine(session, cloud)}
    if targets.check:
        return _check(session, cloud, specs, there, targets=targets, patience=patience)
    with telling_what_bills(session, names):
        search = _foretold(session, cloud, specs, there)
        acts = each(specs, lambda spec: made(_as(session, spec.name), cloud, spec, width=parallel_zones, search=search))
        tell_zones(session, [act.value for act in acts if act.value is not None])
        running = [act.value.vm for act in acts if act.value is not None]
        reached = ends(running, lambda vm: _reached(session, cloud, vm, patience))
    return _provisioned(session, targets, acts, reached)


def _foretold(session: Session, cloud: ComputeCloud, specs: Sequence[VmSpec], there: Mapping[str, Vm]) -> Search | None:
    """The plan of those that are not there, told once for all; None where all are.

    Refuses what has no place, and stopped ones that cannot all start, before anything is made or started.
    """
    missing = [spec for spec in specs if spec.name not in there]
    stopped = [vm for spec in specs if (vm := there.get(spec.name)) is not None and vm.status in HALTED]
    if missing:
        return maker_of(session, cloud).foretell(missing, session.settings.zones, starting=stopped)
    check_starts(cloud, stopped, lambda text: session.emit(Note(text)))
    return None


def _as(session: Session, name: str) -> Session:
    """The session, whose notes say which VM they are about: several search at once."""

    def emit(event: Event) -> None:
        session.emit(replace(event, host=name) if isinstance(event, Note) and not event.host else event)

    return replace(session, emit=emit)


def _reached(session: Session, cloud: ComputeCloud, vm: Vm, patience: Patience) -> None:
    with still_there(session, vm):
        reach(session, cloud, vm, patience)


def _provisioned(session: Session, targets: Targets, acts: list[Act[VmSpec, Created]], reached: list[Act[Vm, None]]) -> Done:
    """The end of all: a row for each VM that was asked for, and the recap of those that answered."""
    unreached = _unreached(reached)
    rows = [_row(act, unreached) for act in acts]
    errors = [*(act.error for act in acts if act.error is not None), *unreached.values()]
    looked = _converged(session, targets, reached)
    code = worst_exit([*(error.exit_code for error in errors), looked.exit_code])
    failed = {"error": errors[0].as_dict()} if errors else {}
    if code:
        for act in acts:
            if act.value is not None:
                session.emit(Note(bills(session, act.value.vm)))
    more = {"vms": rows, "changed": any(row["changed"] for row in rows), **failed}
    return Done({**looked.document, **more}, code, _told(acts, unreached), _grouped(errors))


def _unreached(reached: list[Act[Vm, None]]) -> dict[str, ProvisionError]:
    return {act.item.name: act.error for act in reached if act.error is not None}


def _converged(session: Session, targets: Targets, reached: list[Act[Vm, None]]) -> Done:
    """The recipe on those that answered, as a fleet."""
    names = [act.item.name for act in reached if act.error is None]
    if not names:
        return Done({"hosts": {}})
    chosen = converging.hosts(session, replace(targets, host=None, limit=",".join(names)))
    title = f"vm.create {names[0]}" + (f" … {names[-1]}" if len(names) > 1 else "")
    finished = converging.converge(session, targets, chosen, lambda target: converging.cos_recipe(session, target), title)
    return converging.done(finished, check=targets.check)


def _row(act: Act[VmSpec, Created], unreached: dict[str, ProvisionError]) -> dict[str, Any]:
    if act.value is None:
        error = act.error.as_dict() if act.error is not None else {}
        return {"name": act.item.name, "changed": False, "tried": _tried(act.error), "error": error}
    row = {**document(act.value.vm), "changed": act.value.changed, "tried": [attempt.as_dict() for attempt in act.value.tried]}
    return {**row, "error": unreached[act.item.name].as_dict()} if act.item.name in unreached else row


def _tried(error: ProvisionError | None) -> list[dict[str, str]]:
    return [Attempt(*row).as_dict() for row in error.tried] if isinstance(error, NoCapacity) else []


def _told(acts: list[Act[VmSpec, Created]], unreached: dict[str, ProvisionError]) -> str:
    """How many there are, and where."""
    vms = [act.value.vm for act in acts if act.value is not None and act.item.name not in unreached]
    return f"{len(vms)} of {len(acts)} VMs: {', '.join(f'{vm.name} ({vm.zone})' for vm in vms) or 'none'}"


def _grouped(errors: Sequence[ProvisionError]) -> tuple[ProvisionError, ...]:
    """What several have in common is said once, with their names."""
    groups: dict[tuple[str, str, str], list[ProvisionError]] = {}
    for error in errors:
        groups.setdefault((error.what, error.why, error.fix), []).append(error)
    return tuple(map(_in_common, groups.values()))


def _in_common(errors: Sequence[ProvisionError]) -> ProvisionError:
    first = errors[0]
    return ProvisionError(first.what, where=", ".join(error.where for error in errors), why=first.why, fix=first.fix)


def _check(
    session: Session, cloud: ComputeCloud, specs: Sequence[VmSpec], there: Mapping[str, Vm], *, targets: Targets, patience: Patience
) -> Done:
    """What it would make, with plan and price, what it would start, and what a probe of those that run finds."""
    found = [(spec, there[spec.name]) for spec in specs if spec.name in there]
    follows = {vm.name: would_follow(spec, vm) for spec, vm in found}
    for said in filter(None, (other_limit(spec, vm) for spec, vm in found)):
        session.emit(Note(said))
    _foretold(session, cloud, specs, there)
    missing = [spec.name for spec in specs if spec.name not in there]
    would = [f"would create {', '.join(missing)}: {Shape.of(specs[0])}"] if missing else []
    labels = {vm.name: would_label(spec, vm) for spec, vm in found}
    would += filter(None, (*follows.values(), *labels.values()))
    running = [vm for _spec, vm in found if follows[vm.name] is None]
    reached = ends(running, lambda vm: _reached(session, cloud, vm, replace(patience, ssh_s=0.0)))
    unreached, looked = _unreached(reached), _converged(session, targets, reached)
    code = worst_exit([*(error.exit_code for error in unreached.values()), looked.exit_code, EXIT_WOULD_CHANGE if would else EXIT_OK])
    rows = [{**document(vm), "changed": bool(follows[vm.name] or labels[vm.name])} for _spec, vm in found]
    failed = {"error": next(iter(unreached.values())).as_dict()} if unreached else {}
    return Done({**looked.document, "vms": rows, "changed": bool(would), **failed}, code, "\n".join(would), tuple(unreached.values()))
