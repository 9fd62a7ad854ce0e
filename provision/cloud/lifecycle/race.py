"""Several zones asked at once: the first VM wins; the race ends when all zones have answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from provision.core.errors import CloudError
from provision.core.parallel import run_all

T = TypeVar("T")


@dataclass
class Finish(Generic[T]):
    """The finish of a race: the first candidate becomes the winner."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    winner: T | None = None

    def offer(self, candidate: T) -> bool:
        """Make the candidate the winner if there is none yet; return whether it is the winner."""
        with self._lock:
            if self.winner is None:
                self.winner = candidate
            return self.winner is candidate


def race(run: Callable[[str, Finish[T]], None], zones: Sequence[str]) -> Finish[T]:
    """Call `run(zone, finish)` for all zones at once and return when the last has returned.

    After all have returned, raises the first exception in the order of `zones`. A `CloudError` is
    raised only if no zone won and no other kind of exception occurred. Ctrl-C ends the call at
    once; the journal has every request that was sent.
    """
    finish: Finish[T] = Finish()
    results = run_all(zones, lambda zone: run(zone, finish), at_once=len(zones))
    errors = [result.error for result in results if result.error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, CloudError)):
        if finish.winner is None or not isinstance(error, CloudError):
            raise error
    return finish
