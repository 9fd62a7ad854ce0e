"""The emulator's time: real, or simulated so that a test of hours ends in milliseconds."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Time as the emulator (and a client under test) sees it."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...

    def advance(self, seconds: float) -> None:
        """Move the time forward by `seconds`. Raises `ValueError` for a negative number."""
        ...


class SystemClock:
    """Real time plus what `advance` skipped, so that a time limit of hours can pass at once."""

    def __init__(self) -> None:
        self._skipped_s = 0.0

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self._skipped_s

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for `seconds`."""
        time.sleep(seconds)

    def advance(self, seconds: float) -> None:
        """Move the time forward by `seconds`."""
        self._skipped_s += _forward(seconds)


class SimulatedClock:
    """Time that passes only by `sleep` and `advance`; client and emulator share one."""

    def __init__(self, start_s: float = 1_790_000_000.0) -> None:
        self._now = start_s
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds since the epoch."""
        with self._lock:
            return self._now

    def sleep(self, seconds: float) -> None:
        """Advance the time by `seconds` and return at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the time forward by `seconds`."""
        with self._lock:
            self._now += _forward(seconds)


def _forward(seconds: float) -> float:
    if seconds < 0:
        raise ValueError("time does not go backwards")
    return seconds


class CloudTime:
    """The time of the emulated cloud: the clock's, or `at` while an overdue event is applied."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at: float | None = None

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock.now() if self.at is None else self.at


def timestamp(seconds: float) -> str:
    """RFC 3339 with milliseconds, as the API writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
