"""Where to try next: what a refusal means, how far it reaches, and the order of the zones. Pure.

The table covers the error codes of Compute Engine's resource-availability and quota pages and those
that users of other launchers reported (facts/cos_gce.md §5.4, row by row in
tests/unit/cloud/refusals.toml); codes are matched by prefix, since variants such as
`..._WITH_DETAILS` appear over time.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from provision.cloud.refusal import (
    CONNECTION_LOST,
    TIMED_OUT,
    UNREADABLE,
    VANISHED,
    WAITED_IN_VAIN,
    AuthRefused,
    CloudRefused,
    NotFoundRefused,
    QuotaRefused,
    Refusal,
)

_NO_LIMITS: Mapping[str, int] = {}


class Blast(enum.StrEnum):
    """How far a refusal reaches: where asking again is pointless."""

    ZONE = "zone"
    REGION = "region"
    PROJECT = "project"
    NEVER = "never"
    """The request itself is wrong: no place will take it."""


class Kind(enum.StrEnum):
    """What the refusal is about."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    RATE = "rate"
    TRANSIENT = "transient"
    NOT_OFFERED = "not offered"
    NOT_FOUND = "not found"
    EXISTS = "exists"
    AUTH = "auth"
    CONFIG = "config"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """What to do after a refusal: `retry` the same request first (same requestId), then move on by `blast`.

    An operation that failed stays failed under its requestId; `again` is how many new inserts the
    same zone is worth.
    """

    kind: Kind
    blast: Blast
    retry: bool = False
    again: int = 0


@dataclass(frozen=True)
class _Row:
    verdict: Verdict
    codes: tuple[str, ...] = ()
    message: str = ""
    statuses: tuple[int, ...] = ()

    def matches(self, refusal: Refusal) -> bool:
        """Every condition that the row names holds; codes by prefix, the message by regular expression."""
        if self.codes and not refusal.code.startswith(self.codes):
            return False
        if self.statuses and refusal.http_status not in self.statuses:
            return False
        return (
            not self.message
            or re.search(self.message, f"{refusal.message} {refusal.quota}", re.IGNORECASE)
            is not None
        )


_CAPACITY = Verdict(Kind.CAPACITY, Blast.ZONE)
_CAPACITY_REGION = Verdict(Kind.CAPACITY, Blast.REGION)
_RATE = Verdict(Kind.RATE, Blast.ZONE, retry=True, again=1)
_TRANSIENT = Verdict(Kind.TRANSIENT, Blast.ZONE, retry=True)
_TRANSIENT_AGAIN = replace(_TRANSIENT, again=1)
_NOT_OFFERED = Verdict(Kind.NOT_OFFERED, Blast.ZONE)
_CONFIG = Verdict(Kind.CONFIG, Blast.NEVER)
_AUTH = Verdict(Kind.AUTH, Blast.PROJECT)
_MISSING = ("notFound", "RESOURCE_NOT_FOUND")
_QUOTA = ("QUOTA_EXCEEDED", "quotaExceeded")

_STOCK_OUT = (
    "ZONE_RESOURCE_POOL_EXHAUSTED",
    "RESOURCE_POOL_EXHAUSTED",
    "GPU_STOCKOUT",
    "insufficientCapacity",
    "STOCKOUT",
    WAITED_IN_VAIN,
)

_TABLE: tuple[_Row, ...] = (
    _Row(_CAPACITY_REGION, codes=("REGION_RESOURCE_POOL_EXHAUSTED",)),
    _Row(_CAPACITY, codes=_STOCK_OUT),
    _Row(
        _CAPACITY,
        message=r"does not have enough resources available|not enough resources available to fulfill",
    ),
    _Row(
        Verdict(Kind.QUOTA, Blast.PROJECT),
        codes=_QUOTA,
        message=r"GPUS[_-]ALL[_-]REGIONS|CPUS[_-]ALL[_-]REGIONS|limit: [0-9.]+ globally",
    ),
    _Row(Verdict(Kind.QUOTA, Blast.REGION), codes=_QUOTA),
    _Row(
        _RATE,
        codes=(
            "rateLimitExceeded",
            "RATE_LIMIT_EXCEEDED",
            "RESOURCE_OPERATION_RATE_EXCEEDED",
            "userRateLimitExceeded",
        ),
    ),
    _Row(_RATE, statuses=(429,)),
    _Row(Verdict(Kind.TRANSIENT, Blast.ZONE, again=1), codes=("UNSUPPORTED_OPERATION",)),
    _Row(_TRANSIENT_AGAIN, codes=("RESOURCE_NOT_READY", "resourceNotReady")),
    _Row(_TRANSIENT_AGAIN, message=r"\bis not ready\b"),
    _Row(
        Verdict(Kind.NOT_FOUND, Blast.ZONE),
        message=r"reservationAffinity|specified reservations? |the given reservation|properties of the reservation",
    ),
    _Row(
        _NOT_OFFERED,
        codes=_MISSING,
        message=r"machineTypes?/|acceleratorTypes?/|diskTypes?/|machine type|accelerator type",
    ),
    _Row(
        _NOT_OFFERED,
        message=r"does not exist in zone|can ?not be used without accelerator\(s\) in zone|not (available|supported) in (the )?zone",
    ),
    _Row(_NOT_OFFERED, message=r"features are not compatible for creating instance"),
    _Row(_NOT_OFFERED, message=r"only allows resource creation in location"),
    _Row(Verdict(Kind.CONFIG, Blast.REGION), codes=_MISSING, message=r"subnetworks?/"),
    _Row(Verdict(Kind.NOT_FOUND, Blast.NEVER), codes=_MISSING),
    _Row(Verdict(Kind.NOT_FOUND, Blast.NEVER), statuses=(404,)),
    _Row(Verdict(Kind.EXISTS, Blast.NEVER), codes=("alreadyExists", "RESOURCE_ALREADY_EXISTS")),
    _Row(Verdict(Kind.EXISTS, Blast.NEVER), statuses=(409,)),
    _Row(_CONFIG, codes=("resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE")),
    _Row(
        _CONFIG, codes=("INVALID_FIELD_VALUE", "INVALID_USAGE", "invalid", "badRequest", "required")
    ),
    _Row(
        _AUTH,
        codes=(
            "IAM_PERMISSION_DENIED",
            "forbidden",
            "PERMISSIONS_ERROR",
            "accessNotConfigured",
            "insufficientPermissions",
            "SERVICE_DISABLED",
        ),
    ),
    _Row(_AUTH, message=r"policy update access denied|constraint constraints/"),
    _Row(_AUTH, codes=("CONDITION_NOT_MET", "conditionNotMet"), message=r"constraint|polic"),
    _Row(_CONFIG, codes=("CONDITION_NOT_MET", "conditionNotMet"), statuses=(412,)),
    _Row(_AUTH, statuses=(401, 403)),
    _Row(_TRANSIENT_AGAIN, codes=("INTERNAL_ERROR",)),
    _Row(
        _TRANSIENT,
        codes=("backendError", "internalError", "BACKEND_ERROR", CONNECTION_LOST, UNREADABLE),
    ),
    _Row(_TRANSIENT, statuses=(500, 502, 503, 504)),
    _Row(_TRANSIENT_AGAIN, message=r"\binternal error\b"),
    _Row(Verdict(Kind.TRANSIENT, Blast.ZONE), codes=(TIMED_OUT, VANISHED)),
    _Row(_CONFIG, statuses=(400, 412, 422)),
)

_UNKNOWN = Verdict(Kind.UNKNOWN, Blast.ZONE)


def classify(refusal: Refusal) -> Verdict:
    """What a refusal means; an unknown one blocks its zone only, so that one new code does not end the search."""
    return next((row.verdict for row in _TABLE if row.matches(refusal)), _UNKNOWN)


_CLASSES: dict[Kind, type[CloudRefused]] = {
    Kind.QUOTA: QuotaRefused,
    Kind.AUTH: AuthRefused,
    Kind.NOT_FOUND: NotFoundRefused,
}


MORE_ZONES = "name more zones in the settings (zones: [...]) or another gpu"


def refused(what: str, refusal: Refusal, *, where: str, project: str) -> CloudRefused:
    """The error for a refusal, of the class that its kind asks for, with one command to try."""
    kind = classify(refusal).kind
    return _CLASSES.get(kind, CloudRefused)(
        what, refusal=refusal, where=where, fix=_fix(kind, refusal, project)
    )


def _fix(kind: Kind, refusal: Refusal, project: str) -> str:
    if refusal.http_status == 401:
        return "gcloud auth application-default login"
    return {
        Kind.QUOTA: f"open https://console.cloud.google.com/iam-admin/quotas?project={project} and ask for more",
        Kind.AUTH: f"gcloud projects get-iam-policy {project}",
        Kind.CAPACITY: MORE_ZONES,
        Kind.NOT_OFFERED: "gcloud compute accelerator-types list",
        Kind.EXISTS: "choose another --name",
        Kind.NOT_FOUND: _look_for(refusal),
        Kind.CONFIG: _look_for(refusal),
    }.get(kind, f"gcloud compute operations list --project {project} --limit 5")


_NAMED = re.compile(
    r"projects/(?P<project>[^/'\s]+)/(?:[^'\s]+/)?(?P<what>images|instances|disks|networks|subnetworks|reservations)/"
)
_GCLOUD = {"subnetworks": "networks subnets"}
"""Collections whose `gcloud compute` command has another name."""


def _look_for(refusal: Refusal) -> str:
    """Where what the message names would be listed; `doctor`, which compares the settings with the cloud, where it names nothing."""
    named = _NAMED.search(refusal.message)
    return (
        f"gcloud compute {_GCLOUD.get(named['what'], named['what'])} list --project {named['project']}"
        if named
        else "invoke doctor"
    )


def region_of(zone: str) -> str:
    """`us-central1` of `us-central1-a`."""
    return zone.rsplit("-", 1)[0]


EVERYWHERE = "everywhere"
"""Place that stands for every zone."""


@dataclass(frozen=True)
class Itinerary:
    """Zones to ask, in order, and the places (zones, regions) that were named and lack what is asked for."""

    zones: tuple[str, ...]
    lacking: tuple[str, ...] = ()


def itinerary(places: Iterable[str], offering: Sequence[str]) -> Itinerary:
    """The zones that `places` mean, in their order, out of those that offer the GPU; each once.

    A place is a zone (`us-central1-a`), a region (`us-central1`: its zones) or `everywhere` (all
    that are left).
    """
    zones: dict[str, None] = {}
    lacking: dict[str, None] = {}
    for place in places:
        meant = [zone for zone in offering if place in (zone, region_of(zone), EVERYWHERE)]
        zones.update(dict.fromkeys(meant))
        if not meant:
            lacking[place] = None
    return Itinerary(tuple(zones), tuple(lacking))


@dataclass(frozen=True)
class Candidates:
    """The zones still worth asking, in order, and those that were asked."""

    zones: tuple[str, ...]
    asked: tuple[str, ...] = ()

    @classmethod
    def of(cls, zones: Iterable[str]) -> Candidates:
        """The zones in the given order, each once."""
        return cls(tuple(dict.fromkeys(zones)))

    def next(self, width: int = 1, rooms: Mapping[str, int] = _NO_LIMITS) -> tuple[str, ...]:
        """The zones to ask now, at most `width` of them at once; none when all were asked.

        `rooms` says how many may be asked in a region, and in all ("") at once: what several zones
        give for a moment counts towards a quota, and a region whose quota a race itself has used up
        would not be asked again.
        """
        chosen: list[str] = []
        for zone in self.zones:
            region = region_of(zone)
            here = sum(region_of(other) == region for other in chosen)
            if len(chosen) < min(width, rooms.get("", width)) and here < rooms.get(region, width):
                chosen.append(zone)
        return tuple(chosen)

    def after(self, zone: str, verdict: Verdict, hints: Sequence[str] = ()) -> Candidates:
        """What is left after `zone` refused; zones that the API named as available come first, if they are ours to ask."""
        left = [
            candidate for candidate in self.zones if not _blocked(candidate, zone, verdict.blast)
        ]
        hinted = [hint for hint in dict.fromkeys(hints) if hint in left]
        return replace(
            self,
            zones=(*hinted, *(candidate for candidate in left if candidate not in hinted)),
            asked=(*self.asked, zone),
        )


def _blocked(candidate: str, zone: str, blast: Blast) -> bool:
    if blast is Blast.ZONE:
        return candidate == zone
    if blast is Blast.REGION:
        return region_of(candidate) == region_of(zone)
    return True
