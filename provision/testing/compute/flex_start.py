"""When a flex-start request gets its capacity: at once, after a while, or never, by zone.

Source: Compute Engine, "About Flex-start VMs": the VM starts if capacity comes within the time that
the request is valid for (instances, `params.requestValidForDuration`); until then its status is
PENDING, afterwards there is no VM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

NEVER_S = float("inf")


@dataclass
class Capacity:
    """Zone → seconds until there is capacity. Without a rule it is there at once."""

    _rules: dict[str, float] = field(default_factory=dict)

    def set(self, after_s: float | None, zone: str = "*") -> None:
        """Capacity comes after so many seconds (None: never) in the zones that the glob `zone` names; the latest rule counts."""
        self._rules.pop(zone, None)
        self._rules[zone] = NEVER_S if after_s is None else float(after_s)

    def after_s(self, zone: str) -> float:
        """How long a request that comes now waits in a zone; infinite: for ever."""
        return next(
            (after_s for glob, after_s in reversed(self._rules.items()) if fnmatchcase(zone, glob)),
            0.0,
        )


def valid_s(body: Mapping[str, Any]) -> float:
    """How long the request of an instance may wait for capacity; 0 where it may not, which is the default."""
    return float(body.get("params", {}).get("requestValidForDuration", {}).get("seconds", 0))
