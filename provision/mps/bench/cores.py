"""The CPU cores of a benchmark's clients: which ones, and how many threads. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence


def core_sets(cpus: Sequence[int], clients: int, most_clients: int) -> tuple[str, ...]:
    """A core set for each client, as `taskset -c` reads it; "-" where no core is known.

    The sets are disjoint while there are enough cores, else single cores in turn. Every cell of a
    grid whose largest has `most_clients` gives a client as many cores, so that cells differ only in
    the number of clients.
    """
    if not cpus:
        return ("-",) * clients
    cpus = cpus[::-1]  # the first cores serve the machine's interrupts: they are used last
    share = len(cpus) // most_clients
    if share:
        return tuple(
            ",".join(map(str, cpus[index * share : (index + 1) * share]))
            for index in range(clients)
        )
    return tuple(str(cpus[index % len(cpus)]) for index in range(clients))


def threads_per_client(cpus: int, most_clients: int) -> int:
    """The OpenMP threads of a client: the cores divided among `most_clients`, at least 1.

    More threads were up to 64 times slower (docs/facts.md).
    """
    return max(1, cpus // max(1, most_clients))


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The numbers of `0-3,8`, as /proc/self/status lists them; empty for an invalid list."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None:
            return ()
        cpus.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(cpus)
