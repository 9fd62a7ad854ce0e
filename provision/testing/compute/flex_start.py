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
    """Zone → seconds until there is capacity; 0 without a rule."""

    _rules: dict[str, float] = field(default_factory=dict)

    def set(self, after_s: float | None, zone: str = "*") -> None:
        """Set the wait in the zones that match the glob `zone`; None: never.

        Of several rules for a zone the latest counts.
        """
        self._rules.pop(zone, None)
        self._rules[zone] = NEVER_S if after_s is None else float(after_s)

    def after_s(self, zone: str) -> float:
        """Seconds that a request made now waits in the zone; infinity without an end."""
        return next(
            (after_s for glob, after_s in reversed(self._rules.items()) if fnmatchcase(zone, glob)),
            0.0,
        )


def request_valid_s(body: Mapping[str, Any]) -> float:
    """Seconds that an insert may wait for capacity; 0, the default: it may not wait."""
    return float(body.get("params", {}).get("requestValidForDuration", {}).get("seconds", 0))
