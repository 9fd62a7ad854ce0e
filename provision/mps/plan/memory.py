"""The GPU memory of a plan: what the clients are expected to take, and what is available. Pure."""

from __future__ import annotations

from provision.mps.plan.gpu_limits import CONTEXT_BASE_MIB, context_mib, sms_at
from provision.mps.plan.model import HostFacts, Workload

SERVER_MIB = 74
"""GPU memory in use with a server and no client (measured, H100 and H200)."""
_RESERVE_SHARE, _RESERVE_MIB = 0.05, 512
"""Memory that a plan leaves free."""


def expected_mib(host: HostFacts, workload: Workload, clients: int, percentage: int) -> int | None:
    """Memory of the server and its clients; None where neither context nor peak is known.

    A measured peak includes a context of full size. The part of it that is the context shrinks with
    the percentage.
    """
    peak = workload.peak_memory_mib
    if host.sm_count is None:
        return None if peak is None else SERVER_MIB + clients * peak
    context = context_mib(sms_at(percentage, host.sm_count, host.compute_capability))
    data = max(0, (peak or 0) - context_mib(host.sm_count))
    return SERVER_MIB + clients * (context + data)


def available_mib(host: HostFacts) -> float | None:
    """Free memory (total, where free is not known) without the reserve; None where unknown."""
    free = host.memory_total_mib if host.memory_free_mib is None else host.memory_free_mib
    reserve = (host.memory_total_mib or 0) * _RESERVE_SHARE + _RESERVE_MIB
    return None if free is None else free - reserve


def even_share_mib(host: HostFacts, clients: int) -> int | None:
    """What each client may take of the available memory.

    None where that is not known, or where no context fits into the share.
    """
    available = available_mib(host)
    share = None if available is None else int((available - SERVER_MIB) // clients)
    return share if share is not None and share > CONTEXT_BASE_MIB else None


def fits(host: HostFacts, workload: Workload, clients: int, percentage: int) -> bool:
    """True where the clients fit into the available memory, or where that is not known."""
    expected = expected_mib(host, workload, clients, percentage)
    available = available_mib(host)
    return expected is None or available is None or expected <= available
