"""The search for a zone that has capacity: zones left, zones tried, and the error at its end."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from provision.cloud.market.catalog import Shape
from provision.cloud.market.zone_order import Candidates
from provision.cloud.refusal import CloudRefused
from provision.cloud.refusal_table import (
    NAME_MORE_ZONES,
    BlastRadius,
    Classification,
    RefusalKind,
    classify,
)
from provision.core.errors import CloudError, NoCapacity, SettingsError
from provision.core.model import VmSpec

_FINAL = frozenset({BlastRadius.PROJECT, BlastRadius.NEVER})
_REASON_COLUMNS = 72
"""Width of a reason below its zone; with the indentation around it, it fits 80 columns."""


@dataclass(frozen=True)
class Attempt:
    """One zone of a search, its result, and the verbatim reason.

    `result` is created, exists, started, dropped, or the kind of the refusal.
    """

    zone: str
    result: str
    reason: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the attempt as `--json` prints it."""
        return {"zone": self.zone, "result": self.result, "reason": self.reason}


@dataclass
class ZoneSearch:
    """The state of a search for one VM; several threads may update it."""

    candidates: Candidates
    tried: list[Attempt] = field(default_factory=list)
    refusal: CloudRefused | None = None
    """The refusal that ended the search, or else the latest."""
    rooms: Mapping[str, int] = field(default_factory=dict)
    """Region → how many such VMs the quotas allow one search to ask for there at once; "" stands
    for all regions together."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def copy(self) -> ZoneSearch:
        """Return the same search for another VM of the shape."""
        return ZoneSearch(self.candidates, list(self.tried), self.refusal, self.rooms)

    def next(self, width: int) -> tuple[str, ...]:
        """Return the zones to ask now, at most `width` and within the quotas; none at the end."""
        return self.candidates.next(width, self.rooms)

    def record_refusal(self, zone: str, error: CloudRefused) -> None:
        """Drop `zone` and every zone that its refusal rules out."""
        verdict = classify(error.refusal)
        with self._lock:
            self.tried.append(Attempt(zone, verdict.kind.value, str(error.refusal)))
            self.candidates = self.candidates.after(zone, verdict, error.refusal.zones_available)
            if self.refusal is None or classify(self.refusal.refusal).blast_radius not in _FINAL:
                self.refusal = error

    def failure(self, spec: VmSpec) -> CloudError | SettingsError:
        """Return the error for a search without a zone left, with every zone's reason."""
        if not self.tried:
            return SettingsError(
                "no zone to ask",
                where="zones",
                why="the list of zones is empty",
                fix="set zones: [us-central1-a]",
            )
        if self.refusal is not None and self._is_the_reason(classify(self.refusal.refusal)):
            if len(self.tried) > 1:
                self.refusal.why = f"{self.refusal.why}\n{attempts_table(self.tried)}"
            return self.refusal
        return NoCapacity(
            f"no zone had {Shape.of(spec)}",
            where=spec.name,
            why=attempts_table(self.tried),
            fix=self._remedy(spec),
            tried=tuple((attempt.zone, attempt.result, attempt.reason) for attempt in self.tried),
        )

    def _is_the_reason(self, refusal: Classification) -> bool:
        """Return whether the refusal alone explains the end: no other zone could help."""
        if refusal.blast_radius in _FINAL:
            return True
        return len(self.tried) == 1 and refusal.kind is not RefusalKind.CAPACITY

    def _remedy(self, spec: VmSpec) -> str:
        results = {attempt.result for attempt in self.tried}
        if spec.reservation is not None and results == {RefusalKind.NOT_FOUND.value}:
            return "gcloud compute reservations list"
        if spec.gpu and results == {RefusalKind.NOT_OFFERED.value}:
            return f"invoke vm.offers --gpu {spec.gpu}"
        return NAME_MORE_ZONES


def attempts_table(tried: Sequence[Attempt]) -> str:
    """Return a line for each zone with its result, and the reason below the zones that share it."""
    width = max((len(attempt.zone) for attempt in tried), default=0)
    lines: list[str] = []
    for (reason, _), group in groupby(tried, key=lambda attempt: (attempt.reason, attempt.result)):
        lines += [f"{attempt.zone:{width}}  {attempt.result}" for attempt in group]
        lines += _indented(reason)
    return "\n".join(lines)


def _indented(reason: str) -> list[str]:
    wrapper = textwrap.TextWrapper(
        _REASON_COLUMNS,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [row for line in reason.splitlines() for row in wrapper.wrap(line)]
