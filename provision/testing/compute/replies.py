"""Replies to requests: JSON, or what a fault makes of it; and the JSON of a request."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any, NoReturn

from werkzeug.wrappers import Response

from provision.testing.compute.errors import ApiError, Json
from provision.testing.compute.faults import Fault, FaultKind

RESET = 0
"""Status of a call whose connection was reset."""
MUTE = frozenset({FaultKind.MUTE_BEFORE, FaultKind.MUTE_AFTER})
_SILENT = MUTE | {FaultKind.RESET_BEFORE, FaultKind.RESET_AFTER}


@dataclass(frozen=True)
class Reply:
    """A reply: a JSON body, or raw text where `body` is None.

    Status `RESET` stands for a connection that ends without a reply.
    """

    status: int
    body: Json | None
    text: str = ""

    @classmethod
    def of_error(cls, error: ApiError) -> Reply:
        """The reply with an error's envelope."""
        return cls(error.status, error.envelope())

    def response(self) -> Response:
        """The HTTP response: JSON, or the text of a fault."""
        if self.body is None:
            return Response(self.text, self.status, content_type="text/html; charset=UTF-8")
        return Response(
            json.dumps(self.body), self.status, content_type="application/json; charset=UTF-8"
        )


def apply_fault(reply: Reply, fault: Fault | None) -> Reply:
    """The reply that is sent instead of `reply` because of a fault."""
    if fault is None:
        return reply
    if fault.kind in _SILENT:
        return Reply(RESET, None)
    if fault.kind is FaultKind.FUTURE and reply.body is not None:
        return Reply(reply.status, {**_with_unknown_fields(reply.body), **json.loads(fault.text)})
    if fault.kind in {FaultKind.BODY, FaultKind.BODY_AFTER}:
        return Reply(fault.http_status or 200, None, fault.text)
    return reply


def _with_unknown_fields(value: Any) -> Any:
    """The same value with an unknown field in every resource, as a later API may send."""
    if isinstance(value, list):
        return [_with_unknown_fields(item) for item in value]
    if not isinstance(value, dict):
        return value
    extended = {key: _with_unknown_fields(item) for key, item in value.items()}
    return {**extended, "fieldOfTomorrow": {"value": 1}} if "kind" in value else extended


def json_body(data: bytes) -> Json | None:
    """A request's JSON object; None for an empty body. Raises `ApiError` 400 for anything else."""
    body = json_value(data)
    if body is not None and not isinstance(body, dict):
        raise ApiError(400, "parseError", "Invalid JSON payload received. Expected an object.")
    return body


def json_value(data: bytes) -> Any:
    """A request's JSON value; None for an empty body. Raises `ApiError` 400 for anything else."""
    try:
        return json.loads(data) if data else None
    except ValueError as error:
        raise ApiError(400, "parseError", f"Invalid JSON payload received. {error}") from None


def reset(connection: socket.socket) -> NoReturn:
    """Reset the connection: raise `ConnectionResetError`, which ends werkzeug's request."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionResetError("the emulator resets the connection")
