"""Scripted faults as rows of data, for tests, for files and for the control API.

    {"zone": "us-central1-a", "call": "instances.insert", "nth": 2,
     "fault": "stock_out", "available": ["us-central1-c"]}

`zone`, `call` and `name` (of the VM) are globs; `call` is a method of the API, by default
`instances.insert`. `nth` is a number, a range ("2-4") or an open range ("3+"); without it every
such call is hit. `fault` is a key of `FAULTS`; other keys are parameters of that fault.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import filter as matching
from typing import Any

from provision.testing.compute import faults
from provision.testing.compute.faults import Fault, FaultKind
from provision.testing.compute.routes import METHODS

_COMMON_KEYS = ("fault", "zone", "call", "name", "nth")


def _stock_out(
    *,
    available: Sequence[str] = (),
    with_details: bool = True,
    silent: bool = False,
    leaves_vm: bool = False,
    leaves_disk: bool = False,
) -> Fault:
    fault = faults.stock_out(available=available, with_details=with_details, leaves_vm=leaves_vm)
    fault = replace(fault, leaves_disk=leaves_disk)
    return faults.silent(fault) if silent else fault


def _quota(*, metric: str = "NVIDIA_T4_GPUS", limit: float = 0.0, silent: bool = False) -> Fault:
    fault = faults.quota(metric=metric, limit=limit)
    return faults.silent(fault) if silent else fault


def _operation(*, code: str, message: str = "", http_status: int | None = None) -> Fault:
    return Fault(
        kind=FaultKind.OPERATION, code=code, message=message or code, http_status=http_status
    )


def _http(
    *, http_status: int, reason: str = "backendError", message: str = "Backend Error"
) -> Fault:
    return Fault(kind=FaultKind.HTTP, http_status=http_status, code=reason, message=message)


def _rate_limit(*, http_status: int = 403) -> Fault:
    return _http(http_status=http_status, reason="rateLimitExceeded", message="Rate Limit Exceeded")


def _stale() -> Fault:
    message = "Supplied fingerprint does not match current metadata fingerprint."
    return _http(http_status=412, reason="conditionNotMet", message=message)


def _html_502() -> Fault:
    return faults.html_502()


def _malformed(
    *, text: str = '{"kind": "compute#operation", "name": ', before: bool = False
) -> Fault:
    return Fault(
        kind=FaultKind.BODY if before else FaultKind.BODY_AFTER, http_status=200, text=text
    )


def _future(*, fields: Mapping[str, Any] | None = None) -> Fault:
    return Fault(kind=FaultKind.FUTURE, text=json.dumps(dict(fields or {})))


def _seconds(kind: FaultKind) -> Callable[..., Fault]:
    def make(*, seconds: float) -> Fault:
        return Fault(kind=kind, seconds=seconds)

    return make


def _plain(kind: FaultKind) -> Callable[..., Fault]:
    def make() -> Fault:
        return Fault(kind=kind)

    return make


FAULTS: Mapping[str, Callable[..., Fault]] = {
    "stock_out": _stock_out,
    "quota": _quota,
    "operation": _operation,
    "http": _http,
    "rate_limit": _rate_limit,
    "stale": _stale,
    "html_502": _html_502,
    "malformed": _malformed,
    "future": _future,
    "slow": _seconds(FaultKind.SLOW),
    "hang": _seconds(FaultKind.HANG),
    "never": _plain(FaultKind.NEVER),
    "reset_before": _plain(FaultKind.RESET_BEFORE),
    "reset_after": _plain(FaultKind.RESET_AFTER),
    "mute_before": _plain(FaultKind.MUTE_BEFORE),
    "mute_after": _plain(FaultKind.MUTE_AFTER),
    "unreachable": _plain(FaultKind.UNREACHABLE),
}
"""The faults by name; their keyword parameters are the keys that a row may have."""


def read(rows: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> list[Fault]:
    """The faults of several rows, or of one. Raises `ValueError` for an invalid row."""
    return [_read(row) for row in ([rows] if isinstance(rows, Mapping) else rows)]


def _read(row: Mapping[str, Any]) -> Fault:
    if not isinstance(row, Mapping):
        raise ValueError(f"a fault is a mapping, not {row!r}")  # noqa: TRY004 - bad data
    kind = str(row.get("fault"))
    if kind not in FAULTS:
        raise ValueError(f"unknown fault: {kind!r} (known: {', '.join(FAULTS)})")
    zone, call, name = (
        str(row.get(word, default))
        for word, default in (("zone", "*"), ("call", _default_call(kind)), ("name", "*"))
    )
    if not matching(METHODS, call):
        raise ValueError(f"unknown method: {call!r} (known: {', '.join(sorted(METHODS))})")
    own = {key: value for key, value in row.items() if key not in _COMMON_KEYS}
    try:
        fault = FAULTS[kind](**own)
    except TypeError:
        allowed = ", ".join((*_COMMON_KEYS, *inspect.signature(FAULTS[kind]).parameters))
        keys = ", ".join(own) or "no keys of its own"
        raise ValueError(f"fault {kind!r} with {keys}: its keys are {allowed}") from None
    after, times = _window(row.get("nth"))
    return replace(fault, zone=zone, call=call, name=name, after=after, times=times, row=dict(row))


def _default_call(fault: str) -> str:
    return "instances.aggregatedList" if fault == "unreachable" else "instances.insert"


def _window(nth: object) -> tuple[int, int | None]:
    """(calls that pass, calls that are hit; None: all) of 2, "2", "2-4" or "3+"."""
    if nth is None:
        return 0, None
    match = re.fullmatch(r"([1-9]\d*)(?:(\+)|-([1-9]\d*))?", str(nth))
    if match is None or (match[3] and int(match[3]) < int(match[1])):
        raise ValueError(f'nth is a number, a range such as "2-4", or "3+", not {nth!r}')
    first, last = int(match[1]), int(match[3] or match[1])
    return first - 1, None if match[2] else last - first + 1
