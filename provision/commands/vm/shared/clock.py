"""A clock that tests replace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """Monotonic time in seconds, and a way to wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
