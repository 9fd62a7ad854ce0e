"""The side door of a running emulator, at /emulator/…: what a test would do with Python, done over HTTP.

    GET    /emulator/faults                              the rules in force, with what they saw and hit
    POST   /emulator/faults     [row, …] or row          add rules (see `scripts`)
    DELETE /emulator/faults                              remove them all
    GET    /emulator/calls                               the latest calls of the API
    POST   /emulator/clock      {"advance_s": 3600}      let time pass at once
    POST   /emulator/quotas     {"metric": …, "limit": …, "region": …}    region may be left out
    POST   /emulator/capacity   {"after_s": 600, "zone": "us-*"}          when flex-start requests get theirs; null: never
    POST   /emulator/metadata   {"enable-oslogin": "TRUE"}                metadata of the project
    POST   /emulator/events     {"event": "preempt", "zone": …, "name": …}    or break_host, guest_stopped

The real API has no such door: nothing of this is a call of it, and none is counted as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from provision.testing.compute import fault_scripts
from provision.testing.compute.clock import Clock
from provision.testing.compute.errors import ApiError, Json
from provision.testing.compute.faults import FaultBook
from provision.testing.compute.flex_start import Capacity
from provision.testing.compute.quotas import Quotas


class Controlled(Protocol):
    """What of an emulator is steered."""

    @property
    def faults(self) -> FaultBook:
        """The script of bad luck."""
        ...

    @property
    def calls(self) -> deque[Any]:
        """What arrived."""
        ...

    @property
    def clock(self) -> Clock:
        """Its time."""
        ...

    @property
    def quotas(self) -> Quotas:
        """The limits in force."""
        ...

    @property
    def capacity(self) -> Capacity:
        """When flex-start requests get theirs."""
        ...

    @property
    def project_metadata(self) -> dict[str, str]:
        """Metadata of the project."""
        ...

    def tick(self) -> None:
        """Let time do its work."""
        ...

    def preempt(self, name: str, zone: str) -> None:
        """Take a VM back."""
        ...

    def break_host(self, name: str, zone: str) -> None:
        """Break a VM's host."""
        ...

    def guest_stopped(self, name: str, zone: str) -> None:
        """The guest powered itself off."""
        ...


def answer(emulator: Controlled, verb: str, path: str, body: Any) -> Json:
    """The reply to one request; ApiError 400 for what is not understood, 404 for what is no door."""
    do = _DOORS.get((verb, path.strip("/")))
    if do is None:
        raise ApiError(
            404,
            "notFound",
            f"{verb} /emulator{path}: one of " + ", ".join(f"{v} /emulator/{p}" for v, p in _DOORS),
        )
    try:
        return do(emulator, body)
    except (KeyError, TypeError, ValueError) as error:
        raise ApiError(400, "invalid", str(error.args[0] if error.args else error)) from None


def _faults(emulator: Controlled, _body: Any) -> Json:
    rows = [(armed.fault.said or asdict(armed.fault), armed) for armed in emulator.faults.armed()]
    return {"faults": [{**row, "seen": armed.seen, "hits": armed.hits} for row, armed in rows]}


def _add_faults(emulator: Controlled, body: Any) -> Json:
    emulator.faults.add(*fault_scripts.read(body or ()))
    return _faults(emulator, None)


def _clear_faults(emulator: Controlled, _body: Any) -> Json:
    emulator.faults.clear()
    return _faults(emulator, None)


def _calls(emulator: Controlled, _body: Any) -> Json:
    return {"calls": [asdict(call) for call in list(emulator.calls)]}


def _advance(emulator: Controlled, body: Mapping[str, Any]) -> Json:
    emulator.clock.advance(float(body["advance_s"]))
    emulator.tick()
    return {"now": emulator.clock.now()}


def _set_quota(emulator: Controlled, body: Mapping[str, Any]) -> Json:
    metric, limit, region = str(body["metric"]), float(body["limit"]), body.get("region")
    emulator.quotas.set(metric, limit, region)
    return {"metric": metric, "limit": limit, "region": region}


def _set_capacity(emulator: Controlled, body: Mapping[str, Any]) -> Json:
    after_s, zone = body["after_s"], str(body.get("zone", "*"))
    emulator.capacity.set(None if after_s is None else float(after_s), zone)
    return {"zone": zone, "after_s": after_s}


def _set_metadata(emulator: Controlled, body: Mapping[str, str]) -> Json:
    emulator.project_metadata.update({str(key): str(value) for key, value in dict(body).items()})
    return {"metadata": dict(emulator.project_metadata)}


def _event(emulator: Controlled, body: Mapping[str, Any]) -> Json:
    events = {
        "preempt": emulator.preempt,
        "break_host": emulator.break_host,
        "guest_stopped": emulator.guest_stopped,
    }
    if body["event"] not in events:
        raise ValueError(f"no event: {body['event']!r} (known: {', '.join(events)})")
    events[body["event"]](str(body["name"]), str(body["zone"]))
    return {}


_DOORS: Mapping[tuple[str, str], Callable[[Controlled, Any], Json]] = {
    ("GET", "faults"): _faults,
    ("POST", "faults"): _add_faults,
    ("DELETE", "faults"): _clear_faults,
    ("GET", "calls"): _calls,
    ("POST", "clock"): _advance,
    ("POST", "quotas"): _set_quota,
    ("POST", "capacity"): _set_capacity,
    ("POST", "metadata"): _set_metadata,
    ("POST", "events"): _event,
}
