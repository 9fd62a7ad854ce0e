"""Control of a running emulator over HTTP, at /emulator/….

    GET    /emulator/faults                              the rules in force with their counts
    POST   /emulator/faults     [row, …] or row          add rules (see `fault_scripts`)
    DELETE /emulator/faults                              remove them all
    GET    /emulator/calls                               the latest calls of the API
    POST   /emulator/clock      {"advance_s": 3600}      let time pass at once
    POST   /emulator/quotas     {"metric": …, "limit": …, "region": …}    region is optional
    POST   /emulator/capacity   {"after_s": 600, "zone": "us-*"}          of flex-start; null: never
    POST   /emulator/metadata   {"enable-oslogin": "TRUE"}                metadata of the project
    POST   /emulator/events     {"event": "preempt", "zone": …, "name": …}
                                events: preempt, break_host, guest_stopped

The real API has nothing of the kind; these requests do not appear in the emulator's calls.
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


class ControlledEmulator(Protocol):
    """The part of an emulator that can be controlled."""

    @property
    def faults(self) -> FaultBook:
        """The scripted faults."""
        ...

    @property
    def calls(self) -> deque[Any]:
        """The latest requests."""
        ...

    @property
    def clock(self) -> Clock:
        """The emulator's time."""
        ...

    @property
    def quotas(self) -> Quotas:
        """The quota limits in force."""
        ...

    @property
    def capacity(self) -> Capacity:
        """When flex-start requests get capacity."""
        ...

    @property
    def project_metadata(self) -> dict[str, str]:
        """Metadata of the project."""
        ...

    def tick(self) -> None:
        """Apply everything that is due."""
        ...

    def preempt(self, name: str, zone: str) -> None:
        """Pre-empt a Spot VM."""
        ...

    def break_host(self, name: str, zone: str) -> None:
        """Let a VM's host fail."""
        ...

    def guest_stopped(self, name: str, zone: str) -> None:
        """Power a VM off from inside."""
        ...


def answer(emulator: ControlledEmulator, verb: str, path: str, body: Any) -> Json:
    """The reply to one request. Raises `ApiError` 400 for a bad body, 404 for an unknown path."""
    handler = _HANDLERS.get((verb, path.strip("/")))
    if handler is None:
        raise ApiError(
            404,
            "notFound",
            f"{verb} /emulator{path}: one of "
            + ", ".join(f"{v} /emulator/{p}" for v, p in _HANDLERS),
        )
    try:
        return handler(emulator, body)
    except (KeyError, TypeError, ValueError) as error:
        raise ApiError(400, "invalid", str(error.args[0] if error.args else error)) from None


def _faults(emulator: ControlledEmulator, _body: Any) -> Json:
    rows = [(armed.fault.row or asdict(armed.fault), armed) for armed in emulator.faults.armed()]
    return {"faults": [{**row, "seen": armed.seen, "hits": armed.hits} for row, armed in rows]}


def _add_faults(emulator: ControlledEmulator, body: Any) -> Json:
    emulator.faults.add(*fault_scripts.read(body or ()))
    return _faults(emulator, None)


def _clear_faults(emulator: ControlledEmulator, _body: Any) -> Json:
    emulator.faults.clear()
    return _faults(emulator, None)


def _calls(emulator: ControlledEmulator, _body: Any) -> Json:
    return {"calls": [asdict(call) for call in list(emulator.calls)]}


def _advance(emulator: ControlledEmulator, body: Mapping[str, Any]) -> Json:
    emulator.clock.advance(float(body["advance_s"]))
    emulator.tick()
    return {"now": emulator.clock.now()}


def _set_quota(emulator: ControlledEmulator, body: Mapping[str, Any]) -> Json:
    metric, limit, region = str(body["metric"]), float(body["limit"]), body.get("region")
    emulator.quotas.set(metric, limit, region)
    return {"metric": metric, "limit": limit, "region": region}


def _set_capacity(emulator: ControlledEmulator, body: Mapping[str, Any]) -> Json:
    after_s, zone = body["after_s"], str(body.get("zone", "*"))
    emulator.capacity.set(None if after_s is None else float(after_s), zone)
    return {"zone": zone, "after_s": after_s}


def _set_metadata(emulator: ControlledEmulator, body: Mapping[str, str]) -> Json:
    emulator.project_metadata.update({str(key): str(value) for key, value in dict(body).items()})
    return {"metadata": dict(emulator.project_metadata)}


def _event(emulator: ControlledEmulator, body: Mapping[str, Any]) -> Json:
    events = {
        "preempt": emulator.preempt,
        "break_host": emulator.break_host,
        "guest_stopped": emulator.guest_stopped,
    }
    if body["event"] not in events:
        raise ValueError(f"unknown event: {body['event']!r} (known: {', '.join(events)})")
    events[body["event"]](str(body["name"]), str(body["zone"]))
    return {}


_HANDLERS: Mapping[tuple[str, str], Callable[[ControlledEmulator, Any], Json]] = {
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
