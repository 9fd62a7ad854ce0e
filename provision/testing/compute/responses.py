"""What goes back over the wire: JSON, or what a fault makes of it."""

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
class Answer:
    """A reply as JSON, or raw text where it is None; status `RESET` for a connection that ends without one."""

    status: int
    reply: Json | None
    text: str = ""

    def response(self) -> Response:
        """JSON, or the text of a fault."""
        if self.reply is None:
            return Response(self.text, self.status, content_type="text/html; charset=UTF-8")
        return Response(
            json.dumps(self.reply), self.status, content_type="application/json; charset=UTF-8"
        )


def spoilt(answer: Answer, fault: Fault | None) -> Answer:
    """What a fault makes of an answer on its way back."""
    if fault is None:
        return answer
    if fault.kind in _SILENT:
        return Answer(RESET, None)
    if fault.kind is FaultKind.FUTURE and answer.reply is not None:
        return Answer(answer.status, {**_of_tomorrow(answer.reply), **json.loads(fault.text)})
    if fault.kind in {FaultKind.BODY, FaultKind.BODY_AFTER}:
        return Answer(fault.http_status or 200, None, fault.text)
    return answer


def _of_tomorrow(value: Any) -> Any:
    """The same with a field nobody knows in every resource, as a later version of the API may have it."""
    if isinstance(value, list):
        return [_of_tomorrow(item) for item in value]
    if not isinstance(value, dict):
        return value
    grown = {key: _of_tomorrow(item) for key, item in value.items()}
    return {**grown, "fieldOfTomorrow": {"value": 1}} if "kind" in value else grown


def json_body(data: bytes) -> Json | None:
    """A request's body; None for an empty one, 400 for what is no JSON object."""
    body = json_value(data)
    if body is not None and not isinstance(body, dict):
        raise ApiError(400, "parseError", "Invalid JSON payload received. Expected an object.")
    return body


def json_value(data: bytes) -> Any:
    """The JSON value of a request; None for an empty one, 400 for anything else."""
    try:
        return json.loads(data) if data else None
    except ValueError as error:
        raise ApiError(400, "parseError", f"Invalid JSON payload received. {error}") from None


def reset(connection: socket.socket) -> NoReturn:
    """Have the connection end without an answer: werkzeug takes the ConnectionError for the client's doing."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionResetError("the emulator resets the connection")
