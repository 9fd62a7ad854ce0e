"""Exceptions of Google's client library, of google.auth and of requests, as refusals."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from provision.cloud.api.credentials import LOGIN_COMMAND
from provision.cloud.api.google_library import json_format
from provision.cloud.refusal import CONNECTION_LOST, UNREADABLE, Refusal, split_zones
from provision.core.errors import CloudAuthError, CloudError


def refusal_of(error: Exception) -> Refusal | None:
    """Return what an exception of a request reports; None for one of another kind.

    Raises `CloudAuthError` for rejected credentials, and `error` itself when it is a `CloudError`.
    """
    import requests
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError, TransportError

    if isinstance(error, GoogleAPICallError):
        return _api_refusal(error)
    if isinstance(error, json_format().ParseError | UnicodeDecodeError):
        message = f"the answer is not a Compute Engine reply: {error}"
        return Refusal(code=UNREADABLE, message=message)
    if isinstance(error, requests.RequestException | TransportError):
        return Refusal(code=CONNECTION_LOST, message=f"{type(error).__name__}: {error}")
    if isinstance(error, GoogleAuthError):
        raise CloudAuthError(
            "the credentials were not accepted", why=str(error), fix=LOGIN_COMMAND
        ) from error
    if isinstance(error, CloudError):
        raise error
    return None


def _api_refusal(error: Any) -> Refusal:
    first = error.errors[0] if error.errors else {}
    detail: Mapping[str, Any] = first if isinstance(first, Mapping) else {}
    zones = ""
    with suppress(AttributeError):
        zones = (error.metadata or {}).get("zonesAvailable", "")
    return Refusal(
        code=str(detail.get("reason") or error.reason or ""),
        message=str(detail.get("message") or error.message),
        http_status=int(error.code or 0),
        zones_available=split_zones(zones),
    )
