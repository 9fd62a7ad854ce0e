"""Makes and removes one VM so that nothing is left behind: zone after zone, each failed insert cleaned up before the next."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from provision.cloud import body, catalog
from provision.cloud import journal as written
from provision.cloud.catalog import Shape
from provision.cloud.insert import Inserted, drop, insert, keep, resume
from provision.cloud.journal import Entry, Journal
from provision.cloud.means import Means, foreign, is_ours, left_behind, new_request_id
from provision.cloud.placement import MORE_ZONES, Blast, Candidates, Kind, Verdict, classify, itinerary, region_of
from provision.cloud.plan import plan_lines, span
from provision.cloud.ports import ANY, ComputeCloud
from provision.cloud.prices import PriceList, packaged
from provision.cloud.quota import no_room, short_zones, untold
from provision.cloud.race import Finish, race
from provision.cloud.refusal import CloudRefused
from provision.errors import CleanupFailed, CloudError, NoCapacity, SettingsError
from provision.model import Emit, Vm, VmSpec

__all__ = ["HALTED", "Attempt", "Created", "Maker", "delete_vm", "fits", "new_request_id", "other_limit", "table_of"]

HALTED = frozenset({"TERMINATED", "STOPPED"})
"""Status words of a VM that does not run and can be started (Compute Engine, "Instance life cycle")."""
_FINAL = frozenset({Blast.PROJECT, Blast.NEVER})
AGAIN_PAUSE_S = 5.0
"""Before a zone is asked again for what passes by itself there."""


@dataclass(frozen=True)
class Attempt:
    """One zone that was asked: `result` is created, exists, started, dropped or the kind of its refusal; `reason` is verbatim."""

    zone: str
    result: str
    reason: str = ""

    def as_dict(self) -> dict[str, str]:
        """The attempt as `--json` prints it."""
        return {"zone": self.zone, "result": self.result, "reason": self.reason}


@dataclass(frozen=True)
class Created:
    """The VM, whether anything was done for it, and every zone that was asked."""

    vm: Vm
    changed: bool
    tried: tuple[Attempt, ...] = ()


@dataclass
class _Search:
    """A search for a zone, as far as it has come; several threads may tell it what they found."""

    candidates: Candidates
    tried: list[Attempt] = field(default_factory=list)
    refusal: CloudRefused | None = None
    """What ended the search, or else the latest."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def narrow(self, zone: str, error: CloudRefused) -> None:
        """`zone` refused: it is not asked again, nor is whatever its refusal reaches."""
        verdict = classify(error.refusal)
        with self._lock:
            self.tried.append(Attempt(zone, verdict.kind.value, str(error.refusal)))
            self.candidates = self.candidates.after(zone, verdict, error.refusal.zones_available)
            if self.refusal is None or classify(self.refusal.refusal).blast not in _FINAL:
                self.refusal = error


@dataclass(frozen=True, kw_only=True)
class Maker(Means):
    """Makes, keeps and removes VMs by name; `prices` is what the plan is priced by."""

    prices: PriceList = field(default_factory=packaged, repr=False)

    def create(self, spec: VmSpec, places: Sequence[str], *, width: int = 1) -> Created:
        """The VM of `spec`, made in the first zone of `places` that takes it; one of the same name and owner is found and kept.

        `places` are zones, regions or `everywhere`; `width` zones are asked at once. What earlier runs asked for under
        this name and did not live to see is taken up first.

        Raises NoCapacity when every zone refused, CleanupFailed when a failed insert may have left something,
        SettingsError for a spec that cannot be, and the cloud's own refusal when no other zone could help.
        """
        body.check_spec(spec)
        owner = spec.labels.get(body.OWNER_LABEL, "")
        if not owner:
            raise SettingsError("a VM without an owner", where="labels", why=f"label {body.OWNER_LABEL} tells ours from others'")
        with self.journal.claim(spec.name, self.note):
            resumed = self._resume(spec.name)
            named = [vm for vm in self.cloud.list({body.OWNER_LABEL: ANY}) if vm.name == spec.name]
            existing = [vm for vm in named if is_ours(vm, owner)] or resumed or self._unlisted(spec.name, named)
            if existing:
                return self._keep(spec, self._only_one(existing, resumed))
            _refuse_namesake(named, owner)
            return self._place(spec, places, width)

    def foretell(self, spec: VmSpec, places: Sequence[str]) -> None:
        """Tell what `create` would do where there is no such VM yet, and raise what it would raise before anything is asked for."""
        search = self._planned(spec, places)
        if not search.candidates.zones:
            raise _failure(spec, search)

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
            raise left_behind("the VM may be left behind and may bill", name, zone, error) from error
        self.journal.mark_name(name, zone, written.GONE)
        return True

    def delete_everywhere(self, name: str, owner: str) -> list[Vm]:
        """Remove our VMs of this name in whatever zone they are; those that were removed.

        Inserts of earlier runs that are still under way are waited for, so that their VM does not appear afterwards.
        """
        with self.journal.claim(name, self.note):
            resumed = self._resume(name)
            listed = [vm for vm in self.cloud.list({body.OWNER_LABEL: owner}) if vm.name == name]
            found = {vm.zone: vm for vm in (*self._unlisted(name, listed), *resumed, *listed) if is_ours(vm, owner)}
            return [vm for zone, vm in sorted(found.items()) if self.delete(name, zone, owner)]

    # --- what is there already --------------------------------------------------------------------------------------

    def _entries(self, name: str) -> list[Entry]:
        return [entry for entry in self.journal.open() if entry.name == name]

    def _resume(self, name: str) -> list[Vm]:
        """The VMs that earlier runs asked for under this name without living to see them; their entries are settled."""
        doubtful = [entry for entry in self._entries(name) if entry.state != written.MADE]
        return [vm for entry in doubtful if (vm := resume(self, entry)) is not None]

    def _unlisted(self, name: str, listed: Sequence[Vm]) -> list[Vm]:
        """VMs that the journal calls made and the list does not show; they are asked for by name before they are taken for gone."""
        zones = {vm.zone for vm in listed}
        unlisted = [entry for entry in self._entries(name) if entry.state == written.MADE and entry.zone not in zones]
        return [vm for entry in unlisted if (vm := resume(self, entry)) is not None]

    def _only_one(self, existing: Sequence[Vm], resumed: Sequence[Vm]) -> Vm:
        """Of several VMs of ours with one name the one to keep: a run that asked several zones at once was killed.

        The others that such a run left are removed; those that were there before are told of and left alone.
        """
        taken_up = {vm.instance_id for vm in resumed}
        chosen, *others = sorted(existing, key=lambda vm: (vm.instance_id in taken_up, vm.status in HALTED, vm.created, vm.zone))
        for vm in others:
            if vm.instance_id in taken_up:
                self.note(f"{vm.name} was made in {chosen.zone} and in {vm.zone}: the one in {vm.zone} is deleted")
                drop(self, vm)
            else:
                self.note(f"{vm.name} exists in {vm.zone} too and bills")
        return chosen

    def _keep(self, spec: VmSpec, vm: Vm, tried: Sequence[Attempt] = ()) -> Created:
        fits(spec, vm)
        if (said := other_limit(spec, vm)) is not None:
            self.note(said)
        asks, vm = self._labelled(spec, vm)
        if vm.status not in HALTED:
            return Created(vm, changed=asks, tried=(*tried, Attempt(vm.zone, "exists")))
        self.note(f"{vm.name} is stopped in {vm.zone}: starting it")
        started = self.cloud.start(vm.name, vm.zone, request_id=self.new_id())
        return Created(started, changed=True, tried=(*tried, Attempt(vm.zone, "started")))

    def _labelled(self, spec: VmSpec, vm: Vm) -> tuple[bool, Vm]:
        """Whether the VM had another `idle_delete` than `spec`, and the VM with that one on it."""
        label, wanted = body.IDLE_DELETE_LABEL, spec.labels.get(body.IDLE_DELETE_LABEL)
        before = vm.labels.get(label)
        if before == wanted:
            return False, vm
        self.note(f"{vm.name}: idle_delete is {wanted or 'none'}, was {before or 'none'}")
        put, remove = ({}, [label]) if wanted is None else ({label: wanted}, [])
        return True, self.cloud.set_labels(vm.name, vm.zone, put, remove, request_id=self.new_id())

    # --- from zone to zone ------------------------------------------------------------------------------------------

    def _place(self, spec: VmSpec, places: Sequence[str], width: int) -> Created:
        search = self._planned(spec, places)
        while zones := search.candidates.next(width):
            if len(zones) == 1:
                finish: Finish[Inserted] = Finish()
                self._ask(spec, zones[0], search, finish)
            else:
                self.note(f"asking {len(zones)} zones at once: {', '.join(zones)}")
                finish = self._race(spec, zones, search)
            if (won := finish.winner) is not None:
                tried = tuple(search.tried)
                return Created(won.vm, changed=True, tried=tried) if won.is_new else self._keep(spec, won.vm, tried)
        raise _failure(spec, search)

    def _itinerary(self, spec: VmSpec, places: Sequence[str]) -> _Search:
        """The zones worth asking; those that do not offer the GPU, or cannot carry the shape, are told of and not asked."""
        plan = itinerary(places, self.cloud.zones_offering(spec.gpu) if places else ())
        nothing = f"no {spec.gpu} is offered there" if spec.gpu else "there is no such zone"
        tried = [Attempt(place, Kind.NOT_OFFERED.value, nothing) for place in plan.lacking]
        misfits = {zone: misfit for zone in plan.zones if (misfit := _misfit(spec, zone)) is not None}
        tried += [Attempt(zone, Kind.NOT_OFFERED.value, misfit) for zone, misfit in misfits.items()]
        return _Search(Candidates.of(zone for zone in plan.zones if zone not in misfits), tried)

    def _planned(self, spec: VmSpec, places: Sequence[str]) -> _Search:
        """The zones worth asking, told with the plan and its price before the first of them is asked."""
        search = self._itinerary(spec, places)
        if search.candidates.zones:
            self._skip_short(spec, search)
            for line in plan_lines(spec, search.candidates.zones, self.prices):
                self.note(line)
        return search

    def _skip_short(self, spec: VmSpec, search: _Search) -> None:
        """Pass over the zones whose quota is surely short; raises QuotaRefused when none is left. Unreadable quotas stop nothing."""
        zones = search.candidates.zones
        try:
            quotas = self.cloud.quotas(list(dict.fromkeys(map(region_of, zones))))
        except CloudError as error:
            self.note(f"{error.what}, so they are not checked: {error.why}")
            return
        short = short_zones(quotas, Shape.of(spec), zones, provisioning=spec.provisioning_model)
        if len(short) == len(zones):
            raise no_room(Shape.of(spec), short, self.cloud.project)
        for zone, why in short.items():
            self.note(f"{zone}: {Kind.QUOTA.value}: {why}")
        for line in untold(quotas, Shape.of(spec), (zone for zone in zones if zone not in short), provisioning=spec.provisioning_model):
            self.note(line)
        search.tried += [Attempt(zone, Kind.QUOTA.value, why) for zone, why in short.items()]
        search.candidates = Candidates.of(zone for zone in zones if zone not in short)

    def _race(self, spec: VmSpec, zones: Sequence[str], search: _Search) -> Finish[Inserted]:
        try:
            return race(lambda zone, finish: self._ask(spec, zone, search, finish), zones)
        except CleanupFailed as error:
            kept = [attempt.zone for attempt in search.tried if attempt.result == "created"]
            error.why = "\n".join([error.why, *(f"{spec.name} was made in {zone} and kept: it bills as well" for zone in kept)])
            raise

    def _ask(self, spec: VmSpec, zone: str, search: _Search, finish: Finish[Inserted]) -> None:
        """One zone: its VM becomes the winner or is removed, its refusal narrows the search. Runs in several threads at once."""
        rounds = 0
        while finish.winner is None:
            self.note(f"asking {zone} for {_shape(spec)}")
            try:
                made = insert(self, spec, zone)
            except CloudRefused as error:
                verdict = classify(error.refusal)
                self.note(f"{zone}: {verdict.kind.value}: {error.refusal}")
                if not error.refusal.final or rounds >= verdict.again:
                    if verdict.blast is Blast.REGION:
                        self.note(f"{region_of(zone)}: no zone of it is asked again")
                    search.narrow(zone, error)
                    return
                rounds += 1
                self.sleep(AGAIN_PAUSE_S if verdict.retry else 0.0)
            else:
                self._arrive(made, search, finish)
                return

    def _arrive(self, made: Inserted, search: _Search, finish: Finish[Inserted]) -> None:
        """A VM is there: the first is kept, a later one removed unless another run made it."""
        is_first = finish.is_first(made)
        if is_first and made.is_new:
            keep(self, made.vm)
            search.tried.append(Attempt(made.vm.zone, "created"))
        elif made.is_new:
            drop(self, made.vm)
            search.tried.append(Attempt(made.vm.zone, "dropped", "another zone was faster: deleted"))


def _refuse_namesake(named: Sequence[Vm], owner: str) -> None:
    """Raises CloudError when the same user has a VM of this name under another key: a second one would bill beside it.

    The owner label comes from the project's key, and the key's place from the project folder: in a folder that was
    renamed, or on another machine, the user has another key.
    """
    user = owner.rpartition("-")[0]
    mine = [vm for vm in named if user and vm.labels.get(body.OWNER_LABEL, "").rpartition("-")[0] == user]
    if not mine:
        return
    raise CloudError(
        f"you have a VM named {mine[0].name} already, made from another project folder or machine",
        where=", ".join(f"{vm.zone}/{vm.name}" for vm in mine),
        why="\n".join(f"{vm.zone}: {vm.status}, label {body.OWNER_LABEL} is {vm.labels[body.OWNER_LABEL]!r}" for vm in mine)
        + f"\nours is {owner!r}; it changes when the project folder is moved or renamed",
        fix="choose another --name, or " + ", ".join(f"gcloud compute instances delete {vm.name} --zone {vm.zone}" for vm in mine),
    )


def _misfit(spec: VmSpec, zone: str) -> str | None:
    """Why this zone cannot carry the shape (some allow less memory for some GPUs); None when it can."""
    try:
        catalog.validate_shape(spec.gpu, spec.gpu_count, spec.machine_type, spec.disk_gb, zone=zone, provisioning=spec.provisioning_model)
    except SettingsError as error:
        return error.why
    return None


def fits(spec: VmSpec, vm: Vm) -> None:
    """Raises CloudError when the VM has another shape than `spec` asks for, which only a new VM could have."""
    differing = body.drift(spec, vm)
    if differing:
        why = "; ".join(f"{key} is {actual}, asked {asked}" for key, (actual, asked) in differing.items())
        fix = f"invoke vm.delete --name {vm.name}"
        raise CloudError("the VM exists with another shape", where=f"{vm.zone}/{vm.name}", why=why, fix=fix)


def other_limit(spec: VmSpec, vm: Vm) -> str | None:
    """What to say of a VM that ends earlier than is asked, or never; one that was given more time is as it should be."""
    if spec.ttl_s is not None and vm.ttl_s is None:
        return f"{vm.name} has no time limit, though the settings ask for one: it bills until it is stopped"
    if vm.ttl_s is not None and (spec.ttl_s is None or vm.ttl_s < spec.ttl_s):
        return f"{vm.name} keeps its time limit of {span(vm.ttl_s)}, less than the settings ask: vm.extend gives it more time"
    return None


def table_of(tried: Sequence[Attempt]) -> str:
    """A line for each zone: zone, result, verbatim reason."""
    width, result = (max((len(text) for text in column), default=0) for column in zip(*((a.zone, a.result) for a in tried), strict=True))
    return "\n".join(f"{attempt.zone:{width}}  {attempt.result:{result}}  {attempt.reason}".rstrip() for attempt in tried)


def _failure(spec: VmSpec, search: _Search) -> CloudError | SettingsError:
    tried, refusal = search.tried, search.refusal
    if not tried:
        return SettingsError("no zone to ask", where="zones", why="the list of zones is empty", fix="set zones: [us-central1-a]")
    verdict = classify(refusal.refusal) if refusal is not None else Verdict(Kind.NOT_OFFERED, Blast.ZONE)
    if refusal is not None and (verdict.blast in _FINAL or (len(tried) == 1 and verdict.kind is not Kind.CAPACITY)):
        if len(tried) > 1:
            refusal.why = f"{refusal.why}\n{table_of(tried)}"
        return refusal
    reasons = tuple((attempt.zone, attempt.result, attempt.reason) for attempt in tried)
    return NoCapacity(f"no zone had {_shape(spec)}", where=spec.name, why=table_of(tried), fix=MORE_ZONES, tried=reasons)


def _shape(spec: VmSpec) -> str:
    return f"{spec.machine_type} + {spec.gpu_count} x {spec.gpu}" if spec.gpu else spec.machine_type


def delete_vm(cloud: ComputeCloud, name: str, owner: str, journal: Journal, emit: Emit) -> list[Vm]:
    """Remove our VMs of this name in whatever zone they are; see `Maker.delete`."""
    return Maker(cloud=cloud, journal=journal, emit=emit).delete_everywhere(name, owner)
