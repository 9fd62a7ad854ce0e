"""Makes and removes one VM so that nothing is left behind: zone after zone, each failed insert cleaned up before the next."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from provision.cloud import body, catalog
from provision.cloud import journal as written
from provision.cloud.journal import Journal
from provision.cloud.placement import MORE_ZONES, Blast, Candidates, Kind, Verdict, classify, region_of
from provision.cloud.ports import ComputeCloud
from provision.cloud.refusal import CloudRefused, Refusal
from provision.errors import CleanupFailed, CloudError, NoCapacity, SettingsError
from provision.model import Emit, Note, Vm, VmSpec

HALTED = frozenset({"TERMINATED", "STOPPED"})
"""Status words of a VM that does not run and can be started (Compute Engine, "Instance life cycle")."""


@dataclass(frozen=True)
class Attempt:
    """One zone that was asked: `result` is created, exists, started or the kind of its refusal; `reason` is verbatim."""

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


def new_request_id() -> str:
    """A fresh idempotency key; one per insert, kept over its retries."""
    return str(uuid.uuid4())


@dataclass(frozen=True, kw_only=True)
class Maker:
    """What making and removing VMs needs: the cloud, the journal, somebody to tell, and a source of request ids."""

    cloud: ComputeCloud
    journal: Journal
    emit: Emit
    new_id: Callable[[], str] = new_request_id

    def create(self, spec: VmSpec, zones: Sequence[str]) -> Created:
        """The VM of `spec`, made in the first of `zones` that takes it; one of the same name and owner is found and kept.

        Raises NoCapacity when every zone refused, CleanupFailed when a failed insert may have left something,
        SettingsError for a spec that cannot be, and the cloud's own refusal when no other zone could help.
        """
        body.check_spec(spec)
        owner = spec.labels.get(body.OWNER_LABEL, "")
        if not owner:
            raise SettingsError("a VM without an owner", where="labels", why=f"label {body.OWNER_LABEL} tells ours from others'")
        existing = [vm for vm in self.cloud.list({body.OWNER_LABEL: owner}) if vm.name == spec.name]
        return self._keep(spec, existing[0]) if existing else self._place(spec, zones)

    def delete(self, name: str, zone: str, owner: str) -> bool:
        """Remove our VM and its boot disk and wait until it is gone; False when there was none. Another's VM is refused.

        Raises CleanupFailed when the deletion failed: the VM goes on billing.
        """
        vm = self.cloud.get(name, zone)
        if vm is None:
            self.journal.mark_name(name, zone, written.GONE)
            return False
        if not _is_ours(vm, owner):
            raise foreign(vm)
        self.journal.mark_name(name, zone, written.DELETING)
        try:
            self.cloud.delete(name, zone, request_id=self.new_id())
        except CloudError as error:
            self.journal.mark_name(name, zone, written.LEFT_BEHIND, error.why)
            raise _left_behind("the VM may be left behind and may bill", name, zone, error) from error
        self.journal.mark_name(name, zone, written.GONE)
        return True

    def delete_everywhere(self, name: str, owner: str) -> list[Vm]:
        """Remove our VMs of this name in whatever zone they are; those that were removed.

        Zones of which the journal is not sure are looked into as well.
        """
        listed = [vm for vm in self.cloud.list({body.OWNER_LABEL: owner}) if vm.name == name]
        doubtful = {entry.zone for entry in self.journal.open() if entry.name == name} - {vm.zone for vm in listed}
        found = [vm for zone in sorted(doubtful) if (vm := self.cloud.get(name, zone)) is not None and _is_ours(vm, owner)]
        for zone in doubtful - {vm.zone for vm in found}:
            self.journal.mark_name(name, zone, written.GONE)
        return [vm for vm in (*listed, *found) if self.delete(name, vm.zone, owner)]

    # --- inside -----------------------------------------------------------------------------------------------------

    def _keep(self, spec: VmSpec, vm: Vm, tried: Sequence[Attempt] = ()) -> Created:
        fits(spec, vm)
        if vm.status not in HALTED:
            return Created(vm, changed=False, tried=(*tried, Attempt(vm.zone, "exists")))
        self.emit(Note(f"{vm.name} is stopped in {vm.zone}: starting it"))
        started = self.cloud.start(vm.name, vm.zone, request_id=self.new_id())
        return Created(started, changed=True, tried=(*tried, Attempt(vm.zone, "started")))

    def _place(self, spec: VmSpec, zones: Sequence[str]) -> Created:
        candidates = Candidates.of(zones)
        tried: list[Attempt] = []
        refusal: CloudRefused | None = None
        while (zone := candidates.next) is not None:
            if (misfit := _misfit(spec, zone)) is not None:
                tried.append(Attempt(zone, Kind.NOT_OFFERED.value, misfit))
                candidates = candidates.after(zone, Verdict(Kind.NOT_OFFERED, Blast.ZONE))
                continue
            self.emit(Note(f"asking {zone} for {_shape(spec)}"))
            try:
                return self._insert(spec, zone, tried)
            except CloudRefused as error:
                refusal = error
            verdict = classify(refusal.refusal)
            tried.append(Attempt(zone, verdict.kind.value, str(refusal.refusal)))
            self.emit(Note(f"{zone}: {verdict.kind.value}: {refusal.refusal}"))
            if verdict.blast is Blast.REGION:
                self.emit(Note(f"{region_of(zone)}: no zone of it is asked again"))
            candidates = candidates.after(zone, verdict, refusal.refusal.zones_available)
        raise _failure(spec, tried, refusal)

    def _insert(self, spec: VmSpec, zone: str, tried: Sequence[Attempt]) -> Created:
        """One zone: intent on disk, insert, and on a refusal everything removed that it may have made."""
        request_id = self.new_id()
        marked = replace(spec, labels={**spec.labels, body.REQUEST_LABEL: request_id})
        self.journal.intent(marked, zone, request_id)
        try:
            vm = self.cloud.create(marked, zone, request_id=request_id)
        except CloudError as error:
            self._clean_up(spec.name, zone, request_id, if_absent=written.UNSURE if _in_doubt(error) else written.GONE)
            raise
        except KeyboardInterrupt:
            self.emit(Note(f"{spec.name} may be in the making in {zone}: vm.create takes it up again, vm.delete removes it"))
            raise
        if vm.labels.get(body.REQUEST_LABEL) != request_id:
            # Another run of ours made it between our look and our insert.
            self.journal.mark(request_id, written.GONE)
            return self._keep(spec, vm, tried)
        self.journal.mark(request_id, written.MADE)
        return Created(vm, changed=True, tried=(*tried, Attempt(zone, "created")))

    def _clean_up(self, name: str, zone: str, request_id: str, *, if_absent: str) -> None:
        """After a failed insert the VM may exist all the same: look, and remove what carries our requestId."""
        state = if_absent
        try:
            vm = self.cloud.get(name, zone)
            if vm is not None and vm.labels.get(body.REQUEST_LABEL) == request_id:
                self.cloud.delete(name, zone, request_id=self.new_id())
                state = written.GONE
        except CloudError as error:
            self.journal.mark(request_id, written.LEFT_BEHIND, error.why)
            raise _left_behind("a VM may be left behind and may bill", name, zone, error) from error
        self.journal.mark(request_id, state)


def _in_doubt(error: CloudError) -> bool:
    """True when the insert may still take effect: its answer, or the end of its operation, was never seen."""
    return isinstance(error, CloudRefused) and classify(error.refusal).kind is Kind.TRANSIENT


def _is_ours(vm: Vm, owner: str) -> bool:
    return vm.labels.get(body.OWNER_LABEL) == owner


def _misfit(spec: VmSpec, zone: str) -> str | None:
    """Why this zone cannot carry the shape (some allow less memory for some GPUs); None when it can."""
    try:
        catalog.validate_shape(spec.gpu, spec.gpu_count, spec.machine_type, spec.disk_gb, zone=zone)
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


def foreign(vm: Vm) -> CloudRefused:
    """The error for a VM that has the name and is not ours; it is never touched."""
    message = f"label {body.OWNER_LABEL} is {vm.labels.get(body.OWNER_LABEL)!r}"
    refusal = Refusal(code="alreadyExists", message=message, http_status=409)
    return CloudRefused(
        "a VM of this name exists and is not ours", refusal=refusal, where=f"{vm.zone}/{vm.name}", fix="choose another --name"
    )


def _left_behind(what: str, name: str, zone: str, error: CloudError) -> CleanupFailed:
    return CleanupFailed(what, where=f"{zone}/{name}", why=error.why, fix=f"gcloud compute instances delete {name} --zone {zone}")


def _failure(spec: VmSpec, tried: Sequence[Attempt], refusal: CloudRefused | None) -> CloudError | SettingsError:
    if not tried:
        return SettingsError("no zone to ask", where="zones", why="the list of zones is empty", fix="set zones: [us-central1-a]")
    verdict = classify(refusal.refusal) if refusal is not None else Verdict(Kind.NOT_OFFERED, Blast.ZONE)
    if refusal is not None and (verdict.blast in {Blast.PROJECT, Blast.NEVER} or (len(tried) == 1 and verdict.kind is not Kind.CAPACITY)):
        return refusal
    reasons = tuple((attempt.zone, attempt.reason) for attempt in tried)
    why = "\n".join(f"{zone}: {reason}" for zone, reason in reasons)
    return NoCapacity(f"no zone had {_shape(spec)}", where=spec.name, why=why, fix=MORE_ZONES, tried=reasons)


def _shape(spec: VmSpec) -> str:
    return f"{spec.machine_type} + {spec.gpu_count} x {spec.gpu}" if spec.gpu else spec.machine_type


def create_vm(cloud: ComputeCloud, spec: VmSpec, zones: Sequence[str], journal: Journal, emit: Emit) -> Created:
    """The VM of `spec` in the first of `zones` that takes it; see `Maker.create`."""
    return Maker(cloud=cloud, journal=journal, emit=emit).create(spec, zones)


def delete_vm(cloud: ComputeCloud, name: str, owner: str, journal: Journal, emit: Emit) -> list[Vm]:
    """Remove our VMs of this name in whatever zone they are; see `Maker.delete`."""
    return Maker(cloud=cloud, journal=journal, emit=emit).delete_everywhere(name, owner)
