"""Compute Engine through google-cloud-compute: the only module that imports google, and only when it is used.

What the client library does that this module does not rely on (measured on google-cloud-compute 1.56.0):
`insert()` and its kin poll their operation on the public endpoint whatever `api_endpoint` says, so the unary calls are
used with an operations client of our own; an operation error without HTTP code passes its `result()` silently, so the
error list is always read; its retries cover reads only, and lost connections surface as `requests` exceptions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import tenacity

from provision.cloud import body
from provision.cloud.placement import Kind, classify, refused
from provision.cloud.ports import MOCK_PORT_ATTRIBUTE
from provision.cloud.refusal import CONNECTION_LOST, TIMED_OUT, UNREADABLE, CloudRefused, Refusal, from_operation
from provision.errors import CloudAuthError, CloudError, CloudNotFound
from provision.model import Vm, VmSpec

T = TypeVar("T")

SERVER_WAIT_S = 120.0
"""Longest time that one `zoneOperations.wait` is held by the server (Compute Engine API, zoneOperations.wait)."""
LOGIN = "gcloud auth application-default login"
SSH_PORT = 22
_CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class GceCloud:
    """The `ComputeCloud` of one project.

    Without `endpoint` it is Google's, with Application Default Credentials; with one (`http://127.0.0.1:PORT`) it is the
    emulator's, without credentials and without proxies. `now` (seconds, monotonic) and `sleep` are injectable.
    Safe to use from several threads.
    """

    def __init__(
        self,
        project: str,
        endpoint: str | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        attempts: int = 6,
        request_timeout_s: float = 60.0,
        operation_timeout_s: float = 900.0,
    ) -> None:
        self.project = project
        self.endpoint = endpoint
        self._now = now
        self._sleep = sleep
        self._attempts = attempts
        self._request_timeout_s = request_timeout_s
        self._operation_timeout_s = operation_timeout_s
        self._clients: dict[str, Any] = {}
        self._credentials: Any = None
        self._lock = threading.Lock()
        self._images: dict[body.ImageRef, str] = {}

    # --- the Cloud protocol -----------------------------------------------------------------------------------------

    def create(self, spec: VmSpec, zone: str, *, request_id: str) -> Vm:
        """Insert the VM in `zone` and wait until it runs; one of the same name and owner that is there already is taken."""
        body.check_spec(spec)
        where = f"{zone}/{spec.name}"
        image = self.resolve_image(spec.image, spec.image_project)
        resource = body.insert_body(spec, zone, source_image=image.path)
        resource["labels"][body.IMAGE_LABEL] = body.label_value(image.name)
        try:
            self._mutate("insert", "the VM was not created", where, zone, request_id, instance_resource=self._instance(resource))
        except CloudRefused as error:
            if classify(error.refusal).kind is not Kind.EXISTS:
                raise
            return self._adopt(spec, zone, error)
        return self._require(spec.name, zone)

    def get(self, name: str, zone: str) -> Vm | None:
        """The VM, or None when there is none of this name in `zone`."""
        try:
            found = self._read("InstancesClient", "get", "the VM could not be read", f"{zone}/{name}", zone=zone, instance=name)
        except CloudNotFound:
            return None
        return body.vm_from_json(found)

    def list(self, labels: Mapping[str, str]) -> Sequence[Vm]:
        """All VMs of the project that carry `labels`, over all zones, by zone and name; one call per 500."""
        request = {"project": self.project, "filter": body.labels_filter(labels), "max_results": 500}

        def pages() -> list[Vm]:
            client = self._client("InstancesClient")
            scopes = client.aggregated_list(request=request, retry=None, timeout=self._request_timeout_s)
            return [body.vm_from_json(_json(instance)) for _scope, scoped in scopes for instance in scoped.instances]

        found = self._call("the VMs could not be listed", self.project, pages)
        return sorted(found, key=lambda vm: (vm.zone, vm.name))

    def delete(self, name: str, zone: str, *, request_id: str) -> bool:
        """Delete the VM and wait until it is gone; False when there was none."""
        try:
            self._mutate("delete", "the VM was not deleted", f"{zone}/{name}", zone, request_id, instance=name)
        except CloudNotFound:
            return False
        return True

    # --- beyond it (ComputeCloud) -----------------------------------------------------------------------------------

    def start(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Start a stopped VM and wait until it runs."""
        self._mutate("start", "the VM was not started", f"{zone}/{name}", zone, request_id, instance=name)
        return self._require(name, zone)

    def stop(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Stop the VM, keep its disk, and wait until it is stopped."""
        self._mutate("stop", "the VM was not stopped", f"{zone}/{name}", zone, request_id, instance=name)
        return self._require(name, zone)

    def serial(self, name: str, zone: str, *, start: int = 0) -> tuple[str, int]:
        """What the VM printed on serial port 1 from byte `start` on, and the byte to go on from."""
        words = {"zone": zone, "instance": name, "port": 1, "start": start}
        output = self._read("InstancesClient", "get_serial_port_output", "the serial port could not be read", f"{zone}/{name}", **words)
        return output.get("contents", ""), int(output.get("next", 0))

    def guest_attributes(self, name: str, zone: str, namespace: str) -> Mapping[str, str]:
        """The guest attributes below `namespace` ("hostkeys/"), key → value; empty while the guest has published none."""
        words = {"zone": zone, "instance": name, "query_path": namespace}
        try:
            found = self._read("InstancesClient", "get_guest_attributes", "guest attributes could not be read", f"{zone}/{name}", **words)
        except CloudNotFound as error:
            if "guest attribute" in error.why.lower():
                return {}
            raise
        return {item["key"]: item.get("value", "") for item in found.get("queryValue", {}).get("items", [])}

    def ssh_port(self, vm: Vm) -> int:
        """22, or where a mock host listens: the emulator publishes that as a guest attribute."""
        if self.endpoint is None:
            return SSH_PORT
        namespace, key = MOCK_PORT_ATTRIBUTE.split("/")
        return int(self.guest_attributes(vm.name, vm.zone, f"{namespace}/").get(key, SSH_PORT))

    def resolve_image(self, image: str, project: str = "") -> body.ImageRef:
        """The image by name: a family is looked up once, so that what is made can be made again."""
        ref = body.image_ref(image, project)
        if not ref.is_family:
            return ref
        if ref not in self._images:
            what = "the image family could not be read"
            words = {"project": ref.project, "family": ref.name}
            self._images[ref] = self._read("ImagesClient", "get_from_family", what, f"{ref.project}/{ref.name}", **words)["name"]
        return body.ImageRef(ref.project, self._images[ref], False)

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.transport.close()

    # --- one request ------------------------------------------------------------------------------------------------

    def _read(self, client: str, method: str, what: str, where: str, **words: Any) -> dict[str, Any]:
        request = {"project": self.project, **words}
        send = lambda: getattr(self._client(client), method)(request=request, retry=None, timeout=self._request_timeout_s)  # noqa: E731
        return _json(self._call(what, where, send))

    def _mutate(self, verb: str, what: str, where: str, zone: str, request_id: str, **words: Any) -> None:
        """Send one change under one requestId, as often as needed, and wait for its end."""
        request = {"project": self.project, "zone": zone, "request_id": request_id, **words}

        def send() -> Any:
            return getattr(self._client("InstancesClient"), f"{verb}_unary")(request=request, retry=None, timeout=self._request_timeout_s)

        operation = _json(self._call(what, where, send))
        self._finish(operation, zone, what, where)

    def _finish(self, operation: Mapping[str, Any], zone: str, what: str, where: str) -> None:
        deadline = self._now() + self._operation_timeout_s
        pause_s = 0.25
        while operation.get("status") != "DONE":
            asked_at = self._now()
            if asked_at >= deadline:
                message = f"operation {operation['name']} is {operation.get('status')} after {self._operation_timeout_s:g} s"
                raise refused(what, Refusal(code=TIMED_OUT, message=message), where=where, project=self.project)
            operation = self._wait(str(operation["name"]), zone, what, where)
            if self._now() - asked_at < 1 and operation.get("status") != "DONE":
                self._sleep(pause_s)
                pause_s = min(pause_s * 2, 5.0)
        refusal = from_operation(operation)
        if refusal is not None:
            raise refused(what, refusal, where=where, project=self.project)

    def _wait(self, operation: str, zone: str, what: str, where: str) -> dict[str, Any]:
        request = {"project": self.project, "zone": zone, "operation": operation}
        timeout_s = self._request_timeout_s + SERVER_WAIT_S

        def send() -> Any:
            return self._client("ZoneOperationsClient").wait(request=request, retry=None, timeout=timeout_s)

        return _json(self._call(what, where, send))

    def _call(self, what: str, where: str, send: Callable[[], T]) -> T:
        """One request with retries of what passes by itself: lost connections, 5xx, rate limits."""

        def once() -> T:
            try:
                return send()
            except Exception as error:
                refusal = _refusal(error)
                if refusal is None:
                    raise
                raise refused(what, refusal, where=where, project=self.project) from error

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=tenacity.wait_exponential(multiplier=0.2, max=10) + tenacity.wait_random(0, 0.1),
            retry=tenacity.retry_if_exception(_passes_by),
            sleep=self._sleep,
            reraise=True,
        )
        return retrying(once)

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _adopt(self, spec: VmSpec, zone: str, error: CloudRefused) -> Vm:
        """The VM that holds the name, if it is ours (a repeated insert of a lost answer ends here too)."""
        vm = self.get(spec.name, zone)
        owner = spec.labels.get(body.OWNER_LABEL)
        if vm is None:
            raise error
        if owner is None or vm.labels.get(body.OWNER_LABEL) != owner:
            what = "a VM of this name exists and is not ours"
            raise CloudRefused(what, refusal=error.refusal, where=f"{zone}/{spec.name}", fix="choose another --name") from error
        return self._settled(vm)

    def _settled(self, vm: Vm) -> Vm:
        """The VM once its creation is over; what another insert has begun is waited for."""
        deadline = self._now() + self._operation_timeout_s
        while vm.status in ("PENDING", "PROVISIONING", "STAGING") and self._now() < deadline:
            self._sleep(1.0)
            vm = self._require(vm.name, vm.zone)
        return vm

    def _require(self, name: str, zone: str) -> Vm:
        vm = self.get(name, zone)
        if vm is None:
            raise CloudNotFound("the VM is gone", where=f"{zone}/{name}", why="it was there a moment ago", fix="invoke vm.list")
        return vm

    def _instance(self, resource: Mapping[str, Any]) -> Any:
        import json

        return _compute().Instance.from_json(json.dumps(resource))

    def _client(self, name: str) -> Any:
        with self._lock:
            if name not in self._clients:
                self._clients[name] = self._new_client(name)
            return self._clients[name]

    def _new_client(self, name: str) -> Any:
        if self._credentials is None:
            self._credentials = _anonymous() if self.endpoint else _default_credentials()
        options = {"api_endpoint": self.endpoint} if self.endpoint else None
        client = getattr(_compute(), name)(credentials=self._credentials, client_options=options)
        if self.endpoint and urlsplit(self.endpoint).hostname in _LOOPBACK:
            # requests would send even loopback traffic to a proxy of the environment; there is no public switch.
            client.transport._session.trust_env = False  # noqa: SLF001
        return client


def _passes_by(error: BaseException) -> bool:
    return isinstance(error, CloudRefused) and classify(error.refusal).retry


def _compute() -> Any:
    from google.cloud import compute_v1

    return compute_v1


def _json_format() -> Any:
    from google.protobuf import json_format  # type: ignore[import-untyped]

    return json_format


def _anonymous() -> Any:
    from google.auth.credentials import AnonymousCredentials

    return AnonymousCredentials()  # type: ignore[no-untyped-call]


def _default_credentials() -> Any:
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        credentials, _project = google.auth.default(scopes=[_CLOUD_PLATFORM])
    except GoogleAuthError as error:
        raise CloudAuthError("no credentials for Google Cloud", why=str(error), fix=LOGIN) from error
    return credentials


def _json(message: Any) -> dict[str, Any]:
    """A reply as the API's JSON (camelCase, 64-bit integers as strings, enums by name), defaults left out."""
    resource: dict[str, Any] = _json_format().MessageToDict(type(message).pb(message))
    return resource


def _refusal(error: Exception) -> Refusal | None:
    """What an exception of the client library, of google.auth or of requests says; None for anything else."""
    import requests
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError, TransportError

    if isinstance(error, GoogleAPICallError):
        return _api_refusal(error)
    if isinstance(error, _json_format().ParseError | UnicodeDecodeError):
        return Refusal(code=UNREADABLE, message=f"the answer is no Compute Engine reply: {error}")
    if isinstance(error, requests.RequestException | TransportError):
        return Refusal(code=CONNECTION_LOST, message=f"{type(error).__name__}: {error}")
    if isinstance(error, GoogleAuthError):
        raise CloudAuthError("the credentials were not accepted", why=str(error), fix=LOGIN) from error
    if isinstance(error, CloudError):
        raise error
    return None


def _api_refusal(error: Any) -> Refusal:
    first: Mapping[str, Any] = error.errors[0] if error.errors and isinstance(error.errors[0], Mapping) else {}
    zones = ""
    with suppress(AttributeError):
        zones = (error.metadata or {}).get("zonesAvailable", "")
    return Refusal(
        code=str(first.get("reason") or error.reason or ""),
        message=str(first.get("message") or error.message),
        http_status=int(error.code or 0),
        zones_available=tuple(zone.strip() for zone in zones.split(",") if zone.strip()),
    )
