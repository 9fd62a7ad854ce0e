"""The emulator as an HTTP server on loopback."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from werkzeug.serving import WSGIRequestHandler, make_server

from provision.testing.compute import fault_scripts
from provision.testing.compute.application import Application, Call, Environ
from provision.testing.compute.backend import HostBackend, NullBackend
from provision.testing.compute.catalogue import Catalogue, Links
from provision.testing.compute.clock import Clock, SystemClock
from provision.testing.compute.emulated_cloud import EmulatedCloud
from provision.testing.compute.errors import Json
from provision.testing.compute.faults import FaultBook
from provision.testing.compute.flex_start import Capacity
from provision.testing.compute.lifecycle import GUEST_STOP, HOST_ERROR, PREEMPTED
from provision.testing.compute.methods import ApiMethods
from provision.testing.compute.operation_durations import Durations
from provision.testing.compute.oslogin import Logins
from provision.testing.compute.quotas import Quotas
from provision.testing.compute.routes import PREFIX

CALLS_KEPT = 10_000
STOP_POLL_S = 0.02
"""How often the server checks whether it is to stop."""


class _Handler(WSGIRequestHandler):
    """Logs nothing, dates replies by the emulator's clock, and sends small replies at once.

    Nagle's algorithm would delay each of them by 40 ms.
    """

    disable_nagle_algorithm = True
    clock: ClassVar[Clock]

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The header `Date` of a reply, by the emulator's clock."""
        return super().date_time_string(self.clock.now() if timestamp is None else timestamp)

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - named by werkzeug
        """Log nothing: requests are in `ComputeEmulator.calls`."""

    def connection_dropped(self, error: BaseException, environ: Environ | None = None) -> None:  # noqa: ARG002 - named by werkzeug
        """End the connection after a scripted reset, keep-alive or not."""
        self.close_connection = True


class ComputeEmulator:
    """Compute Engine API v1 on loopback, for an unmodified google-cloud-compute client.

        with ComputeEmulator(NullBackend()) as emulator:
            options = {"api_endpoint": emulator.endpoint}
            client = InstancesClient(credentials=AnonymousCredentials(), client_options=options)

    `operation_s` is how many seconds operations take: one number for all, or one per verb
    (`insert`, `delete`, `start`, `stop` …). With 0 an operation is accepted as PENDING and is DONE
    at the next request. `faults` holds the scripted faults, `calls` the latest 10,000 requests.
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
        self._port = port
        self._server: Any = None
        self._thread: threading.Thread | None = None

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Serve on 127.0.0.1; port 0 chooses a free port."""
        handler = type("_ClockedHandler", (_Handler,), {"clock": self.clock})
        application = Application(self, self._methods, self._cloud.store.catalogue.zone_names)
        self._server = make_server(
            "127.0.0.1", self._port, application, threaded=True, request_handler=handler
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
        """Stop serving and destroy every host, or with `keep` halt it on its disk. Idempotent."""
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
    def is_running(self) -> bool:
        """True between `start` and `stop`."""
        return self._server is not None

    @property
    def endpoint(self) -> str:
        """The clients' `api_endpoint`, a URL. Raises `RuntimeError` when stopped."""
        if self._server is None:
            raise RuntimeError("the emulator is not running")
        return f"http://127.0.0.1:{self._server.port}"

    def tick(self) -> None:
        """Apply time limits and operations that are due, as every request does first."""
        self._cloud.tick()

    def snapshot(self) -> Json:
        """Instances, disks, reservations and project metadata as JSON, for `restore`."""
        return self._cloud.snapshot()

    def restore(self, saved: Json) -> None:
        """Restore the `snapshot` of an earlier emulator; instances that ran boot again."""
        self._cloud.restore(saved)

    # --- the project ------------------------------------------------------------------------------

    @property
    def quotas(self) -> Quotas:
        """The quota limits: `quotas.set("NVIDIA_L4_GPUS", 0, "us-east1")`, `quotas.lift()`."""
        return self._cloud.store.quotas

    @property
    def firewalls(self) -> list[dict[str, Any]]:
        """The rules of the network `default`, without their defaults; may be changed."""
        return self._methods.firewalls

    @property
    def capacity(self) -> Capacity:
        """When flex-start requests get capacity: `capacity.set(600, "us-east1-b")` in seconds."""
        return self._cloud.store.capacity

    @property
    def project_metadata(self) -> dict[str, str]:
        """Metadata of the project, such as `enable-oslogin`; may be changed."""
        return self._cloud.store.project_metadata

    @property
    def logins(self) -> Logins:
        """The accounts and keys that may log in where `enable-oslogin` is on."""
        return self._cloud.store.logins

    def script(self, rows: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> None:
        """Add faults from rows `{"zone": …, "call": …, "nth": …, "fault": …}`; see `fault_scripts`.

        Raises `ValueError` for a row that is invalid.
        """
        self.faults.add(*fault_scripts.read(rows))

    # --- system events ----------------------------------------------------------------------------

    def preempt(self, name: str, zone: str) -> None:
        """Pre-empt a running Spot VM: STOPPING, then TERMINATED or deleted.

        Raises `KeyError` when it does not run, `ValueError` when it is not a Spot VM.
        """
        self._cloud.trigger_event(PREEMPTED, name, zone)

    def break_host(self, name: str, zone: str) -> None:
        """Let its host fail: REPAIRING, then RUNNING with `automaticRestart`, else TERMINATED.

        Raises `KeyError` when it does not run.
        """
        self._cloud.trigger_event(HOST_ERROR, name, zone)

    def guest_stopped(self, name: str, zone: str) -> None:
        """Power it off from inside: STOPPING, then TERMINATED. Raises `KeyError` when stopped."""
        self._cloud.trigger_event(GUEST_STOP, name, zone)

    # --- the guest --------------------------------------------------------------------------------

    def publish(self, name: str, zone: str, attribute: str, value: str) -> None:
        """Set the guest attribute `namespace/key`, as a guest's PUT does."""
        self._cloud.publish(name, zone, attribute, value)

    def print_serial(self, name: str, zone: str, text: str) -> None:
        """Append to serial port 1, as a guest does."""
        self._cloud.print_serial(name, zone, text)

    def instances(self, project: str) -> list[Json]:
        """All instances of a project."""
        return [resource for _zone, resource in self._cloud.all("instances", project)]

    def disks(self, project: str) -> list[Json]:
        """All disks of a project, attached or not."""
        return [resource for _zone, resource in self._cloud.all("disks", project)]

    def call_ids(self) -> list[str]:
        """The method ids of `calls`, in order."""
        return [call.api for call in self.calls]
