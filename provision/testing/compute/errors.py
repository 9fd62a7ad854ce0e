"""Errors as the Compute Engine API sends them: the HTTP envelope and the error of an operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]
"""A JSON object of the API: camelCase keys, 64-bit integers as decimal strings."""

_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}
_HTTP_MESSAGES = {
    400: "BAD REQUEST",
    403: "FORBIDDEN",
    404: "NOT FOUND",
    409: "CONFLICT",
    500: "INTERNAL SERVER ERROR",
    503: "SERVICE UNAVAILABLE",
}


class ApiError(Exception):
    """An HTTP error reply; `reason` is what clients check (notFound, alreadyExists …)."""

    def __init__(self, status: int, reason: str, message: str, *, domain: str = "global") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.domain = domain

    def envelope(self) -> Json:
        """The reply's body."""
        error: Json = {
            "code": self.status,
            "message": self.message,
            "errors": [{"message": self.message, "domain": self.domain, "reason": self.reason}],
        }
        if self.status in _STATUS_NAMES:
            error["status"] = _STATUS_NAMES[self.status]
        return {"error": error}


@dataclass(frozen=True, kw_only=True)
class OperationFailure:
    """The error of a failed operation.

    With `http_status=None` the operation has the error list alone. A client that checks only the
    HTTP code takes it for success, as google-cloud-compute's ExtendedOperation does.
    """

    code: str
    message: str
    http_status: int | None = None
    details: Sequence[Mapping[str, Any]] = ()

    def apply(self, operation: Json) -> None:
        """Write the failure into an operation resource."""
        entry: Json = {"code": self.code, "message": self.message}
        if self.details:
            entry["errorDetails"] = [dict(detail) for detail in self.details]
        operation["error"] = {"errors": [entry]}
        if self.http_status is not None:
            operation["httpErrorStatusCode"] = self.http_status
            operation["httpErrorMessage"] = _HTTP_MESSAGES.get(self.http_status, "ERROR")


def not_found(path: str) -> ApiError:
    """404 for a resource path such as `projects/p/zones/z/instances/n`."""
    return ApiError(404, "notFound", f"The resource '{path}' was not found")


def already_exists(path: str) -> ApiError:
    """409 for a resource path."""
    return ApiError(409, "alreadyExists", f"The resource '{path}' already exists")


def invalid(message: str) -> ApiError:
    """400 with reason `invalid`."""
    return ApiError(400, "invalid", message)


def invalid_field(field: str, value: object, why: str) -> ApiError:
    """400 for an invalid field, in the API's words."""
    return invalid(f"Invalid value for field 'resource.{field}': '{value}'. {why}")
