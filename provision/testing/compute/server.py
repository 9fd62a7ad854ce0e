"""The emulator as an HTTP server on loopback."""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias

from werkzeug.exceptions import ClientDisconnected, HTTPException
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from provision.cloud.api.body import last
from provision.testing.compute import control_api, fault_scripts, oslogin
from provision.testing.compute.backend import HostBackend, NullBackend
from provision.testing.compute.catalogue import Catalogue, Links
from provision.testing.compute.clock import Clock, SystemClock
from provision.testing.compute.emulated_cloud import EmulatedCloud
from provision.testing.compute.errors import ApiError, Json
from provision.testing.compute.faults import BEFORE, Fault, FaultBook, FaultKind
from provision.testing.compute.flex_start import Capacity
from provision.testing.compute.lifecycle import GUEST_STOP, HOST_ERROR, PREEMPTED
from provision.testing.compute.methods import ApiMethods, ApiRequest
from provision.testing.compute.operation_durations import Durations
from provision.testing.compute.oslogin import Logins
from provision.testing.compute.quotas import Quotas
from provision.testing.compute.responses import (
    MUTE,
    RESET,
    Answer,
    json_body,
    json_value,
    reset,
    spoilt,
)
from provision.testing.compute.routes import PREFIX, ROUTES

_Environ: TypeAlias = dict[str, Any]
CALLS_KEPT = 10_000
CONTROL = "/emulator"
"""Below it the emulator itself is steered; see `control`."""
SILENCE_LOOK_S = 0.05
"""How often a connection without an answer is looked at."""
STOP_POLL_S = 0.02
"""How often the server looks whether it is to stop."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request that arrived. `api` is the method id (`instances.insert`); `reply` is None when no JSON was sent back.

    `status` is 0 when the connection was reset; `future` says that the reply had fields of a later
    API on purpose.
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


class _Handler(WSGIRequestHandler):
    """Quiet, with the time of the emulated world, and without the 40 ms that Nagle's algorithm costs small replies."""

    disable_nagle_algorithm = True
    clock: ClassVar[Clock]

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The header `Date` of every reply, by the emulator's time."""
        return super().date_time_string(self.clock.now() if timestamp is None else timestamp)

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002  (werkzeug names it so)
        """Say nothing: requests are in `ComputeEmulator.calls`."""

    def connection_dropped(self, error: BaseException, environ: _Environ | None = None) -> None:  # noqa: ARG002  (werkzeug names them)
        """A scripted reset ends the connection, keep-alive or not."""
        self.close_connection = True


class ComputeEmulator:
    """A Compute Engine API v1 on loopback that an unmodified google-cloud-compute client speaks to.

        with ComputeEmulator(NullBackend()) as emulator:
            client = InstancesClient(credentials=AnonymousCredentials(), client_options={"api_endpoint": emulator.endpoint})

    `operation_s` is how long operations take: one figure, or one per verb (`insert`, `delete`,
    `start`, `stop` …); with 0 an operation is accepted as PENDING and found DONE at the next look.
    `faults` is the script of bad luck, `calls` what arrived (the latest 10,000).
    """

    def __init__(
        self,
        hosts: HostBackend | None = None,
        *,
        clock: Clock | None = None,
        operation_s: float | Mapping[str, float] = 0.0,
        catalogue: Catalogue | None = None,
        port: int = 0,
    ) -> None:
        self.faults = FaultBook()
        self.calls: deque[Call] = deque(maxlen=CALLS_KEPT)
        self.clock: Clock = clock or SystemClock()
        self._cloud = EmulatedCloud(
            catalogue or Catalogue(), hosts or NullBackend(), self.clock, Durations.of(operation_s)
        )
        self._methods = ApiMethods(self._cloud, self._cloud.store.catalogue)
        self._zones = self._cloud.store.catalogue.zone_names
        self._port = port
        self._server: Any = None
        self._thread: threading.Thread | None = None

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Begin to serve on 127.0.0.1; port 0 chooses a free one."""
        handler = type("_ClockedHandler", (_Handler,), {"clock": self.clock})
        self._server = make_server(
            "127.0.0.1", self._port, self._application, threaded=True, request_handler=handler
        )
        self._cloud.store.links = Links(f"{self.endpoint}{PREFIX}")
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(STOP_POLL_S,),
            name="compute-emulator",
            daemon=True,
        )
        self._thread.start()
        return self

    def stop(self, *, keep: bool = False) -> None:
        """End the server and destroy every host, or with `keep` halt it on its disk; safe to call twice."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = self._thread = None
        self._cloud.shut_down(keep=keep)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """The `api_endpoint` for clients: `http://127.0.0.1:PORT`."""
        if self._server is None:
            raise RuntimeError("the emulator is not running")
        return f"http://127.0.0.1:{self._server.port}"

    def tick(self) -> None:
        """Let time limits and operations take effect without a request (a long-lived server calls this now and then)."""
        self._cloud.tick()

    def snapshot(self) -> Json:
        """Instances, disks, reservations and project metadata as JSON, for `restore`."""
        return self._cloud.snapshot()

    def restore(self, saved: Json) -> None:
        """Take up the world of an earlier emulator; instances that ran boot, as after a loss of power."""
        self._cloud.restore(saved)

    # --- the project ------------------------------------------------------------------------------

    @property
    def quotas(self) -> Quotas:
        """The limits in force, which inserts and starts meet: `quotas.set("NVIDIA_L4_GPUS", 0, "us-east1")`, `quotas.lift()`."""
        return self._cloud.store.quotas

    @property
    def firewalls(self) -> list[dict[str, Any]]:
        """The rules of the network `default`, each with what it says otherwise than these do; may be changed."""
        return self._methods.firewalls

    @property
    def capacity(self) -> Capacity:
        """When flex-start requests get theirs: `capacity.set(600, "us-central1-a")` after ten minutes, `capacity.set(None)` never."""
        return self._cloud.store.capacity

    @property
    def project_metadata(self) -> dict[str, str]:
        """Metadata of the project, seen by all its instances (`enable-oslogin`, `block-project-ssh-keys` …); may be changed."""
        return self._cloud.store.project_metadata

    @property
    def logins(self) -> Logins:
        """Who may log in where `enable-oslogin` is on."""
        return self._cloud.store.logins

    def script(self, rows: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> None:
        """Add bad luck from plain data: `{"zone": …, "call": …, "nth": …, "fault": …}`; see `scripts`. ValueError for nonsense."""
        self.faults.add(*fault_scripts.read(rows))

    # --- what nobody asks for ---------------------------------------------------------------------

    def preempt(self, name: str, zone: str) -> None:
        """Take a running Spot VM back: STOPPING, then TERMINATED or deleted. ValueError for a VM that is none."""
        self._cloud.trigger_event(PREEMPTED, name, zone)

    def break_host(self, name: str, zone: str) -> None:
        """A host error: REPAIRING, then running again where `automaticRestart` is on, else TERMINATED."""
        self._cloud.trigger_event(HOST_ERROR, name, zone)

    def guest_stopped(self, name: str, zone: str) -> None:
        """The guest powered itself off: STOPPING, then TERMINATED."""
        self._cloud.trigger_event(GUEST_STOP, name, zone)

    # --- the guest's side -------------------------------------------------------------------------

    def publish(self, name: str, zone: str, attribute: str, value: str) -> None:
        """What a guest does with PUT on its metadata server: set the guest attribute `namespace/key`."""
        self._cloud.publish(name, zone, attribute, value)

    def print_serial(self, name: str, zone: str, text: str) -> None:
        """What a guest prints on serial port 1."""
        self._cloud.print_serial(name, zone, text)

    def instances(self, project: str) -> list[Json]:
        """All instances of a project, for assertions about what was left behind."""
        return [resource for _zone, resource in self._cloud.all("instances", project)]

    def disks(self, project: str) -> list[Json]:
        """All disks of a project: what goes on billing when its instances are stopped or gone."""
        return [resource for _zone, resource in self._cloud.all("disks", project)]

    def counted(self) -> list[str]:
        """The method ids that arrived, in order."""
        return [call.api for call in self.calls]

    # --- one request ------------------------------------------------------------------------------

    def _application(self, environ: _Environ, start_response: Any) -> Iterable[bytes]:
        if _from_a_browser(environ):
            return Answer(403, None, "no pages of the web here\n").response()(
                environ, start_response
            )
        if environ["PATH_INFO"].startswith(CONTROL):
            return self._controlled(environ)(environ, start_response)
        request = Request(environ)
        api, body, fault = "", None, None
        try:
            routes = oslogin.ROUTES if request.path.startswith(oslogin.PREFIX) else ROUTES
            api, words = routes.bind_to_environ(environ).match()
            body = json_body(request.get_data())
            fault = self._fault(api, words, body or {})
            hidden = (
                self.faults.unreachable(api, self._zones)
                if api.endswith(".aggregatedList")
                else frozenset()
            )
            path, query = request.path.removeprefix(f"{PREFIX}/"), request.args.to_dict()
            words = {"project": query.get("projectId", ""), **words}
            answer = self._answer(
                ApiRequest(
                    method=api,
                    path=path,
                    query=query,
                    body=body or {},
                    fault=fault,
                    unreachable=hidden,
                    **words,
                )
            )
        except ApiError as error:
            answer = Answer(error.status, error.envelope())
        except ClientDisconnected:  # half a request is none
            reset(environ["werkzeug.socket"])
        except HTTPException as error:
            message = f"{request.method} {request.path}: {error.name}"
            answer = Answer(
                error.code or 500, ApiError(error.code or 500, "notFound", message).envelope()
            )
        answer = spoilt(answer, fault)
        query = request.args.to_dict()
        future = fault is not None and fault.kind is FaultKind.FUTURE
        arrived: Json = {
            "verb": request.method,
            "path": request.path,
            "api": api,
            "query": query,
            "body": body,
        }
        self.calls.append(Call(**arrived, status=answer.status, reply=answer.reply, future=future))
        if answer.status == RESET:
            connection: socket.socket = environ["werkzeug.socket"]
            if fault is not None and fault.kind in MUTE:
                self._keep_silent(connection)
            reset(connection)
        return answer.response()(environ, start_response)

    def _fault(self, api: str, words: Mapping[str, str], body: Json) -> Fault | None:
        zone = words.get("zone", "")
        fault = self.faults.take(api, zone, words.get("name", "") or str(body.get("name", "")))
        asked = body.get("instanceProperties") or body
        return None if fault is None else fault.at(zone, last(str(asked.get("machineType", ""))))

    def _answer(self, call: ApiRequest) -> Answer:
        fault = call.fault
        if fault is not None and fault.kind is FaultKind.HTTP:
            raise fault.as_error()
        if fault is not None and fault.kind in BEFORE:
            return Answer(200, None)
        reply = (
            self.logins.answer(call.method, call.name, call.key, call.body)
            if call.method in oslogin.METHODS
            else self._methods.answer(call)
        )
        if fault is not None and fault.kind is FaultKind.HANG:
            self.clock.sleep(fault.seconds)
        return Answer(200, reply)

    def _controlled(self, environ: _Environ) -> Response:
        """A request that steers the emulator itself."""
        request = Request(environ)
        try:
            reply = control_api.answer(
                self,
                request.method,
                request.path.removeprefix(CONTROL),
                json_value(request.get_data()),
            )
        except ApiError as error:
            return Answer(error.status, error.envelope()).response()
        return Answer(200, reply).response()

    def _keep_silent(self, connection: socket.socket) -> None:
        """Until the client hangs up, or the emulator ends."""
        while self._server is not None:
            readable, _, _ = select.select([connection], [], [], SILENCE_LOOK_S)
            if readable and not connection.recv(1, socket.MSG_PEEK):
                return


def _from_a_browser(environ: _Environ) -> bool:
    """Whether some page of the web sent it: an instance's user-data runs on this machine, so whoever may insert may run programs."""
    host = environ.get("HTTP_HOST", "").rpartition(":")[0]
    return "HTTP_ORIGIN" in environ or host not in {"127.0.0.1", "localhost"}
