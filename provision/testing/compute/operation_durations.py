"""How long the emulated operations take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Durations:
    """Seconds by operation type, such as `insert`; `default_s` for the others."""

    default_s: float = 0.0
    by_type: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, operation_s: float | Mapping[str, float]) -> Durations:
        """The durations from one number for all types, or one per type with 0 for the others."""
        return cls(by_type=operation_s) if isinstance(operation_s, Mapping) else cls(operation_s)

    def of_type(self, operation_type: str) -> float:
        """Seconds that an operation of this type takes."""
        return self.by_type.get(operation_type, self.default_s)
