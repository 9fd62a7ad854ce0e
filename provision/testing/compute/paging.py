"""Pages of lists as the API replies: plain lists, and aggregated lists by zone. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from provision.testing.compute.errors import Json, invalid

T = TypeVar("T")
MAX_RESULTS = 500


def page(items: Sequence[T], query: Mapping[str, str]) -> tuple[Sequence[T], str | None]:
    """The page that `maxResults` and `pageToken` select, and the token of the next page.

    Raises `ApiError` 400 for an invalid value of either.
    """
    size = _size(query)
    start = _start(query)
    end = start + size
    token = base64.urlsafe_b64encode(str(end).encode()).decode() if end < len(items) else None
    return items[start:end], token


def _size(query: Mapping[str, str]) -> int:
    text = query.get("maxResults", str(MAX_RESULTS))
    if not text.isdigit() or not 0 <= int(text) <= MAX_RESULTS:
        raise invalid(
            f"Invalid value for field 'maxResults': '{text}'. Must be between 0 and {MAX_RESULTS}."
        )
    return int(text) or MAX_RESULTS


def _start(query: Mapping[str, str]) -> int:
    token = query.get("pageToken", "")
    try:
        return int(base64.urlsafe_b64decode(token)) if token else 0
    except (ValueError, binascii.Error):
        raise invalid(f"Invalid value for field 'pageToken': '{token}'.") from None


def ordered(
    items: Sequence[T], query: Mapping[str, str], created: Callable[[T], str]
) -> Sequence[T]:
    """The items in the order of `orderBy`: as they come, or by "creationTimestamp desc".

    Raises `ApiError` 400 for any other order, which the API does not support.
    """
    order = query.get("orderBy", "name")
    if order == "creationTimestamp desc":
        return sorted(items, key=created, reverse=True)
    if order not in {"", "name"}:
        why = "Must be 'name' or 'creationTimestamp desc'."
        raise invalid(f"Invalid value for field 'orderBy': '{order}'. {why}")
    return items


def listing(kind: str, path: str, items: Sequence[Json], query: Mapping[str, str]) -> Json:
    """A list reply; `items` is absent when there are none, as in the API.

    Raises `ApiError` 400 for invalid paging or order.
    """
    shown, token = page(
        ordered(items, query, lambda item: str(item.get("creationTimestamp", ""))), query
    )
    reply: Json = {"kind": kind, "id": path, "selfLink": path}
    if shown:
        reply["items"] = list(shown)
    return {**reply, "nextPageToken": token} if token else reply


def aggregated(
    kind: str,
    path: str,
    *,
    field: str,
    scopes: Sequence[str],
    items: Sequence[tuple[str, Json]],
    query: Mapping[str, str],
    unreachable: Collection[str] = (),
) -> Json:
    """An aggregated list reply with the scopes `zones/ZONE`.

    A scope without items has the warning NO_RESULTS_ON_PAGE, an unreachable scope UNREACHABLE;
    `unreachables` lists the latter too. Raises `ApiError` 400 for invalid paging or order.
    """
    shown, token = page(
        ordered(items, query, lambda pair: str(pair[1].get("creationTimestamp", ""))), query
    )
    reply: Json = {"kind": kind, "id": path, "selfLink": path, "items": {}}
    by_zone: dict[str, list[Json]] = {}
    for zone, item in shown:
        by_zone.setdefault(zone, []).append(item)
    for zone in scopes:
        warning = _unreachable if zone in unreachable else _no_results
        reply["items"][f"zones/{zone}"] = (
            {field: by_zone[zone]} if zone in by_zone else {"warning": warning(zone)}
        )
    if unreachable:
        reply["unreachables"] = [f"zones/{zone}" for zone in scopes if zone in unreachable]
    return {**reply, "nextPageToken": token} if token else reply


def _no_results(zone: str) -> Json:
    return _warning(
        "NO_RESULTS_ON_PAGE", f"There are no results for scope 'zones/{zone}' on this page.", zone
    )


def _unreachable(zone: str) -> Json:
    return _warning(
        "UNREACHABLE",
        f"The scope 'zones/{zone}' could not be reached; its results are not in this list.",
        zone,
    )


def _warning(code: str, message: str, zone: str) -> Json:
    return {"code": code, "message": message, "data": [{"key": "scope", "value": f"zones/{zone}"}]}
