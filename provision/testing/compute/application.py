"""The emulator's WSGI application: one HTTP request in, one reply out, scripted faults applied."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from werkzeug.exceptions import ClientDisconnected, HTTPException
from werkzeug.wrappers import Request, Response

from provision.cloud.api.resources import last_segment
from provision.testing.compute import control_api, oslogin
from provision.testing.compute.control_api import ControlledEmulator
from provision.testing.compute.errors import ApiError, Json
from provision.testing.compute.faults import BEFORE, Fault, FaultKind
from provision.testing.compute.methods import ApiMethods, ApiRequest
from provision.testing.compute.oslogin import Logins
from provision.testing.compute.replies import (
    MUTE,
    RESET,
    Reply,
    apply_fault,
    json_body,
    json_value,
    reset,
)
from provision.testing.compute.routes import PREFIX, ROUTES

Environ: TypeAlias = dict[str, Any]
CONTROL_PREFIX = "/emulator"
"""Paths below it control the emulator itself; see `control_api`."""
HANG_UP_POLL_S = 0.05
"""How often a connection that gets no reply is checked for the client's hang-up."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request that arrived. `api` is the method id (`instances.insert`).

    `reply` is None when no JSON was sent back, `status` is 0 when the connection was reset;
    `future` marks a reply with fields of a later API, sent on purpose.
    """

    verb: str
    path: str
    api: str
    query: Mapping[str, str]
    body: Json | None
    status: int
    reply: Json | None
    future: bool = False

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class ServedEmulator(ControlledEmulator, Protocol):
    """What the application needs of the emulator."""

    @property
    def logins(self) -> Logins:
        """OS Login accounts."""
        ...

    @property
    def is_running(self) -> bool:
        """False once the server stops."""
        ...


@dataclass
class _Parsed:
    """A request as far as it was understood before an error."""

    method: str = ""
    body: Json | None = None
    fault: Fault | None = None


class Application:
    """Answers API, OS Login and control requests, and records the first two in `emulator.calls`."""

    def __init__(
        self, emulator: ServedEmulator, methods: ApiMethods, zone_names: Sequence[str]
    ) -> None:
        self._emulator = emulator
        self._methods = methods
        self._zone_names = zone_names

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        """Answer one request, as WSGI has it."""
        if _is_from_browser(environ):
            response = Reply(403, None, "no pages of the web here\n").response()
        elif environ["PATH_INFO"].startswith(CONTROL_PREFIX):
            response = self._control(Request(environ))
        else:
            response = self._serve(Request(environ))
        return response(environ, start_response)

    def _serve(self, request: Request) -> Response:
        parsed = _Parsed()
        connection: socket.socket = request.environ["werkzeug.socket"]
        try:
            reply = self._reply(request, parsed)
        except ApiError as error:
            reply = Reply.of_error(error)
        except ClientDisconnected:  # the client sent half a request
            reset(connection)
        except HTTPException as error:
            message = f"{request.method} {request.path}: {error.name}"
            reply = Reply.of_error(ApiError(error.code or 500, "notFound", message))
        reply = apply_fault(reply, parsed.fault)
        self._record(request, parsed, reply)
        if reply.status == RESET:
            if parsed.fault is not None and parsed.fault.kind in MUTE:
                self._wait_for_hang_up(connection)
            reset(connection)
        return reply.response()

    def _reply(self, request: Request, parsed: _Parsed) -> Reply:
        """The reply before a fault changes it; `parsed` is filled in on the way."""
        routes = oslogin.ROUTES if request.path.startswith(oslogin.PREFIX) else ROUTES
        parsed.method, variables = routes.bind_to_environ(request.environ).match()
        parsed.body = json_body(request.get_data())
        parsed.fault = self._take_fault(parsed.method, variables, parsed.body or {})
        hidden = (
            self._emulator.faults.unreachable(parsed.method, self._zone_names)
            if parsed.method.endswith(".aggregatedList")
            else frozenset()
        )
        query = request.args.to_dict()
        return self._answer(
            ApiRequest(
                method=parsed.method,
                path=request.path.removeprefix(f"{PREFIX}/"),
                query=query,
                body=parsed.body or {},
                fault=parsed.fault,
                unreachable=hidden,
                **{"project": query.get("projectId", ""), **variables},
            )
        )

    def _take_fault(self, method: str, variables: Mapping[str, str], body: Json) -> Fault | None:
        zone = variables.get("zone", "")
        name = variables.get("name", "") or str(body.get("name", ""))
        fault = self._emulator.faults.take(method, zone, name)
        return (
            None
            if fault is None
            else fault.at(zone, last_segment(str(body.get("machineType", ""))))
        )

    def _answer(self, request: ApiRequest) -> Reply:
        fault = request.fault
        if fault is not None and fault.kind is FaultKind.HTTP:
            raise fault.as_error()
        if fault is not None and fault.kind in BEFORE:
            return Reply(200, None)
        body = (
            self._emulator.logins.answer(request.method, request.name, request.key, request.body)
            if request.method in oslogin.METHODS
            else self._methods.answer(request)
        )
        if fault is not None and fault.kind is FaultKind.HANG:
            self._emulator.clock.sleep(fault.seconds)
        return Reply(200, body)

    def _record(self, request: Request, parsed: _Parsed, reply: Reply) -> None:
        self._emulator.calls.append(
            Call(
                verb=request.method,
                path=request.path,
                api=parsed.method,
                query=request.args.to_dict(),
                body=parsed.body,
                status=reply.status,
                reply=reply.body,
                future=parsed.fault is not None and parsed.fault.kind is FaultKind.FUTURE,
            )
        )

    def _control(self, request: Request) -> Response:
        """The response to a request that controls the emulator itself."""
        try:
            body = control_api.answer(
                self._emulator,
                request.method,
                request.path.removeprefix(CONTROL_PREFIX),
                json_value(request.get_data()),
            )
        except ApiError as error:
            return Reply.of_error(error).response()
        return Reply(200, body).response()

    def _wait_for_hang_up(self, connection: socket.socket) -> None:
        """Return when the client hangs up, or the emulator stops."""
        while self._emulator.is_running:
            readable, _, _ = select.select([connection], [], [], HANG_UP_POLL_S)
            if readable and not connection.recv(1, socket.MSG_PEEK):
                return


def _is_from_browser(environ: Environ) -> bool:
    """True for a request of a web page, which may run no programs here by inserting instances.

    The user-data of an instance runs on this machine.
    """
    host = environ.get("HTTP_HOST", "").rpartition(":")[0]
    return "HTTP_ORIGIN" in environ or host not in {"127.0.0.1", "localhost"}
