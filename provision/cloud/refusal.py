"""What the cloud answered when it refused, as data, and the errors that carry it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.core.errors import CloudAuthError, CloudError, CloudNotFound, QuotaExceeded


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One error of the Compute Engine API.

    `code` is the operation error's code (`QUOTA_EXCEEDED`) or the HTTP reply's reason (`notFound`);
    `http_status` is 0 when there was none (an operation error without HTTP code, a lost
    connection). `message` is verbatim.
    """

    code: str
    message: str
    http_status: int = 0
    zones_available: tuple[str, ...] = ()
    quota: Mapping[str, Any] = field(default_factory=dict)
    final: bool = field(default=False, compare=False)
    """An operation ended with it: what was asked for is over, and asking under the same requestId
    tells no more."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message


CONNECTION_LOST = "connectionLost"
"""Code of a request whose answer never came; whether it took effect is unknown."""
TIMED_OUT = "operationTimedOut"
"""Code of an operation that did not end in our time; it may still take effect."""
WAITED_IN_VAIN = "flexStartExpired"
"""Code of a flex-start VM that the cloud removed because its wait for capacity was over; the insert
itself had ended well."""
VANISHED = "vanished"
"""Code of a VM that cannot be seen though its operation ended well: preempted at once, or a read
that is behind."""
UNREADABLE = "unreadableReply"
"""Code of an answer that is no API reply (a proxy's page, broken JSON); whether it took effect is
unknown."""


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
    """The named thing does not exist."""


def from_operation(operation: Mapping[str, Any]) -> Refusal | None:
    """The first error of a finished operation, or None when it went well.

    An operation can carry `error.errors` without an HTTP code and the other way round; both are
    failures (measured: google-cloud-compute's ExtendedOperation takes the former for success).
    """
    status = int(operation.get("httpErrorStatusCode", 0))
    errors = operation.get("error", {}).get("errors", [])
    if not errors and status < 400:
        return None
    first: Mapping[str, Any] = errors[0] if errors else {}
    details = first.get("errorDetails", [])
    return Refusal(
        code=first.get("code", ""),
        message=first.get("message", "") or operation.get("httpErrorMessage", ""),
        http_status=status,
        zones_available=_zones_available(details),
        quota=next((detail["quotaInfo"] for detail in details if "quotaInfo" in detail), {}),
        final=True,
    )


def _zones_available(details: list[Mapping[str, Any]]) -> tuple[str, ...]:
    for detail in details:
        text = detail.get("errorInfo", {}).get("metadatas", {}).get("zonesAvailable", "")
        if text:
            return tuple(zone.strip() for zone in text.split(",") if zone.strip())
    return ()
