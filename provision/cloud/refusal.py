"""What the cloud answers when it refuses, as data, and the errors that carry it. Pure.

What a refusal means for the other zones is in `cloud/refusal_table.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.core.errors import CloudAuthError, CloudError, CloudNotFound, QuotaExceeded


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One error of the Compute Engine API.

    `code` is the code of an operation error (`QUOTA_EXCEEDED`) or the reason of an HTTP reply
    (`notFound`); `http_status` is 0 when there was none (an operation error without an HTTP code,
    a lost connection). `message` is verbatim.
    """

    code: str
    message: str
    http_status: int = 0
    zones_available: tuple[str, ...] = ()
    quota: Mapping[str, Any] = field(default_factory=dict)
    final: bool = field(default=False, compare=False)
    """True for the error of an operation that is done: a repetition under the same requestId has
    the same result."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message


CONNECTION_LOST = "connectionLost"
"""Code of a request without a reply; whether it took effect is unknown."""
TIMED_OUT = "operationTimedOut"
"""Code of an operation that was not done within our limit; it may still take effect."""
CAPACITY_WAIT_EXPIRED = "flexStartExpired"
"""Code of a flex-start VM that got no capacity in time; its insert itself succeeded."""
VANISHED = "vanished"
"""Code of a VM that is missing after its operation succeeded: preempted, or read too early."""
UNREADABLE = "unreadableReply"
"""Code of an answer that is not an API reply (a proxy's page, broken JSON); whether the request
took effect is unknown."""


class CloudRefused(CloudError):
    """The cloud refused, with its answer in `refusal`."""

    def __init__(self, what: str, *, refusal: Refusal, where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, why=str(refusal), fix=fix)
        self.refusal = refusal


class QuotaRefused(CloudRefused, QuotaExceeded):
    """A quota is used up."""


class AuthRefused(CloudRefused, CloudAuthError):
    """The credentials may not do this."""


class NotFoundRefused(CloudRefused, CloudNotFound):
    """A resource of the request does not exist."""


def from_operation(operation: Mapping[str, Any]) -> Refusal | None:
    """Return the first error of a finished operation, or None when it succeeded.

    An operation may have `error.errors` without an HTTP code, or the code without the errors; both
    are failures (measured: google-cloud-compute's ExtendedOperation takes the former for success).
    """
    status = int(operation.get("httpErrorStatusCode", 0))
    errors = operation.get("error", {}).get("errors", [])
    if not errors and status < 400:
        return None
    first: Mapping[str, Any] = errors[0] if errors else {}
    details: Sequence[Mapping[str, Any]] = first.get("errorDetails", [])
    return Refusal(
        code=first.get("code", ""),
        message=first.get("message", "") or operation.get("httpErrorMessage", ""),
        http_status=status,
        zones_available=_zones_available(details),
        quota=next((detail["quotaInfo"] for detail in details if "quotaInfo" in detail), {}),
        final=True,
    )


def _zones_available(details: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    for detail in details:
        text = detail.get("errorInfo", {}).get("metadatas", {}).get("zonesAvailable", "")
        if text:
            return split_zones(text)
    return ()


def split_zones(text: str) -> tuple[str, ...]:
    """Return the zones of a comma-separated list."""
    return tuple(zone.strip() for zone in text.split(",") if zone.strip())
