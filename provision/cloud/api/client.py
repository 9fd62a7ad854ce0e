"""Requests to Compute Engine through google-cloud-compute: the only module that imports google, and only when it is used.

What the client library does that this module does not rely on (measured on google-cloud-compute
1.56.0): `insert()` and its kin poll their operation on the public endpoint whatever `api_endpoint`
says, so the unary calls are used with an operations client of our own; an operation error without
HTTP code passes its `result()` silently, so the error list is always read; its retries cover reads
only, and lost connections surface as `requests` exceptions. Importing the package imports the
clients of all hundred services (3.3 s of processor time here); `_compute` imports those used.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import tenacity

from provision.cloud.market.placement import classify, refused
from provision.cloud.refusal import (
    CONNECTION_LOST,
    TIMED_OUT,
    UNREADABLE,
    CloudRefused,
    Refusal,
    from_operation,
)
from provision.core.errors import CloudAuthError, CloudError

T = TypeVar("T")

SERVER_WAIT_S = 120.0
"""Longest time that one `zoneOperations.wait` is held by the server (Compute Engine API,
zoneOperations.wait)."""
LOGIN = "gcloud auth application-default login"
USEC = 1_000_000
_CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
_EMAIL = "https://www.googleapis.com/auth/userinfo.email"
_COMPUTE = "https://compute.googleapis.com"
_OPENID = "https://openidconnect.googleapis.com"
_OS_LOGIN = "OsLoginServiceClient"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PACKAGE = "google.cloud.compute_v1"
SKEW_S = 5.0
"""A cloud's clock that differs by less is not told from the time that a reply takes, and from the
whole seconds of its `Date`."""
_WITH_A_NAME = ("get", "get_from_family")
_OF_AN_OPERATION = ("name", "status")


class ComputeClient:
    """Requests of one project: sent, repeated where that helps, waited for, and their refusals read.

    Without `endpoint` it is Google's, with Application Default Credentials; with one
    (`http://127.0.0.1:PORT`) it is the emulator's, without credentials and without proxies. `now`
    (seconds, monotonic) and `sleep` are injectable. Safe to use from several threads. Requests
    raise `CloudRefused`, `CloudNotFound` or `CloudAuthError`.
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
        server_wait_s: float = SERVER_WAIT_S,
    ) -> None:
        self.project = project
        self.endpoint = endpoint
        self.now = now
        self.sleep = sleep
        self.operation_timeout_s = operation_timeout_s
        self._attempts = attempts
        self._request_timeout_s = request_timeout_s
        self._server_wait_s = server_wait_s
        self._clients: dict[str, Any] = {}
        self._credentials: Any = None
        self._lock = threading.Lock()
        self.ahead_s: float | None = None
        """Seconds by which the cloud's clock is ahead of this machine's, as the latest reply says;
        None while none has told."""

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.transport.close()

    def read(self, client: str, method: str, what: str, where: str, **words: Any) -> dict[str, Any]:
        """One unary call that changes nothing; the reply as the API's JSON. `what` and `where` head its error."""
        request = {"project": self.project, **words}

        def send() -> dict[str, Any]:
            reply = getattr(self._client(client), method)(
                request=request, retry=None, timeout=self._request_timeout_s
            )
            return _whole(reply, "name" if method in _WITH_A_NAME else "kind")

        return self._call(what, where, send)

    def pages(
        self,
        client: str,
        method: str,
        what: str,
        where: str,
        each: Callable[[Any], T],
        **words: Any,
    ) -> list[T]:
        """Every item of a paged list through `each`; one call per page, all of them once more where one is lost."""
        request = {"project": self.project, **words}

        def send() -> list[T]:
            pager = getattr(self._client(client), method)(
                request=request, retry=None, timeout=self._request_timeout_s
            )
            found = [each(item) for item in pager]
            if not pager.kind:  # an empty list says what it is; a page that does not is the last, since it names no next one
                raise _no_reply("kind")
            return found

        return self._call(what, where, send)

    def mutate(
        self,
        verb: str,
        what: str,
        where: str,
        zone: str,
        request_id: str,
        *,
        client: str = "InstancesClient",
        extra_s: float = 0.0,
        attempts: int | None = None,
        **words: Any,
    ) -> None:
        """Send one change under one requestId, as often as needed (at most `attempts` times), and wait for its end, `extra_s` longer."""
        request = {"project": self.project, "zone": zone, "request_id": request_id, **words}

        def send() -> dict[str, Any]:
            reply = getattr(self._client(client), f"{verb}_unary")(
                request=request, retry=None, timeout=self._request_timeout_s
            )
            return _whole(reply, *_OF_AN_OPERATION)

        self.finish(self._call(what, where, send, attempts), zone, what, where, extra_s=extra_s)

    def finish(
        self,
        operation: Mapping[str, Any],
        zone: str,
        what: str,
        where: str,
        *,
        extra_s: float = 0.0,
    ) -> None:
        """Wait for the end of an operation. Raises what it failed with; TIMED_OUT when it does not end in our time."""
        deadline = self.now() + self.operation_timeout_s + extra_s
        pause_s = 0.25
        while operation.get("status") != "DONE":
            asked_at = self.now()
            if asked_at >= deadline:
                message = f"operation {operation['name']} is {operation.get('status')} after {self.operation_timeout_s + extra_s:g} s"
                raise refused(
                    what,
                    Refusal(code=TIMED_OUT, message=message),
                    where=where,
                    project=self.project,
                )
            operation = self._wait(str(operation["name"]), zone, what, where)
            if self.now() - asked_at < 1 and operation.get("status") != "DONE":
                self.sleep(pause_s)
                pause_s = min(pause_s * 2, 5.0)
        refusal = from_operation(operation)
        if refusal is not None:
            raise refused(what, refusal, where=where, project=self.project)

    def account(self) -> str:
        """The e-mail address that the credentials belong to. Raises `CloudAuthError` where they do not tell."""
        what, credentials = "whose the credentials are could not be asked", self._authorized()
        known = str(
            getattr(credentials, "service_account_email", "")
            or getattr(credentials, "account", "")
            or ""
        )
        if "@" in known:
            return known
        url = f"{self.endpoint or _OPENID}/v1/userinfo"
        reply = self._call(
            what, url, lambda: self._session().get(url, timeout=self._request_timeout_s)
        )
        email = str(reply.json().get("email", "")) if reply.ok else ""
        if not email:
            fix = f"{LOGIN} --scopes=openid,{_EMAIL},{_CLOUD_PLATFORM}"
            raise CloudAuthError(
                "the credentials do not say whose they are",
                why=f"{url}: {reply.status_code} {reply.reason}",
                fix=fix,
            )
        return email

    def _heard(self, reply: Any, **_: Any) -> None:
        """Note what a reply says of the cloud's clock: a server with a clock has to send `Date` (RFC 9110, 6.6.1), in whole seconds."""
        with suppress(KeyError, ValueError):
            ahead_s = parsedate_to_datetime(reply.headers["Date"]).timestamp() - time.time()
            self.ahead_s = ahead_s if abs(ahead_s) >= SKEW_S else 0.0

    def import_ssh_key(self, account: str, public_key: str, expires_s: int) -> dict[str, Any]:
        """Let `account` log in with a key where OS Login is on; its login profile as the API's JSON."""
        key = {"key": public_key, "expiration_time_usec": expires_s * USEC}
        words = {"parent": f"users/{account}", "ssh_public_key": key, "project_id": self.project}
        reply = self._os_login(
            "import_ssh_public_key", "OS Login did not take the key", account, **words
        )
        profile: dict[str, Any] = as_json(reply).get("loginProfile", {})
        return profile

    def extend_ssh_key(self, name: str, public_key: str, expires_s: int) -> None:
        """Give a key of a login profile another end."""
        key = {"key": public_key, "expiration_time_usec": expires_s * USEC}
        words = {"name": name, "ssh_public_key": key, "update_mask": "expirationTimeUsec"}
        self._os_login("update_ssh_public_key", "OS Login did not renew the key", name, **words)

    def delete_ssh_key(self, name: str) -> None:
        """Remove a key from a login profile. Raises CloudNotFound when it is not there."""
        self._os_login("delete_ssh_public_key", "OS Login did not remove the key", name, name=name)

    def _os_login(self, method: str, what: str, where: str, **words: Any) -> Any:
        def send() -> Any:
            call = getattr(self._client(_OS_LOGIN), method)
            return call(request=words, retry=None, timeout=self._request_timeout_s)

        return self._call(what, where, send)

    def _session(self) -> Any:
        from google.auth.transport.requests import AuthorizedSession

        session = AuthorizedSession(self._authorized())  # type: ignore[no-untyped-call]
        session.trust_env = not self._is_local
        return session

    def _wait(self, operation: str, zone: str, what: str, where: str) -> dict[str, Any]:
        request = {"project": self.project, "zone": zone, "operation": operation}
        timeout_s = self._request_timeout_s + self._server_wait_s

        def send() -> dict[str, Any]:
            return _whole(
                self._client("ZoneOperationsClient").wait(
                    request=request, retry=None, timeout=timeout_s
                ),
                *_OF_AN_OPERATION,
            )

        return self._call(what, where, send)

    def _call(self, what: str, where: str, send: Callable[[], T], attempts: int | None = None) -> T:
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
            stop=tenacity.stop_after_attempt(attempts or self._attempts),
            wait=tenacity.wait_exponential(multiplier=0.2, max=10) + tenacity.wait_random(0, 0.1),
            retry=tenacity.retry_if_exception(_passes_by),
            sleep=self.sleep,
            reraise=True,
        )
        return retrying(once)

    def _client(self, name: str) -> Any:
        with self._lock:
            if name not in self._clients:
                self._clients[name] = self._new_client(name)
            return self._clients[name]

    def _new_client(self, name: str) -> Any:
        words: dict[str, Any] = {"credentials": self._authorized()}
        if self.endpoint:
            words["client_options"] = {"api_endpoint": self.endpoint}
        client = (
            _os_login_client()(transport="rest", **words)
            if name == _OS_LOGIN
            else getattr(compute(), name)(**words)
        )
        if (
            session := getattr(client.transport, "_session", None)
        ) is not None:  # no public way leads to it
            session.hooks["response"].append(self._heard)
            session.trust_env = (
                not self._is_local
            )  # requests would send even loopback traffic to a proxy of the environment
        return client

    @property
    def _is_local(self) -> bool:
        return bool(self.endpoint) and urlsplit(self.endpoint).hostname in _LOOPBACK

    def _authorized(self) -> Any:
        if self._credentials is None:
            self._credentials = _anonymous() if self.endpoint else _default_credentials()
        return self._credentials


def _passes_by(error: BaseException) -> bool:
    return isinstance(error, CloudRefused) and classify(error.refusal).retry


def _os_login_client() -> Any:
    from google.cloud.oslogin_v1 import OsLoginServiceClient

    return OsLoginServiceClient


def message(name: str, resource: Mapping[str, Any]) -> Any:
    """The library's message of type `name` ("Instance") from the API's JSON."""
    return getattr(compute(), name).from_json(json.dumps(resource))


def compute() -> Any:
    """`google.cloud.compute_v1`, of which only the services that are asked for are imported; anything else imports the whole."""
    if _PACKAGE not in sys.modules:
        _import_sparingly()
    return sys.modules[_PACKAGE]


def preload() -> None:
    """Import what every request needs, a second of processor time, while something else has to be waited for."""
    _ = compute().InstancesClient


def _import_sparingly() -> None:
    """Put the package into place without running its `__init__`, which would import every service.

    A name that is neither a client nor a type of the API runs it after all, so whoever imports the
    package later sees all of it.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {_PACKAGE!r}", name=_PACKAGE)
    module, loader = importlib.util.module_from_spec(spec), spec.loader

    def missing(name: str) -> Any:
        with suppress(ImportError, AttributeError):
            return _single(name)
        module.__dict__.pop("__getattr__", None)
        loader.exec_module(module)
        return getattr(module, name)

    module.__dict__["__getattr__"] = missing
    sys.modules[_PACKAGE] = module
    parent, _, name = _PACKAGE.rpartition(".")
    setattr(sys.modules[parent], name, module)


def _single(name: str) -> Any:
    """A client of one service, a type, or a module of the package."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name.islower():
        return importlib.import_module(f"{_PACKAGE}.{name}")
    if name.endswith("Client"):
        service = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removesuffix("Client")).lower()
        return getattr(importlib.import_module(f"{_PACKAGE}.services.{service}"), name)
    return getattr(importlib.import_module(f"{_PACKAGE}.types"), name)


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
        raise CloudAuthError(
            "no credentials for Google Cloud", why=str(error), fix=LOGIN
        ) from error
    return credentials


def credentials_in_use() -> str:
    """Whose Application Default Credentials there are, for people; nothing is asked of Google. Raises CloudAuthError for none."""
    credentials = _default_credentials()
    whose = getattr(credentials, "service_account_email", "") or getattr(credentials, "account", "")
    kind = type(credentials).__module__.rpartition(".")[2]
    return f"{kind} ({whose})" if whose else kind


def as_json(message: Any) -> dict[str, Any]:
    """A reply as the API's JSON (camelCase, 64-bit integers as strings, enums by name), defaults left out."""
    resource: dict[str, Any] = _json_format().MessageToDict(type(message).pb(message))
    return resource


def _whole(message: Any, *needs: str) -> dict[str, Any]:
    """A reply that has `needs`, as JSON: whatever is JSON at all the library takes for a reply without fields."""
    resource = as_json(message)
    for key in needs:
        if key not in resource:
            raise _no_reply(key)
    return resource


def _no_reply(missing: str) -> Exception:
    """What the library raises for text that is no JSON, for JSON that lacks what every such reply has."""
    return _json_format().ParseError(f"it has no {missing}")  # type: ignore[no-any-return]


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
        raise CloudAuthError(
            "the credentials were not accepted", why=str(error), fix=LOGIN
        ) from error
    if isinstance(error, CloudError):
        raise error
    return None


def _api_refusal(error: Any) -> Refusal:
    first: Mapping[str, Any] = (
        error.errors[0] if error.errors and isinstance(error.errors[0], Mapping) else {}
    )
    zones = ""
    with suppress(AttributeError):
        zones = (error.metadata or {}).get("zonesAvailable", "")
    return Refusal(
        code=str(first.get("reason") or error.reason or ""),
        message=str(first.get("message") or error.message),
        http_status=int(error.code or 0),
        zones_available=tuple(zone.strip() for zone in zones.split(",") if zone.strip()),
    )
