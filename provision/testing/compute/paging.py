"""Lists in pages, as the API gives them: plain lists, and aggregated lists keyed by zone with their empty scopes. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import TypeVar

from provision.testing.compute.errors import Json, invalid

T = TypeVar("T")
MAX_RESULTS = 500


def page(items: Sequence[T], query: Mapping[str, str]) -> tuple[Sequence[T], str | None]:
    """The page that `maxResults` and `pageToken` ask for, and the token of the next one."""
    size = _size(query)
    start = _start(query)
    end = start + size
    token = base64.urlsafe_b64encode(str(end).encode()).decode() if end < len(items) else None
    return items[start:end], token


def _size(query: Mapping[str, str]) -> int:
    text = query.get("maxResults", str(MAX_RESULTS))
    if not text.isdigit() or not 0 <= int(text) <= MAX_RESULTS:
        raise invalid(f"Invalid value for field 'maxResults': '{text}'. Must be between 0 and {MAX_RESULTS}.")
    return int(text) or MAX_RESULTS


def _start(query: Mapping[str, str]) -> int:
    token = query.get("pageToken", "")
    try:
        return int(base64.urlsafe_b64decode(token)) if token else 0
    except (ValueError, binascii.Error):
        raise invalid(f"Invalid value for field 'pageToken': '{token}'.") from None


def listing(kind: str, path: str, items: Sequence[Json], query: Mapping[str, str]) -> Json:
    """A list reply; `items` is absent when there are none, as in the API."""
    shown, token = page(items, query)
    reply: Json = {"kind": kind, "id": path, "selfLink": path}
    if shown:
        reply["items"] = list(shown)
    return {**reply, "nextPageToken": token} if token else reply


def aggregated(
    kind: str, path: str, *, field: str, scopes: Sequence[str], items: Sequence[tuple[str, Json]], query: Mapping[str, str]
) -> Json:
    """An aggregated reply over `zones/Z`; a scope without items carries the warning NO_RESULTS_ON_PAGE."""
    shown, token = page(items, query)
    reply: Json = {"kind": kind, "id": path, "selfLink": path, "items": {}}
    for scope in scopes:
        here = [item for zone, item in shown if zone == scope]
        reply["items"][f"zones/{scope}"] = {field: here} if here else {"warning": _no_results(scope)}
    return {**reply, "nextPageToken": token} if token else reply


def _no_results(zone: str) -> Json:
    scope = f"zones/{zone}"
    return {
        "code": "NO_RESULTS_ON_PAGE",
        "message": f"There are no results for scope '{scope}' on this page.",
        "data": [{"key": "scope", "value": scope}],
    }
