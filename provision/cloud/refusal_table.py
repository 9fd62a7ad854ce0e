"""What a refusal means: its kind, how far it reaches, and whether a retry can help. Pure.

The table covers the error codes of Compute Engine's pages on resource availability and quotas, and
those that users of other launchers reported (row by row in tests/unit/cloud/refusals.toml). Codes
are matched by prefix, since variants such as `..._WITH_DETAILS` appear over time.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from provision.cloud.refusal import (
    CAPACITY_WAIT_EXPIRED,
    CONNECTION_LOST,
    TIMED_OUT,
    UNREADABLE,
    VANISHED,
    AuthRefused,
    CloudRefused,
    NotFoundRefused,
    QuotaRefused,
    Refusal,
)


class BlastRadius(enum.StrEnum):
    """How far a refusal reaches: where the same request would be refused too."""

    ZONE = "zone"
    REGION = "region"
    PROJECT = "project"
    NEVER = "never"
    """The request itself is wrong: every zone would refuse it."""


class RefusalKind(enum.StrEnum):
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
class Classification:
    """What to do after a refusal: first `retry` under the same requestId, then leave the radius.

    An operation that failed stays failed under its requestId; `new_inserts` is how many inserts
    with another requestId the same zone is worth.
    """

    kind: RefusalKind
    blast_radius: BlastRadius
    retry: bool = False
    new_inserts: int = 0


@dataclass(frozen=True)
class _Row:
    classification: Classification
    codes: tuple[str, ...] = ()
    message: str = ""
    statuses: tuple[int, ...] = ()

    def matches(self, refusal: Refusal) -> bool:
        """Return whether every given condition holds: prefix of the code, regex of the message."""
        if self.codes and not refusal.code.startswith(self.codes):
            return False
        if self.statuses and refusal.http_status not in self.statuses:
            return False
        text = f"{refusal.message} {refusal.quota}"
        return not self.message or re.search(self.message, text, re.IGNORECASE) is not None


_CAPACITY = Classification(RefusalKind.CAPACITY, BlastRadius.ZONE)
_CAPACITY_REGION = Classification(RefusalKind.CAPACITY, BlastRadius.REGION)
_RATE = Classification(RefusalKind.RATE, BlastRadius.ZONE, retry=True, new_inserts=1)
_TRANSIENT = Classification(RefusalKind.TRANSIENT, BlastRadius.ZONE, retry=True)
_TRANSIENT_NEW_INSERT = replace(_TRANSIENT, new_inserts=1)
_NOT_OFFERED = Classification(RefusalKind.NOT_OFFERED, BlastRadius.ZONE)
_CONFIG = Classification(RefusalKind.CONFIG, BlastRadius.NEVER)
_AUTH = Classification(RefusalKind.AUTH, BlastRadius.PROJECT)
_MISSING = ("notFound", "RESOURCE_NOT_FOUND")
_QUOTA = ("QUOTA_EXCEEDED", "quotaExceeded")

_STOCK_OUT = (
    "ZONE_RESOURCE_POOL_EXHAUSTED",
    "RESOURCE_POOL_EXHAUSTED",
    "GPU_STOCKOUT",
    "insufficientCapacity",
    "STOCKOUT",
    CAPACITY_WAIT_EXPIRED,
)

_TABLE: tuple[_Row, ...] = (
    _Row(_CAPACITY_REGION, codes=("REGION_RESOURCE_POOL_EXHAUSTED",)),
    _Row(_CAPACITY, codes=_STOCK_OUT),
    _Row(
        _CAPACITY,
        message=r"does not have enough resources available"
        r"|not enough resources available to fulfill",
    ),
    _Row(
        Classification(RefusalKind.QUOTA, BlastRadius.PROJECT),
        codes=_QUOTA,
        message=r"GPUS[_-]ALL[_-]REGIONS|CPUS[_-]ALL[_-]REGIONS|limit: [0-9.]+ globally",
    ),
    _Row(Classification(RefusalKind.QUOTA, BlastRadius.REGION), codes=_QUOTA),
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
    _Row(
        Classification(RefusalKind.TRANSIENT, BlastRadius.ZONE, new_inserts=1),
        codes=("UNSUPPORTED_OPERATION",),
    ),
    _Row(_TRANSIENT_NEW_INSERT, codes=("RESOURCE_NOT_READY", "resourceNotReady")),
    _Row(_TRANSIENT_NEW_INSERT, message=r"\bis not ready\b"),
    _Row(
        Classification(RefusalKind.NOT_FOUND, BlastRadius.ZONE),
        message=r"reservationAffinity|specified reservations? |the given reservation"
        r"|properties of the reservation",
    ),
    _Row(
        _NOT_OFFERED,
        codes=_MISSING,
        message=r"machineTypes?/|acceleratorTypes?/|diskTypes?/|machine type|accelerator type",
    ),
    _Row(
        _NOT_OFFERED,
        message=r"does not exist in zone|can ?not be used without accelerator\(s\) in zone"
        r"|not (available|supported) in (the )?zone",
    ),
    _Row(_NOT_OFFERED, message=r"features are not compatible for creating instance"),
    _Row(_NOT_OFFERED, message=r"only allows resource creation in location"),
    _Row(
        Classification(RefusalKind.CONFIG, BlastRadius.REGION),
        codes=_MISSING,
        message=r"subnetworks?/",
    ),
    _Row(Classification(RefusalKind.NOT_FOUND, BlastRadius.NEVER), codes=_MISSING),
    _Row(Classification(RefusalKind.NOT_FOUND, BlastRadius.NEVER), statuses=(404,)),
    _Row(
        Classification(RefusalKind.EXISTS, BlastRadius.NEVER),
        codes=("alreadyExists", "RESOURCE_ALREADY_EXISTS"),
    ),
    _Row(Classification(RefusalKind.EXISTS, BlastRadius.NEVER), statuses=(409,)),
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
    _Row(_TRANSIENT_NEW_INSERT, codes=("INTERNAL_ERROR",)),
    _Row(
        _TRANSIENT,
        codes=("backendError", "internalError", "BACKEND_ERROR", CONNECTION_LOST, UNREADABLE),
    ),
    _Row(_TRANSIENT, statuses=(500, 502, 503, 504)),
    _Row(_TRANSIENT_NEW_INSERT, message=r"\binternal error\b"),
    _Row(Classification(RefusalKind.TRANSIENT, BlastRadius.ZONE), codes=(TIMED_OUT, VANISHED)),
    _Row(_CONFIG, statuses=(400, 412, 422)),
)

_UNKNOWN = Classification(RefusalKind.UNKNOWN, BlastRadius.ZONE)


def classify(refusal: Refusal) -> Classification:
    """Return the row that a refusal matches; one that matches none rules out its zone only."""
    matching = (row.classification for row in _TABLE if row.matches(refusal))
    return next(matching, _UNKNOWN)


_ERROR_CLASSES: dict[RefusalKind, type[CloudRefused]] = {
    RefusalKind.QUOTA: QuotaRefused,
    RefusalKind.AUTH: AuthRefused,
    RefusalKind.NOT_FOUND: NotFoundRefused,
}

NAME_MORE_ZONES = "name more zones in the settings (zones: [...]) or another gpu"


def refusal_error(what: str, refusal: Refusal, *, where: str, project: str) -> CloudRefused:
    """Return the error for a refusal, of the class of its kind, with one command to try."""
    kind = classify(refusal).kind
    return _ERROR_CLASSES.get(kind, CloudRefused)(
        what, refusal=refusal, where=where, fix=_remedy(kind, refusal, project)
    )


def quota_remedy(project: str) -> str:
    """Return the remedy for a quota that is too small: the page where more is requested."""
    url = f"https://console.cloud.google.com/iam-admin/quotas?project={project}"
    return f"open {url} and ask for more"


def _remedy(kind: RefusalKind, refusal: Refusal, project: str) -> str:
    if refusal.http_status == 401:
        return "gcloud auth application-default login"
    return {
        RefusalKind.QUOTA: quota_remedy(project),
        RefusalKind.AUTH: f"gcloud projects get-iam-policy {project}",
        RefusalKind.CAPACITY: NAME_MORE_ZONES,
        RefusalKind.NOT_OFFERED: "gcloud compute accelerator-types list",
        RefusalKind.EXISTS: "choose another --name",
        RefusalKind.NOT_FOUND: _list_command(refusal),
        RefusalKind.CONFIG: _list_command(refusal),
    }.get(kind, f"gcloud compute operations list --project {project} --limit 5")


_RESOURCE_PATH = re.compile(
    r"projects/(?P<project>[^/'\s]+)/(?:[^'\s]+/)?"
    r"(?P<what>images|instances|disks|networks|subnetworks|reservations)/"
)
_GCLOUD_NAMES: Mapping[str, str] = {"subnetworks": "networks subnets"}
"""Collections whose `gcloud compute` command has another name."""


def _list_command(refusal: Refusal) -> str:
    """Return the command that lists resources of the message's kind; `doctor` for none."""
    path = _RESOURCE_PATH.search(refusal.message)
    if path is None:
        return "invoke doctor"
    collection = _GCLOUD_NAMES.get(path["what"], path["what"])
    return f"gcloud compute {collection} list --project {path['project']}"
