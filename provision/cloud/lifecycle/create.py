"""Makes and removes one VM so that nothing is left behind: zone after zone, each failed insert cleaned up before the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from provision.cloud.api import body
from provision.cloud.api.ports import ANY, ComputeCloud
from provision.cloud.lifecycle import extension
from provision.cloud.lifecycle import journal as written
from provision.cloud.lifecycle.context import (
    HALTED,
    Means,
    foreign,
    is_ours,
    left_behind,
    new_request_id,
)
from provision.cloud.lifecycle.insert import Inserted, drop, insert, keep, resume
from provision.cloud.lifecycle.journal import Entry, Journal
from provision.cloud.lifecycle.race import Finish, race
from provision.cloud.lifecycle.search import Attempt, Search, planned
from provision.cloud.lifecycle.waiting import ENDING, WAITING, awaited, settled
from provision.cloud.market.catalog import Shape
from provision.cloud.market.placement import Blast, Kind, Verdict, classify, region_of
from provision.cloud.market.prices import PriceList, packaged
from provision.cloud.refusal import WAITED_IN_VAIN, CloudRefused, Refusal
from provision.core import durations
from provision.core.errors import CleanupFailed, CloudError, SettingsError
from provision.core.model import Emit, Vm, VmSpec

__all__ = [
    "HALTED",
    "Created",
    "Maker",
    "delete_vm",
    "fits",
    "new_request_id",
    "other_limit",
    "would_label",
]

AGAIN_PAUSE_S = 5.0
"""Before a zone is asked again for what passes by itself there."""


@dataclass(frozen=True)
class Created:
    """The VM, whether anything was done for it, and every zone that was asked."""

    vm: Vm
    changed: bool
    tried: tuple[Attempt, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Maker(Means):
    """Makes, keeps and removes VMs by name; `prices` is what the plan is priced by."""

    prices: PriceList = field(default_factory=packaged, repr=False)

    def create(
        self, spec: VmSpec, places: Sequence[str], *, width: int = 1, search: Search | None = None
    ) -> Created:
        """The VM of `spec`, made in the first zone of `places` that takes it; one of the same name and owner is found and kept.

        `places` are zones, regions or `everywhere`; `width` zones are asked at once. What earlier
        runs asked for under this name and did not live to see is taken up first. With a `search`
        that was foretold, no plan is made again.

        Raises NoCapacity when every zone refused, CleanupFailed when a failed insert may have left
        something, SettingsError for a spec that cannot be, and the cloud's own refusal when no
        other zone could help.
        """
        body.check_spec(spec)
        owner = spec.labels.get(body.OWNER_LABEL, "")
        if not owner:
            raise SettingsError(
                "a VM without an owner",
                where="labels",
                why=f"label {body.OWNER_LABEL} tells ours from others'",
            )
        with self.journal.claim(spec.name, self.note):
            resumed = self._resume(spec.name)
            named = [vm for vm in self.cloud.list({body.OWNER_LABEL: ANY}) if vm.name == spec.name]
            existing = (
                [vm for vm in named if is_ours(vm, owner)]
                or resumed
                or self._unlisted(spec.name, named)
            )
            vain: CloudRefused | None = None
            if existing:
                vm = self._only_one(existing, resumed)
                try:
                    return self._keep(spec, self._awaited(spec, vm))
                except CloudRefused as error:
                    if error.refusal.code != WAITED_IN_VAIN:
                        raise
                    vain = error
                    self.note(_said(vm.zone, classify(error.refusal), error.refusal))
            _refuse_namesake(named, owner)
            search = search.anew() if search is not None else self._planned([spec], places, new=1)
            if vain is not None:
                search.narrow(vm.zone, vain)
            return self._place(spec, search, width)

    def foretell(
        self, specs: Sequence[VmSpec], places: Sequence[str], *, starting: Sequence[Vm] = ()
    ) -> Search:
        """Tell what `create` would do for VMs of one shape that are not there, and raise what it would raise before anything is asked for.

        The stopped VMs `starting` are to run beside them.

        A VM that an earlier run asked for, and whose fate is not known, may be there: no quota
        needs room for it again.
        """
        doubtful = {entry.name for entry in self.journal.open()}
        search = self._planned(
            specs, places, new=sum(spec.name not in doubtful for spec in specs), starting=starting
        )
        if not search.candidates.zones:
            raise search.failure(specs[0])
        return search

    def delete(self, name: str, zone: str, owner: str) -> bool:
        """Remove our VM and its boot disk and wait until it is gone; False when there was none. Another's VM is refused.

        Raises CleanupFailed when the deletion failed: the VM goes on billing.
        """
        vm = self.cloud.get(name, zone)
        if vm is None:
            self.journal.mark_name(name, zone, written.GONE)
            return False
        if not is_ours(vm, owner):
            raise foreign(vm)
        self.journal.mark_name(name, zone, written.DELETING)
        try:
            self.cloud.delete(name, zone, request_id=self.new_id())
        except CloudError as error:
            self.journal.mark_name(name, zone, written.LEFT_BEHIND, error.why)
            raise left_behind(
                "the VM may be left behind and may bill", name, zone, error
            ) from error
        self.journal.mark_name(name, zone, written.GONE)
        return True

    def delete_everywhere(self, name: str, owner: str) -> list[Vm]:
        """Remove our VMs of this name in whatever zone they are; those that were removed.

        Inserts of earlier runs that are still under way are waited for, so that their VM does not
        appear afterwards.
        """
        with self.journal.claim(name, self.note):
            resumed = self._resume(name)
            listed = [vm for vm in self.cloud.list({body.OWNER_LABEL: owner}) if vm.name == name]
            found = {
                vm.zone: vm
                for vm in (*self._unlisted(name, listed), *resumed, *listed)
                if is_ours(vm, owner)
            }
            return [vm for zone, vm in sorted(found.items()) if self.delete(name, zone, owner)]

    # --- what is there already --------------------------------------------------------------------

    def _entries(self, name: str) -> list[Entry]:
        return [entry for entry in self.journal.open() if entry.name == name]

    def _resume(self, name: str) -> list[Vm]:
        """The VMs that earlier runs asked for under this name without living to see them; their entries are settled."""
        doubtful = [entry for entry in self._entries(name) if entry.state != written.MADE]
        return [vm for entry in doubtful if (vm := resume(self, entry)) is not None]

    def _unlisted(self, name: str, listed: Sequence[Vm]) -> list[Vm]:
        """VMs that the journal calls made and the list does not show; they are asked for by name before they are taken for gone."""
        zones = {vm.zone for vm in listed}
        unlisted = [
            entry
            for entry in self._entries(name)
            if entry.state == written.MADE and entry.zone not in zones
        ]
        return [vm for entry in unlisted if (vm := resume(self, entry)) is not None]

    def _only_one(self, existing: Sequence[Vm], resumed: Sequence[Vm]) -> Vm:
        """Of several VMs of ours with one name the one to keep: a run that asked several zones at once was killed.

        The others that such a run left are removed; those that were there before are told of and
        left alone.
        """
        taken_up = {vm.instance_id for vm in resumed}
        chosen, *others = sorted(
            existing,
            key=lambda vm: (vm.instance_id in taken_up, vm.status in HALTED, vm.created, vm.zone),
        )
        for vm in others:
            if vm.instance_id in taken_up:
                self.note(
                    f"{vm.name} was made in {chosen.zone} and in {vm.zone}: the one in {vm.zone} is deleted"
                )
                drop(self, vm)
            else:
                self.note(f"{vm.name} exists in {vm.zone} too and bills")
        return chosen

    def _awaited(self, spec: VmSpec, vm: Vm) -> Vm:
        """A VM that an interrupted run left waiting for capacity is waited for again; in vain, it is removed and CloudRefused raised."""
        if vm.status != WAITING:
            return vm
        fits(spec, vm)
        try:
            vm = awaited(self, vm, spec.request_valid_s or 0)
        except CloudRefused:
            drop(self, vm)
            raise
        keep(self, vm)
        return vm

    def _keep(self, spec: VmSpec, vm: Vm, tried: Sequence[Attempt] = ()) -> Created:
        fits(spec, vm)
        if (said := other_limit(spec, vm)) is not None:
            self.note(said)
        if vm.status in ENDING:
            self.note(f"{vm.name} is being stopped in {vm.zone}: waiting for that")
            vm = settled(self.cloud, vm, ENDING, sleep=self.sleep)
        asks, vm = self._labelled(spec, vm)
        if vm.status not in HALTED:
            return Created(vm, changed=asks, tried=(*tried, Attempt(vm.zone, "exists")))
        self.note(f"{vm.name} is stopped in {vm.zone}: starting it")
        started = extension.start(self.cloud, vm, self.note, new_id=self.new_id)
        return Created(started, changed=True, tried=(*tried, Attempt(vm.zone, "started")))

    def _labelled(self, spec: VmSpec, vm: Vm) -> tuple[bool, Vm]:
        """Whether the VM had another `idle_delete` than `spec`, and the VM with that one on it."""
        said, label = would_label(spec, vm), body.IDLE_DELETE_LABEL
        if said is None:
            return False, vm
        self.note(said)
        put, remove = ({label: spec.labels[label]}, []) if label in spec.labels else ({}, [label])
        return True, self.cloud.set_labels(vm.name, vm.zone, put, remove, request_id=self.new_id())

    # --- from zone to zone ------------------------------------------------------------------------

    def _planned(
        self,
        specs: Sequence[VmSpec],
        places: Sequence[str],
        *,
        new: int,
        starting: Sequence[Vm] = (),
    ) -> Search:
        return planned(self, specs, places, self.prices, new=new, starting=starting)

    def _place(self, spec: VmSpec, search: Search, width: int) -> Created:
        if len(search.next(width)) < min(width, len(search.candidates.zones)):
            self.note("the quota has no room for as many at once: fewer zones are asked at once")
        while zones := search.next(width):
            if len(zones) == 1:
                finish: Finish[Inserted] = Finish()
                self._ask(spec, zones[0], search, finish)
            else:
                self.note(f"asking {len(zones)} zones at once: {', '.join(zones)}")
                finish = self._race(spec, zones, search)
            if (won := finish.winner) is not None:
                tried = tuple(search.tried)
                return (
                    Created(won.vm, changed=True, tried=tried)
                    if won.is_new
                    else self._keep(spec, won.vm, tried)
                )
        raise search.failure(spec)

    def _race(self, spec: VmSpec, zones: Sequence[str], search: Search) -> Finish[Inserted]:
        try:
            return race(lambda zone, finish: self._ask(spec, zone, search, finish), zones)
        except CleanupFailed as error:
            kept = [attempt.zone for attempt in search.tried if attempt.result == "created"]
            error.why = "\n".join(
                [
                    error.why,
                    *(
                        f"{spec.name} was made in {zone} and kept: it bills as well"
                        for zone in kept
                    ),
                ]
            )
            raise

    def _ask(self, spec: VmSpec, zone: str, search: Search, finish: Finish[Inserted]) -> None:
        """One zone: its VM becomes the winner or is removed, its refusal narrows the search. Runs in several threads at once."""
        rounds = 0
        while finish.winner is None:
            self.note(f"asking {zone} for {Shape.of(spec)}")
            try:
                made = insert(self, spec, zone, enough=lambda: finish.winner is not None)
            except CloudRefused as error:
                verdict = classify(error.refusal)
                if not error.refusal.final or rounds >= verdict.again:
                    self.note(_said(zone, verdict, error.refusal))
                    search.narrow(zone, error)
                    return
                self.note(
                    f"{zone}: {verdict.kind.value}: {error.refusal}\n{zone} is asked once more"
                )
                rounds += 1
                self.sleep(AGAIN_PAUSE_S if verdict.retry else 0.0)
            except CloudError as error:
                search.tried.append(Attempt(zone, Kind.UNKNOWN.value, error.why or error.what))
                raise
            else:
                self._arrive(made, search, finish)
                return

    def _arrive(self, made: Inserted, search: Search, finish: Finish[Inserted]) -> None:
        """A VM is there: the first is kept, a later one removed unless another run made it."""
        is_first = finish.is_first(made)
        if is_first and made.is_new:
            keep(self, made.vm)
            search.tried.append(Attempt(made.vm.zone, "created"))
        elif made.is_new:
            drop(self, made.vm)
            search.tried.append(
                Attempt(made.vm.zone, "dropped", "another zone was faster: deleted")
            )


def _said(zone: str, verdict: Verdict, refusal: Refusal) -> str:
    """A line for a zone that refused; what it said word for word is in the table at the end."""
    code = f" ({refusal.code})" if refusal.code else ""
    region = (
        f"; no zone of {region_of(zone)} is asked again" if verdict.blast is Blast.REGION else ""
    )
    return f"{zone}: {verdict.kind.value}{code}{region}"


def _refuse_namesake(named: Sequence[Vm], owner: str) -> None:
    """Raises CloudError when the same user has a VM of this name under another key: a second one would bill beside it.

    The owner label comes from the project's key, and the key's place from the project folder: in a
    folder that was renamed, or on another machine, the user has another key.
    """
    user = owner.rpartition("-")[0]
    mine = [
        vm
        for vm in named
        if user and vm.labels.get(body.OWNER_LABEL, "").rpartition("-")[0] == user
    ]
    if not mine:
        return
    raise CloudError(
        f"you have a VM named {mine[0].name} already, made from another project folder or machine",
        where=", ".join(f"{vm.zone}/{vm.name}" for vm in mine),
        why="\n".join(
            f"{vm.zone}: {vm.status}, label {body.OWNER_LABEL} is {vm.labels[body.OWNER_LABEL]!r}"
            for vm in mine
        )
        + f"\nours is {owner!r}; it changes when the project folder is moved or renamed",
        fix="choose another --name, or "
        + ", ".join(f"gcloud compute instances delete {vm.name} --zone {vm.zone}" for vm in mine),
    )


def fits(spec: VmSpec, vm: Vm) -> None:
    """Raises CloudError when the VM has another shape than `spec` asks for, which only a new VM could have."""
    differing = body.drift(spec, vm)
    if differing:
        why = "; ".join(
            f"{key} is {actual}, asked {asked}" for key, (actual, asked) in differing.items()
        )
        fix = f"invoke vm.delete --name {vm.name}"
        raise CloudError(
            "the VM exists with another shape", where=f"{vm.zone}/{vm.name}", why=why, fix=fix
        )


def would_label(spec: VmSpec, vm: Vm) -> str | None:
    """What to say of a VM whose `idle_delete` is not the one of `spec`, which keeping it makes so."""
    before, wanted = (
        labels.get(body.IDLE_DELETE_LABEL, "none") for labels in (vm.labels, spec.labels)
    )
    return None if before == wanted else f"{vm.name}: idle_delete is to be {wanted}, is {before}"


def other_limit(spec: VmSpec, vm: Vm) -> str | None:
    """What to say of a VM that ends earlier than is asked, or never, by the limit of all its runs: one may have another (`vm.extend`)."""
    usual_s = extension.usual_ttl_s(vm)
    if spec.ttl_s is not None and usual_s is None:
        return f"{vm.name} has no time limit, though the settings ask for one: it bills until it is stopped"
    if usual_s is not None and (spec.ttl_s is None or usual_s < spec.ttl_s):
        return f"{vm.name} keeps its time limit of {durations.exact(usual_s)}, less than the settings ask: vm.extend gives one run of it more time"
    return None


def delete_vm(cloud: ComputeCloud, name: str, owner: str, journal: Journal, emit: Emit) -> list[Vm]:
    """Remove our VMs of this name in whatever zone they are; see `Maker.delete`."""
    return Maker(cloud=cloud, journal=journal, emit=emit).delete_everywhere(name, owner)
