"""Creates a VM: keeps one that exists, or asks zone after zone until one takes it.

A failed insert is cleaned up before the next zone is asked (`insert.py`), so nothing stays behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.cloud.api.labels import ANY, OWNER_LABEL, is_owned_by
from provision.cloud.api.request_bodies import check_spec
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.existing import (
    check_no_namesake,
    keep_one_vm,
    keep_vm,
    wait_if_pending,
)
from provision.cloud.lifecycle.insert import Inserted, delete_unwanted, insert_vm, mark_made
from provision.cloud.lifecycle.race import Finish, race
from provision.cloud.lifecycle.recovery import fetch_unlisted_vms, recover_vms
from provision.cloud.lifecycle.zone_search import Attempt, ZoneSearch
from provision.cloud.lifecycle.zone_selection import plan_search
from provision.cloud.market.catalog import Shape
from provision.cloud.market.zone_order import region_of
from provision.cloud.refusal import CAPACITY_WAIT_EXPIRED, CloudRefused, Refusal
from provision.cloud.refusal_table import BlastRadius, Classification, RefusalKind, classify
from provision.core.errors import CleanupFailed, CloudError, SettingsError
from provision.core.model import Vm, VmSpec

NEW_INSERT_PAUSE_S = 5.0
"""Pause before a second insert in a zone whose refusal is temporary."""


@dataclass(frozen=True)
class Created:
    """The VM, whether anything was changed, and every zone that was asked."""

    vm: Vm
    changed: bool
    tried: tuple[Attempt, ...] = ()


def create_vm(
    context: CloudContext,
    spec: VmSpec,
    places: Sequence[str],
    *,
    width: int = 1,
    search: ZoneSearch | None = None,
) -> Created:
    """Return the VM of `spec`: an existing one of its name and owner, or a new one.

    `places` are zones, regions or `everywhere`; `width` zones are asked at once, and the first zone
    with capacity gets the VM. What killed runs asked for under this name is recovered first.
    `search` is the result of a `dry_run`, which is not repeated then.

    Raises `NoCapacity` when every zone refused, `CleanupFailed` when a failed insert may have left
    something behind, `SettingsError` for an invalid spec, and `CloudRefused` when no other zone
    could help.
    """
    check_spec(spec)
    owner = spec.labels.get(OWNER_LABEL, "")
    if not owner:
        why = f"label {OWNER_LABEL} identifies the project's VMs"
        raise SettingsError("a VM without an owner", where="labels", why=why)
    with context.journal.claim(spec.name, context.note):
        vm, namesakes = _fetch_existing(context, spec.name, owner)
        kept = None if vm is None else _keep_unless_expired(context, spec, vm)
        if isinstance(kept, Created):
            return kept
        check_no_namesake(namesakes, owner)
        if search is None:
            search = plan_search(context, [spec], places, new=1)
        search = search.copy()
        if vm is not None and kept is not None:
            search.record_refusal(vm.zone, kept)
        return _ask_zones(context, spec, search, width)


def _fetch_existing(context: CloudContext, name: str, owner: str) -> tuple[Vm | None, Sequence[Vm]]:
    """Return the owner's VM of this name, or None, and the listed VMs of this name of any owner."""
    recovered = recover_vms(context, name)
    listed = [vm for vm in context.cloud.list({OWNER_LABEL: ANY}) if vm.name == name]
    existing = (
        [vm for vm in listed if is_owned_by(vm, owner)]
        or recovered
        or fetch_unlisted_vms(context, name, listed)
    )
    return (keep_one_vm(context, existing, recovered) if existing else None), listed


def _keep_unless_expired(context: CloudContext, spec: VmSpec, vm: Vm) -> Created | CloudRefused:
    """Return the existing VM, or the refusal when its wait for capacity timed out."""
    try:
        return _kept(context, spec, wait_if_pending(context, spec, vm))
    except CloudRefused as error:
        if error.refusal.code != CAPACITY_WAIT_EXPIRED:
            raise
        context.note(_refusal_note(vm.zone, classify(error.refusal), error.refusal))
        return error


def dry_run(
    context: CloudContext,
    specs: Sequence[VmSpec],
    places: Sequence[str],
    *,
    starting: Sequence[Vm] = (),
) -> ZoneSearch:
    """Return the search of `create_vm` for new VMs of one shape, with plan and price noted.

    No VM is asked for; raises what `create_vm` would raise before that. The stopped VMs `starting`
    are to run beside them. A VM that an earlier run may have made needs no room in the quota.
    """
    uncertain = {entry.name for entry in context.journal.open()}
    new = sum(spec.name not in uncertain for spec in specs)
    search = plan_search(context, specs, places, new=new, starting=starting)
    if not search.candidates.zones:
        raise search.failure(specs[0])
    return search


def _kept(context: CloudContext, spec: VmSpec, vm: Vm, tried: Sequence[Attempt] = ()) -> Created:
    kept, result, changed = keep_vm(context, spec, vm)
    return Created(kept, changed=changed, tried=(*tried, Attempt(kept.zone, result)))


def _ask_zones(context: CloudContext, spec: VmSpec, search: ZoneSearch, width: int) -> Created:
    if len(search.next(width)) < min(width, len(search.candidates.zones)):
        context.note("the quota has no room for as many at once: fewer zones are asked at once")
    while zones := search.next(width):
        if len(zones) == 1:
            finish: Finish[Inserted] = Finish()
            _ask_zone(context, spec, zones[0], search, finish)
        else:
            context.note(f"asking {len(zones)} zones at once: {', '.join(zones)}")
            finish = _ask_at_once(context, spec, zones, search)
        if (winner := finish.winner) is not None:
            tried = tuple(search.tried)
            if winner.is_new:
                return Created(winner.vm, changed=True, tried=tried)
            return _kept(context, spec, winner.vm, tried)
    raise search.failure(spec)


def _ask_at_once(
    context: CloudContext, spec: VmSpec, zones: Sequence[str], search: ZoneSearch
) -> Finish[Inserted]:
    try:
        return race(lambda zone, finish: _ask_zone(context, spec, zone, search, finish), zones)
    except CleanupFailed as error:
        kept = [
            f"{spec.name} was made in {attempt.zone} and kept: it bills as well"
            for attempt in search.tried
            if attempt.result == "created"
        ]
        error.why = "\n".join([error.why, *kept])
        raise


def _ask_zone(
    context: CloudContext, spec: VmSpec, zone: str, search: ZoneSearch, finish: Finish[Inserted]
) -> None:
    """Insert the VM in one zone; it wins or is deleted, and a refusal narrows the search.

    Runs in several threads at once.
    """
    inserts = 0
    while finish.winner is None:
        context.note(f"asking {zone} for {Shape.of(spec)}")
        try:
            inserted = insert_vm(context, spec, zone, is_enough=lambda: finish.winner is not None)
        except CloudRefused as error:
            verdict = classify(error.refusal)
            if not error.refusal.final or inserts >= verdict.new_inserts:
                context.note(_refusal_note(zone, verdict, error.refusal))
                search.record_refusal(zone, error)
                return
            kind = verdict.kind.value
            context.note(f"{zone}: {kind}: {error.refusal}\n{zone} is asked once more")
            inserts += 1
            context.sleep(NEW_INSERT_PAUSE_S if verdict.retry else 0.0)
        except CloudError as error:
            reason = error.why or error.what
            search.tried.append(Attempt(zone, RefusalKind.UNKNOWN.value, reason))
            raise
        else:
            _keep_first(context, inserted, search, finish)
            return


def _keep_first(
    context: CloudContext, inserted: Inserted, search: ZoneSearch, finish: Finish[Inserted]
) -> None:
    """Keep the first VM of a race; delete a later one unless another run made it."""
    is_first = finish.offer(inserted)
    if not inserted.is_new:
        return
    if is_first:
        mark_made(context, inserted.vm)
        search.tried.append(Attempt(inserted.vm.zone, "created"))
    else:
        delete_unwanted(context, inserted.vm)
        reason = "another zone was faster: deleted"
        search.tried.append(Attempt(inserted.vm.zone, "dropped", reason))


def _refusal_note(zone: str, verdict: Classification, refusal: Refusal) -> str:
    """Return a line for a zone that refused; the verbatim message is in the table at the end."""
    code = f" ({refusal.code})" if refusal.code else ""
    is_regional = verdict.blast_radius is BlastRadius.REGION
    region = f"; no zone of {region_of(zone)} is asked again" if is_regional else ""
    return f"{zone}: {verdict.kind.value}{code}{region}"
