"""The order in which zones are asked: first by the settings, then by what the refusals leave. Pure.

`zones_in_order` turns the setting `zones` into zones; `Candidates` drops what a refusal rules out
(`cloud/refusal_table.py`) and puts first what the API recommends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from provision.cloud.refusal_table import BlastRadius, Classification

EVERYWHERE = "everywhere"
"""Place that means every zone."""
_NO_LIMITS: Mapping[str, int] = {}


def region_of(zone: str) -> str:
    """Return `us-central1` for `us-central1-a`."""
    return zone.rsplit("-", 1)[0]


@dataclass(frozen=True)
class ZonePlan:
    """Zones in the order of asking, and the places of the settings without a fitting zone."""

    zones: tuple[str, ...]
    lacking: tuple[str, ...] = ()


def zones_in_order(places: Iterable[str], offering: Sequence[str]) -> ZonePlan:
    """Return the zones of `places`, in their order, each once, limited to `offering`.

    A place is a zone (`us-central1-a`), a region (`us-central1`: its zones) or `everywhere` (all
    that are left).
    """
    zones: dict[str, None] = {}
    lacking: dict[str, None] = {}
    for place in places:
        matching = [zone for zone in offering if place in (zone, region_of(zone), EVERYWHERE)]
        zones.update(dict.fromkeys(matching))
        if not matching:
            lacking[place] = None
    return ZonePlan(tuple(zones), tuple(lacking))


@dataclass(frozen=True)
class Candidates:
    """The zones that are still worth asking, in order."""

    zones: tuple[str, ...]

    @classmethod
    def of(cls, zones: Iterable[str]) -> Candidates:
        """Return candidates in the given order, each once."""
        return cls(tuple(dict.fromkeys(zones)))

    def next(self, width: int = 1, rooms: Mapping[str, int] = _NO_LIMITS) -> tuple[str, ...]:
        """Return the zones to ask now, at most `width` at once; none when all were asked.

        `rooms` limits how many are asked at once in a region, and in all regions together (key
        ""). Zones that are asked at once draw on the same quota for a moment, and a region whose
        quota the search itself has used up would not be asked again.
        """
        chosen: list[str] = []
        for zone in self.zones:
            region = region_of(zone)
            in_region = sum(region_of(other) == region for other in chosen)
            has_room = in_region < rooms.get(region, width)
            if has_room and len(chosen) < min(width, rooms.get("", width)):
                chosen.append(zone)
        return tuple(chosen)

    def after(
        self, zone: str, classification: Classification, recommended: Sequence[str] = ()
    ) -> Candidates:
        """Return what is left after `zone` refused; zones that the API recommended come first."""
        radius = classification.blast_radius
        left = [candidate for candidate in self.zones if not _is_within(candidate, zone, radius)]
        first = [candidate for candidate in dict.fromkeys(recommended) if candidate in left]
        rest = [candidate for candidate in left if candidate not in first]
        return Candidates((*first, *rest))


def _is_within(candidate: str, zone: str, radius: BlastRadius) -> bool:
    if radius is BlastRadius.ZONE:
        return candidate == zone
    if radius is BlastRadius.REGION:
        return region_of(candidate) == region_of(zone)
    return True
