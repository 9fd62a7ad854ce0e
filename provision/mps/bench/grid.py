"""The cells of a benchmark and their order. Pure.

A cell is a mode and a number of clients. The same number of processes is always compared with and
without MPS (facts/mps.md §3.5).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WITHOUT = "none"
MODES = (WITHOUT, "mps", "100/N", "200/N")
"""Without MPS; MPS with all threads for each client; MPS with a thread percentage that divides the
GPU once, or twice, among N clients."""
CLIENTS = (1, 2, 4, 8, 16)
LEAST_ROUNDS = 3
"""Fewer rounds give neither a median nor a spread; they are run with a warning."""


@dataclass(frozen=True, order=True)
class CellKey:
    """One cell of the grid."""

    mode: str
    clients: int

    @property
    def percentage(self) -> int | None:
        """The default active thread percentage, rounded up; None without MPS."""
        match self.mode:
            case "none":
                return None
            case "mps":
                return 100
            case "100/N":
                return math.ceil(100 / self.clients)
            case _:
                return min(100, math.ceil(200 / self.clients))

    def __str__(self) -> str:
        return f"{self.mode} x {self.clients}"


ALONE = CellKey(WITHOUT, 1)
"""One process alone without MPS, with which every cell is compared."""


def grid_cells(modes: Sequence[str], clients: Sequence[int]) -> tuple[CellKey, ...]:
    """Every cell. Of modes that are the same for a number of clients the first one is kept.

    For one client 100/N is the same as mps.
    """
    keys: list[CellKey] = []
    for count in clients:
        percentages: set[int | None] = set()
        for mode in modes:
            key = CellKey(mode, count)
            if key.percentage not in percentages:
                percentages.add(key.percentage)
                keys.append(key)
    return tuple(keys)


def shuffled_rounds(
    keys: Sequence[CellKey], rounds: int, seed: int = 0
) -> Iterable[tuple[int, CellKey]]:
    """Every cell once in each round, with the number of the round, from 1.

    Each round has an order of its own, so that a drift of the machine affects all cells alike. One
    process alone comes first of all: without its figure nothing can be compared.
    """
    shuffler = random.Random(seed)  # noqa: S311 - an order, not a secret
    for number in range(1, rounds + 1):
        order = list(keys)
        shuffler.shuffle(order)
        if number == 1:
            order.sort(key=lambda key: key != ALONE)
        yield from ((number, key) for key in order)


def cells_over_limit(keys: Sequence[CellKey], limit: int | None) -> tuple[CellKey, ...]:
    """The cells with MPS that have more clients than a server takes; none where it is unknown."""
    return tuple(
        key
        for key in keys
        if limit is not None and key.percentage is not None and key.clients > limit
    )


def few_rounds_warning(rounds: int) -> str | None:
    """The warning for fewer rounds than a median and a spread need; None for enough of them."""
    if rounds >= LEAST_ROUNDS:
        return None
    plural = "s" if rounds > 1 else ""
    return f"{rounds} round{plural} only: a median and a spread need {LEAST_ROUNDS}"
