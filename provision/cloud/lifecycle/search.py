"""Where a VM may go: the zones worth asking, told with plan, price and quotas before any of them is asked; how far the asking came."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from provision.cloud.api.ports import ComputeCloud
from provision.cloud.lifecycle.context import Means
from provision.cloud.market import catalog
from provision.cloud.market.catalog import Shape
from provision.cloud.market.placement import (
    MORE_ZONES,
    Blast,
    Candidates,
    Kind,
    Verdict,
    classify,
    itinerary,
    region_of,
)
from provision.cloud.market.plan import plan_lines
from provision.cloud.market.prices import PriceList
from provision.cloud.market.quota import (
    Quotas,
    beside,
    no_room,
    no_room_to_start,
    room_for,
    short_of,
    short_zones,
    to_start,
    untold,
    with_started,
)
from provision.cloud.refusal import CloudRefused
from provision.core.errors import CloudError, NoCapacity, SettingsError
from provision.core.model import Vm, VmSpec

_FINAL = frozenset({Blast.PROJECT, Blast.NEVER})
_REASON_COLUMNS = 72
"""So wide is a reason below its zone: with what stands before it, a terminal of 80 columns holds
it."""


@dataclass(frozen=True)
class Attempt:
    """One zone that was asked: `result` is created, exists, started, dropped or the kind of its refusal; `reason` is verbatim."""

    zone: str
    result: str
    reason: str = ""

    def as_dict(self) -> dict[str, str]:
        """The attempt as `--json` prints it."""
        return {"zone": self.zone, "result": self.result, "reason": self.reason}


@dataclass
class Search:
    """A search for a zone, as far as it has come; several threads may tell it what they found."""

    candidates: Candidates
    tried: list[Attempt] = field(default_factory=list)
    refusal: CloudRefused | None = None
    """What ended the search, or else the latest."""
    rooms: Mapping[str, int] = field(default_factory=dict)
    """Region → how many such VMs one search may ask for there at once, as far as the quotas say; ""
    stands for all regions together."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def anew(self) -> Search:
        """The same search for another VM: what is known before anything was asked holds for each."""
        return Search(self.candidates, list(self.tried), self.refusal, self.rooms)

    def next(self, width: int) -> tuple[str, ...]:
        """The zones to ask now, at most `width` at once and no more than the quotas have room for; none when all were asked."""
        return self.candidates.next(width, self.rooms)

    def narrow(self, zone: str, error: CloudRefused) -> None:
        """`zone` refused: it is not asked again, nor is whatever its refusal reaches."""
        verdict = classify(error.refusal)
        with self._lock:
            self.tried.append(Attempt(zone, verdict.kind.value, str(error.refusal)))
            self.candidates = self.candidates.after(zone, verdict, error.refusal.zones_available)
            if self.refusal is None or classify(self.refusal.refusal).blast not in _FINAL:
                self.refusal = error

    def failure(self, spec: VmSpec) -> CloudError | SettingsError:
        """The error when no zone is left, with every zone's reason."""
        tried, refusal = self.tried, self.refusal
        if not tried:
            return SettingsError(
                "no zone to ask",
                where="zones",
                why="the list of zones is empty",
                fix="set zones: [us-central1-a]",
            )
        verdict = (
            classify(refusal.refusal)
            if refusal is not None
            else Verdict(Kind.NOT_OFFERED, Blast.ZONE)
        )
        if refusal is not None and (
            verdict.blast in _FINAL or (len(tried) == 1 and verdict.kind is not Kind.CAPACITY)
        ):
            if len(tried) > 1:
                refusal.why = f"{refusal.why}\n{table_of(tried)}"
            return refusal
        reasons = tuple((attempt.zone, attempt.result, attempt.reason) for attempt in tried)
        nowhere = spec.gpu and all(attempt.result == Kind.NOT_OFFERED.value for attempt in tried)
        fix = f"invoke vm.offers --gpu {spec.gpu}" if nowhere else MORE_ZONES
        if spec.reservation is not None and all(
            attempt.result == Kind.NOT_FOUND.value for attempt in tried
        ):
            fix = "gcloud compute reservations list"
        return NoCapacity(
            f"no zone had {Shape.of(spec)}",
            where=spec.name,
            why=table_of(tried),
            fix=fix,
            tried=reasons,
        )


def planned(
    means: Means,
    specs: Sequence[VmSpec],
    places: Sequence[str],
    prices: PriceList,
    *,
    new: int,
    starting: Sequence[Vm] = (),
) -> Search:
    """The search for a place for VMs of one shape (not none), its plan and price told; nothing is asked for.

    `new` of them are surely to be made, and the stopped VMs `starting` run again: for all of these
    the quotas must have room. Raises QuotaRefused where they have not.
    """
    search = _itinerary(means, specs[0], places)
    if search.candidates.zones:
        _skip_short(means, specs[0], search, new, starting)
        for line in plan_lines(specs, search.candidates.zones, prices):
            means.note(line)
    return search


def _itinerary(means: Means, spec: VmSpec, places: Sequence[str]) -> Search:
    """The zones worth asking; those that do not offer the GPU, or cannot carry the shape, are told of and not asked."""
    plan = itinerary(places, means.cloud.zones_offering(spec.gpu) if places else ())
    misspelt = (
        itinerary(plan.lacking, means.cloud.zones_offering(None)).lacking
        if plan.lacking and spec.gpu
        else plan.lacking
    )
    reasons = {
        place: "there is no such zone or region"
        if place in misspelt
        else f"no {spec.gpu} is offered there"
        for place in plan.lacking
    }
    tried = [Attempt(place, Kind.NOT_OFFERED.value, reason) for place, reason in reasons.items()]
    misfits = {zone: misfit for zone in plan.zones if (misfit := _misfit(spec, zone)) is not None}
    tried += [Attempt(zone, Kind.NOT_OFFERED.value, misfit) for zone, misfit in misfits.items()]
    return Search(Candidates.of(zone for zone in plan.zones if zone not in misfits), tried)


def _misfit(spec: VmSpec, zone: str) -> str | None:
    """Why this zone cannot carry the shape (some allow less memory for some GPUs); None when it can."""
    try:
        catalog.validate_shape(
            spec.gpu,
            spec.gpu_count,
            spec.machine_type,
            spec.disk_gb,
            zone=zone,
            provisioning=spec.provisioning_model,
        )
    except SettingsError as error:
        return error.why
    return None


def check_starts(cloud: ComputeCloud, vms: Sequence[Vm], note: Callable[[str], None]) -> None:
    """Raise QuotaRefused where the regions' quotas of GPUs are surely short of what stopped VMs need together, before any is started.

    One call, and none for a single VM: its start is refused in the same words. Unreadable quotas
    stop nothing.
    """
    drawing = [vm for vm in vms if vm.gpu]
    if len(drawing) > 1 and (quotas := _quotas(cloud, drawing, note, regional=True)) is not None:
        _refuse_starts(cloud, quotas, drawing)


def _quotas(
    cloud: ComputeCloud,
    places: Iterable[Vm | str],
    note: Callable[[str], None],
    *,
    regional: bool = False,
) -> Quotas | None:
    """The quotas of the regions of VMs and zones; None where they cannot be read, which is told."""
    regions = dict.fromkeys(
        region_of(place if isinstance(place, str) else place.zone) for place in places
    )
    try:
        return cloud.quotas([*regions], regional=regional)
    except CloudError as error:
        note(f"{error.what}, so they are not checked: {error.why}")
        return None


def _refuse_starts(cloud: ComputeCloud, quotas: Quotas, vms: Sequence[Vm]) -> Quotas:
    """The quotas as they are once the VMs run; raises QuotaRefused where they cannot all."""
    starts = to_start(quotas, vms)
    if short := short_of(starts):
        raise no_room_to_start(short, len(vms), cloud.project)
    return with_started(quotas, starts)


def _skip_short(
    means: Means, spec: VmSpec, search: Search, new: int, starting: Sequence[Vm]
) -> None:
    """Pass over the zones whose quota is surely short; raises QuotaRefused without room for all. Unreadable quotas stop nothing."""
    zones, shape, model = search.candidates.zones, Shape.of(spec), spec.provisioning_model
    quotas = _quotas(means.cloud, (*zones, *starting), means.note)
    if quotas is None:
        return
    quotas = _refuse_starts(means.cloud, quotas, starting)
    how: dict[str, Any] = {"count": new, "provisioning": model, "more": beside(spec)}
    short = short_zones(quotas, shape, zones, **how)
    rooms, room = room_for(quotas, shape, map(region_of, zones), **how)
    if room < new:
        raise no_room(shape, short, means.cloud.project, count=new, room=room)
    full = {zone: why for zone, why in short.items() if not rooms[region_of(zone)]}
    for region, why in {region_of(zone): why for zone, why in short.items()}.items():
        means.note(
            f"{region}: {Kind.QUOTA.value}: {f'room for {rooms[region]} of {new}: ' if rooms[region] else ''}{why}"
        )
    for line in untold(
        quotas, shape, (zone for zone in zones if zone not in short), count=new, provisioning=model
    ):
        means.note(line)
    search.tried += [Attempt(zone, Kind.QUOTA.value, why) for zone, why in full.items()]
    search.candidates = Candidates.of(zone for zone in zones if zone not in full)
    search.rooms = _at_once(
        room_for(
            quotas, shape, map(region_of, zones), **{**how, "count": max(new, 1) * len(zones)}
        ),
        max(new, 1),
    )


def _at_once(room: tuple[Mapping[str, int], int], searches: int) -> dict[str, int]:
    """How many VMs each of several searches that go on at once may ask for, by region, and over all of them ("")."""
    rooms, everywhere = room
    return {region: max(1, most // searches) for region, most in (*rooms.items(), ("", everywhere))}


def table_of(tried: Sequence[Attempt]) -> str:
    """A line for each zone, with its result; below it the reason, word for word. Zones in a row that say the same say it once."""
    width = max((len(attempt.zone) for attempt in tried), default=0)
    lines: list[str] = []
    for reason, same in groupby(tried, key=lambda attempt: (attempt.reason, attempt.result)):
        lines += [f"{attempt.zone:{width}}  {attempt.result}" for attempt in same]
        lines += _below(reason[0])
    return "\n".join(lines)


def _below(reason: str) -> list[str]:
    fold = textwrap.TextWrapper(
        _REASON_COLUMNS,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [row for line in reason.splitlines() for row in fold.wrap(line)]
