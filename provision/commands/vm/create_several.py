"""Several VMs of one kind, made side by side and provisioned as a fleet; what was made and what was not is told one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.cloud.api import body
from provision.cloud.api.ports import ComputeCloud
from provision.cloud.lifecycle.create import HALTED, Created, other_limit, would_label
from provision.cloud.lifecycle.many import Act, each, ends
from provision.cloud.lifecycle.search import Attempt, Search, check_starts
from provision.cloud.market.catalog import Shape
from provision.commands.shared import convergence
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.commands.vm.shared.documents import document
from provision.commands.vm.shared.reach import Patience, bills, reach, still_there
from provision.commands.vm.shared.spec import (
    made,
    maker_of,
    spec_of,
    tell_zones,
    telling_what_bills,
    would_follow,
)
from provision.core.errors import (
    EXIT_OK,
    EXIT_WOULD_CHANGE,
    NoCapacity,
    ProvisionError,
    UsageError,
    worst_exit,
)
from provision.core.model import Event, Note, Vm, VmSpec
from provision.project.login import fetch_os_login_enabled
from provision.project.owned_vms import list_vms_from_cloud
from provision.project.project import Project

MOST = 500
"""So many VMs may be asked for at once: more is rather a slip, and it is refused before anything is
asked."""


def create_several(
    project: Project,
    name: str,
    targets: Targets,
    *,
    count: int,
    parallel_zones: int = 1,
    patience: Patience | None = None,
) -> TaskResult:
    """Make NAME-1 … NAME-`count` side by side, then provision those that were made as a fleet. Run again: no change.

    Each VM looks for a zone of its own. One that could not be made stops no other: it is told with
    its reason, and the exit status is that of the worst.
    """
    if count > MOST:
        raise UsageError(
            f"{count} VMs are too many",
            where="--count",
            why=f"allowed: at most {MOST} at once",
            fix=f"--count={MOST}",
        )
    names = [f"{name}-{number}" for number in range(1, count + 1)]
    taken = [each_name for each_name in names if each_name in project.settings.hosts]
    if taken:
        raise UsageError(
            f"{taken[0]} is a host of the settings",
            where="--count",
            why="there is nothing to create",
            fix="choose another --name",
        )
    cloud, key = project.connect_cloud(), project.ensure_key_pair()
    os_login = fetch_os_login_enabled(project, cloud)
    spec = spec_of(project, names[0], key, os_login=os_login)
    specs = [replace(spec, name=each_name) for each_name in names]
    for spec in specs:
        body.check_spec(spec)
    patience = patience or Patience.of(project)
    there = {vm.name: vm for vm in list_vms_from_cloud(project, cloud).vms}
    if targets.check:
        return _check(project, cloud, specs, there, targets=targets, patience=patience)
    with telling_what_bills(project, names):
        search = _foretold(project, cloud, specs, there)
        acts = each(
            specs,
            lambda spec: made(
                _as(project, spec.name), cloud, spec, width=parallel_zones, search=search
            ),
        )
        tell_zones(project, [act.value for act in acts if act.value is not None])
        running = [act.value.vm for act in acts if act.value is not None]
        reached = ends(running, lambda vm: _reached(project, cloud, vm, patience))
    return _provisioned(project, targets, acts, reached)


def _foretold(
    project: Project, cloud: ComputeCloud, specs: Sequence[VmSpec], there: Mapping[str, Vm]
) -> Search | None:
    """The plan of those that are not there, told once for all; None where all are.

    Refuses what has no place, and stopped ones that cannot all start, before anything is made or
    started.
    """
    missing = [spec for spec in specs if spec.name not in there]
    stopped = [
        vm for spec in specs if (vm := there.get(spec.name)) is not None and vm.status in HALTED
    ]
    if missing:
        return maker_of(project, cloud).foretell(missing, project.settings.zones, starting=stopped)
    check_starts(cloud, stopped, lambda text: project.emit(Note(text)))
    return None


def _as(project: Project, name: str) -> Project:
    """The session, whose notes say which VM they are about: several search at once."""

    def emit(event: Event) -> None:
        project.emit(
            replace(event, host=name) if isinstance(event, Note) and not event.host else event
        )

    return replace(project, emit=emit)


def _reached(project: Project, cloud: ComputeCloud, vm: Vm, patience: Patience) -> None:
    with still_there(project, vm):
        reach(project, cloud, vm, patience)


def _provisioned(
    project: Project,
    targets: Targets,
    acts: list[Act[VmSpec, Created]],
    reached: list[Act[Vm, None]],
) -> TaskResult:
    """The end of all: a row for each VM that was asked for, and the recap of those that answered."""
    unreached = _unreached(reached)
    rows = [_row(act, unreached) for act in acts]
    errors = [*(act.error for act in acts if act.error is not None), *unreached.values()]
    looked = _converged(project, targets, reached)
    code = worst_exit([*(error.exit_code for error in errors), looked.exit_code])
    failed = {"error": errors[0].as_dict()} if errors else {}
    if code:
        for act in acts:
            if act.value is not None:
                project.emit(Note(bills(project, act.value.vm)))
    more = {"vms": rows, "changed": any(row["changed"] for row in rows), **failed}
    return TaskResult({**looked.document, **more}, code, _told(acts, unreached), _grouped(errors))


def _unreached(reached: list[Act[Vm, None]]) -> dict[str, ProvisionError]:
    return {act.item.name: act.error for act in reached if act.error is not None}


def _converged(project: Project, targets: Targets, reached: list[Act[Vm, None]]) -> TaskResult:
    """The recipe on those that answered, as a fleet."""
    names = [act.item.name for act in reached if act.error is None]
    if not names:
        return TaskResult({"hosts": {}})
    chosen = convergence.hosts(project, replace(targets, host=None, limit=",".join(names)))
    title = f"vm.create {names[0]}" + (f" … {names[-1]}" if len(names) > 1 else "")
    finished = convergence.converge(
        project, targets, chosen, lambda target: convergence.cos_recipe(project, target), title
    )
    return convergence.done(finished, check=targets.check)


def _row(act: Act[VmSpec, Created], unreached: dict[str, ProvisionError]) -> dict[str, Any]:
    if act.value is None:
        error = act.error.as_dict() if act.error is not None else {}
        return {"name": act.item.name, "changed": False, "tried": _tried(act.error), "error": error}
    row = {
        **document(act.value.vm),
        "changed": act.value.changed,
        "tried": [attempt.as_dict() for attempt in act.value.tried],
    }
    return (
        {**row, "error": unreached[act.item.name].as_dict()} if act.item.name in unreached else row
    )


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
    return ProvisionError(
        first.what, where=", ".join(error.where for error in errors), why=first.why, fix=first.fix
    )


def _check(
    project: Project,
    cloud: ComputeCloud,
    specs: Sequence[VmSpec],
    there: Mapping[str, Vm],
    *,
    targets: Targets,
    patience: Patience,
) -> TaskResult:
    """What it would make, with plan and price, what it would start, and what a probe of those that run finds."""
    found = [(spec, there[spec.name]) for spec in specs if spec.name in there]
    follows = {vm.name: would_follow(spec, vm) for spec, vm in found}
    for said in filter(None, (other_limit(spec, vm) for spec, vm in found)):
        project.emit(Note(said))
    _foretold(project, cloud, specs, there)
    missing = [spec.name for spec in specs if spec.name not in there]
    would = [f"would create {', '.join(missing)}: {Shape.of(specs[0])}"] if missing else []
    labels = {vm.name: would_label(spec, vm) for spec, vm in found}
    would += filter(None, (*follows.values(), *labels.values()))
    running = [vm for _spec, vm in found if follows[vm.name] is None]
    reached = ends(running, lambda vm: _reached(project, cloud, vm, replace(patience, ssh_s=0.0)))
    unreached, looked = _unreached(reached), _converged(project, targets, reached)
    code = worst_exit(
        [
            *(error.exit_code for error in unreached.values()),
            looked.exit_code,
            EXIT_WOULD_CHANGE if would else EXIT_OK,
        ]
    )
    rows = [
        {**document(vm), "changed": bool(follows[vm.name] or labels[vm.name])}
        for _spec, vm in found
    ]
    failed = {"error": next(iter(unreached.values())).as_dict()} if unreached else {}
    return TaskResult(
        {**looked.document, "vms": rows, "changed": bool(would), **failed},
        code,
        "\n".join(would),
        tuple(unreached.values()),
    )
