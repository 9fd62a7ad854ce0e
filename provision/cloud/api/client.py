"""Requests to Compute Engine: sent, repeated where that helps, waited for, and their errors read.

What google-cloud-compute (1.56.0, measured) does that this module does not rely on: `insert()` and
similar methods poll their operation on the public endpoint whatever `api_endpoint` is, so the
unary methods are used with an operations client of our own; `result()` ignores an operation error
without an HTTP code, so the error list is always read; its retries cover reads only, and lost
connections surface as exceptions of `requests`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import tenacity

from provision.cloud.api import credentials, google_library
from provision.cloud.api.client_errors import refusal_of
from provision.cloud.api.google_library import checked_json
from provision.cloud.refusal import TIMED_OUT, CloudRefused, Refusal, from_operation
from provision.cloud.refusal_table import classify, refusal_error

T = TypeVar("T")

SERVER_WAIT_S = 120.0
"""Longest time that the server holds one `zoneOperations.wait` (Compute Engine API)."""
OS_LOGIN = "OsLoginServiceClient"
MIN_CLOCK_DIFFERENCE_S = 5.0
"""A smaller difference between the clocks may be the time that a reply takes, and the whole
seconds of its `Date`."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_METHODS_WITH_NAME = ("get", "get_from_family")
_OPERATION_FIELDS = ("name", "status")


class ComputeClient:
    """The requests of one project.

    Without `endpoint` they go to Google, with Application Default Credentials; with one
    (`http://127.0.0.1:PORT`) to the emulator, without credentials and without proxies. `now`
    (seconds, monotonic) and `sleep` are injectable. Safe to use from several threads. Requests
    raise `CloudRefused`, `CloudNotFound` or `CloudAuthError`; `what` and `where` head the error.
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
        """Seconds by which the cloud's clock is ahead of the local one, by the latest reply; None
        before the first."""

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.transport.close()

    def read(
        self, client: str, method: str, what: str, where: str, **fields: Any
    ) -> dict[str, Any]:
        """Send one request that changes nothing; return the reply as the API's JSON."""
        request = {"project": self.project, **fields}

        def send() -> dict[str, Any]:
            reply = self._send(client, method, request)
            return checked_json(reply, "name" if method in _METHODS_WITH_NAME else "kind")

        return self._with_retries(what, where, send)

    def pages(
        self,
        client: str,
        method: str,
        what: str,
        where: str,
        convert: Callable[[Any], T],
        **fields: Any,
    ) -> list[T]:
        """Return every item of a paged list, converted; one request a page.

        When a page is lost, all pages are requested once more.
        """
        request = {"project": self.project, **fields}

        def send() -> list[T]:
            pager = self._send(client, method, request)
            items = [convert(item) for item in pager]
            # Every page has its `kind`, an empty list too. Without it the reply was not one, and
            # the pager took it for the last page since it names no next one.
            if not pager.kind:
                raise google_library.missing_field("kind")
            return items

        return self._with_retries(what, where, send)

    def mutate(
        self,
        method: str,
        what: str,
        where: str,
        zone: str,
        request_id: str,
        *,
        client: str = "InstancesClient",
        extra_s: float = 0.0,
        attempts: int | None = None,
        **fields: Any,
    ) -> None:
        """Send one change under one requestId and wait for its operation.

        It is sent at most `attempts` times; `extra_s` is added to the operation's time limit.
        """
        request = {"project": self.project, "zone": zone, "request_id": request_id, **fields}

        def send() -> dict[str, Any]:
            return checked_json(self._send(client, f"{method}_unary", request), *_OPERATION_FIELDS)

        operation = self._with_retries(what, where, send, attempts)
        self.wait_for_operation(operation, zone, what, where, extra_s=extra_s)

    def wait_for_operation(
        self,
        operation: Mapping[str, Any],
        zone: str,
        what: str,
        where: str,
        *,
        extra_s: float = 0.0,
    ) -> None:
        """Wait until an operation is done. Raises its error; TIMED_OUT when it takes too long."""
        limit_s = self.operation_timeout_s + extra_s
        deadline = self.now() + limit_s
        pause_s = 0.25
        while operation.get("status") != "DONE":
            asked_at = self.now()
            if asked_at >= deadline:
                state = f"{operation['name']} is {operation.get('status')}"
                refusal = Refusal(code=TIMED_OUT, message=f"operation {state} after {limit_s:g} s")
                raise refusal_error(what, refusal, where=where, project=self.project)
            operation = self._request_operation(str(operation["name"]), zone, what, where)
            if self.now() - asked_at < 1 and operation.get("status") != "DONE":
                self.sleep(pause_s)
                pause_s = min(pause_s * 2, 5.0)
        refusal_or_none = from_operation(operation)
        if refusal_or_none is not None:
            raise refusal_error(what, refusal_or_none, where=where, project=self.project)

    def _request_operation(
        self, operation: str, zone: str, what: str, where: str
    ) -> dict[str, Any]:
        request = {"project": self.project, "zone": zone, "operation": operation}
        timeout_s = self._request_timeout_s + self._server_wait_s

        def send() -> dict[str, Any]:
            reply = self._send("ZoneOperationsClient", "wait", request, timeout_s)
            return checked_json(reply, *_OPERATION_FIELDS)

        return self._with_retries(what, where, send)

    def request_os_login(self, method: str, what: str, where: str, **fields: Any) -> Any:
        """Send one request to the OS Login API; return the library's reply."""
        return self._with_retries(what, where, lambda: self._send(OS_LOGIN, method, fields))

    def get_url(self, url: str, what: str) -> Any:
        """Send a GET with the credentials to any URL; return the reply of `requests`."""

        def send() -> Any:
            session = credentials.authorized_session(self.credentials())
            session.trust_env = not self._is_local
            return session.get(url, timeout=self._request_timeout_s)

        return self._with_retries(what, url, send)

    def credentials(self) -> Any:
        """Return the credentials of the requests. Raises `CloudAuthError` when there are none."""
        if self._credentials is None:
            self._credentials = (
                credentials.anonymous_credentials()
                if self.endpoint
                else credentials.default_credentials()
            )
        return self._credentials

    # --- one request ------------------------------------------------------------------------------

    def _send(
        self, client: str, method: str, request: Mapping[str, Any], timeout_s: float | None = None
    ) -> Any:
        return getattr(self._client(client), method)(
            request=request, retry=None, timeout=timeout_s or self._request_timeout_s
        )

    def _with_retries(
        self, what: str, where: str, send: Callable[[], T], attempts: int | None = None
    ) -> T:
        """Call `send`, again after a lost connection, a 5xx or a rate limit."""

        def once() -> T:
            try:
                return send()
            except Exception as error:
                refusal = refusal_of(error)
                if refusal is None:
                    raise
                raise refusal_error(what, refusal, where=where, project=self.project) from error

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(attempts or self._attempts),
            wait=tenacity.wait_exponential(multiplier=0.2, max=10) + tenacity.wait_random(0, 0.1),
            retry=tenacity.retry_if_exception(_is_worth_a_retry),
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
        options: dict[str, Any] = {"credentials": self.credentials()}
        if self.endpoint:
            options["client_options"] = {"api_endpoint": self.endpoint}
        if name == OS_LOGIN:
            client = google_library.os_login_client()(transport="rest", **options)
        else:
            client = getattr(google_library.compute(), name)(**options)
        session = getattr(client.transport, "_session", None)  # the library has no public accessor
        if session is not None:
            session.hooks["response"].append(self._note_clock)
            # requests would send even loopback traffic to a proxy of the environment
            session.trust_env = not self._is_local
        return client

    def _note_clock(self, reply: Any, **_: Any) -> None:
        """Compare the reply's `Date`, which servers send in whole seconds (RFC 9110, 6.6.1)."""
        with suppress(KeyError, ValueError):
            ahead_s = parsedate_to_datetime(reply.headers["Date"]).timestamp() - time.time()
            self.ahead_s = ahead_s if abs(ahead_s) >= MIN_CLOCK_DIFFERENCE_S else 0.0

    @property
    def _is_local(self) -> bool:
        return bool(self.endpoint) and urlsplit(self.endpoint).hostname in _LOOPBACK


def _is_worth_a_retry(error: BaseException) -> bool:
    return isinstance(error, CloudRefused) and classify(error.refusal).retry
