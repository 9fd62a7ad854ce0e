"""Several zones asked at once: the first VM is kept, every other one is removed before the race is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from provision.core.errors import CloudError

T = TypeVar("T")


@dataclass
class Finish(Generic[T]):
    """Won or not: decided once, by whoever asks first."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    winner: T | None = None

    def is_first(self, found: T) -> bool:
        """True for the first one that asks."""
        with self._lock:
            if self.winner is None:
                self.winner = found
            return self.winner is found


def race(run: Callable[[str, Finish[T]], None], zones: Sequence[str]) -> Finish[T]:
    """Call `run(zone, finish)` for all zones at once, each in a thread of its own, and return when the last has returned.

    What one raises is raised here once all have returned, of several the first in the order of
    `zones`; a CloudError only after all others, and not at all where another zone won. After Ctrl-C
    nobody is waited for: what was asked for is in the journal.
    """
    finish: Finish[T] = Finish()
    raised: dict[str, BaseException] = {}

    def runner(zone: str) -> None:
        try:
            run(zone, finish)
        except BaseException as error:  # noqa: BLE001 - it is raised below, in the thread that asked
            raised[zone] = error

    threads = [
        threading.Thread(target=runner, args=(zone,), name=f"ask-{zone}", daemon=True)
        for zone in zones
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(
        (raised[zone] for zone in zones if zone in raised),
        key=lambda error: isinstance(error, CloudError),
    ):
        if finish.winner is None or not isinstance(error, CloudError):
            raise error
    return finish
