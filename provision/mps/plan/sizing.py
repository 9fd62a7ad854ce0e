"""How many processes share one GPU, with which limits: (HostFacts, Workload) -> Plan. Pure.

Sources: the NVIDIA MPS guide ("When to use MPS": provisioning by 100/n and 100/(0.5 n)), and
measurements on H100 and H200 (docs/facts.md): processes that each start a thread per core are up to
64 times slower.
"""

from __future__ import annotations

import math
from dataclasses import replace

from provision.mps.plan import memory
from provision.mps.plan.advice import MEMORY_FITS, MEMORY_FITS_NONE, advise
from provision.mps.plan.gpu_limits import (
    LEAST_SMS,
    SPARE_CLIENTS,
    client_limit,
    context_mib,
    is_before_volta,
    sms_at,
)
from provision.mps.plan.model import Bound, HostFacts, Plan, Workload
from provision.report.text import count_phrase

_LEAST_ACTIVITY = 0.001
"""The finest activity that is reported: nvidia-smi prints whole percents, their average is a little
finer."""


def plan(host: HostFacts, workload: Workload) -> Plan:
    """The plan for `workload` on `host`. Never raises; what is impossible becomes advice."""
    limit = client_limit(host.compute_capability, host.cuda)
    client_bounds = _client_bounds(host, workload, limit)
    ceiling = max(1, min(int(bound.value) for bound in client_bounds))
    clients, percentage = _most_that_fit(host, workload, ceiling)
    if not memory.fits(host, workload, clients, percentage):
        clients_reason = MEMORY_FITS_NONE
    elif clients == ceiling:
        clients_reason = min(client_bounds, key=lambda bound: bound.value).reason
    else:
        clients_reason = MEMORY_FITS
    share = None if clients_reason == MEMORY_FITS_NONE else memory.even_share_mib(host, clients)
    sms = (
        None
        if host.sm_count is None
        else sms_at(percentage, host.sm_count, host.compute_capability)
    )
    context = None if sms is None else context_mib(sms)
    bounds = _speed_bounds(host, workload, clients)
    result = Plan(
        clients=clients,
        clients_reason=clients_reason,
        client_limit=limit,
        thread_percentage=percentage,
        percentage_reason=_percentage_reason(host, workload, clients, percentage),
        sms_per_client=sms,
        omp_threads=max(1, host.vcpus // clients),
        context_mib=context,
        expected_memory_mib=memory.expected_mib(host, workload, clients, percentage),
        memory_limit_mib=share,
        tensorflow_limit_mib=None if share is None else max(0, share - (context or 0)),
        speedup=min(bounds, key=lambda bound: bound.value),
        bounds=bounds,
    )
    return replace(result, advice=advise(host, workload, result))


# --- number of clients ----------------------------------------------------------------------------


def _client_bounds(host: HostFacts, workload: Workload, limit: int) -> list[Bound]:
    """Upper limits on the number of clients, memory aside.

    A number that the caller asks for is limited only by what cannot be exceeded.
    """
    server = Bound(
        limit - SPARE_CLIENTS, f"the server takes {limit}, and {SPARE_CLIENTS} are left free"
    )
    if workload.clients is not None:
        return [Bound(max(1, workload.clients), "as asked"), server]
    vcpus = count_phrase(host.vcpus, "vCPU")
    bounds = [Bound(max(1, host.vcpus), f"one for each of {vcpus}, as Dataflow does"), server]
    if activity := workload.sm_activity:
        reason = (
            f"one process keeps {activity:.0%} of the multiprocessors busy, "
            "so more would find none free"
        )
        bounds.append(Bound(math.ceil(1 / max(_LEAST_ACTIVITY, activity)) + 1, reason))
    return bounds


def _most_that_fit(host: HostFacts, workload: Workload, ceiling: int) -> tuple[int, int]:
    """The most clients that fit into the memory, and the preferred percentage at which they do.

    (1, 100) where none fits.
    """
    for clients in range(ceiling, 0, -1):
        for percentage in _candidates(host, workload, clients):
            if memory.fits(host, workload, clients, percentage):
                return clients, percentage
    return 1, 100


# --- thread percentage ----------------------------------------------------------------------------


def _least_percentage(host: HostFacts) -> int:
    """The lowest percentage that leaves `LEAST_SMS` multiprocessors."""
    return 1 if not host.sm_count else min(100, math.ceil(100 * LEAST_SMS / host.sm_count))


def _candidates(host: HostFacts, workload: Workload, clients: int) -> list[int]:
    """Percentages to try, the preferred one first.

    200/N where one process is known to need no more, else 100; 100/N last.
    """
    if clients == 1 or is_before_volta(host.compute_capability):
        return [100]
    least, activity = _least_percentage(host), workload.sm_activity
    double, even = (max(least, min(100, math.ceil(share / clients))) for share in (200, 100))
    if activity is not None and activity <= double / 100:
        return [double, even]
    return [100, double, even]


def _percentage_reason(host: HostFacts, workload: Workload, clients: int, percentage: int) -> str:
    """Why the plan has this thread percentage."""
    if clients == 1:
        return "a client alone is never held back"
    if is_before_volta(host.compute_capability):
        return "GPUs before Volta have no shares"
    if percentage == 100:
        return (
            "no cap, as it is not known how much one process uses at a time, "
            "and a cap holds it back while the others pause"
        )
    if percentage == _least_percentage(host) and percentage > math.ceil(100 / clients):
        return f"the least that leaves {LEAST_SMS} multiprocessors of {host.sm_count}"
    too_large = "with larger contexts so many clients do not fit into the memory"
    if percentage != math.ceil(200 / clients):
        return f"100/N: {too_large}; a client alone is held back"
    if percentage == _candidates(host, workload, clients)[0]:
        return (
            "200/N: twice the even share, which one process does not fill, "
            "and its context is smaller"
        )
    return f"200/N: {too_large}"


# --- expected gain --------------------------------------------------------------------------------


def _speed_bounds(host: HostFacts, workload: Workload, clients: int) -> tuple[Bound, ...]:
    """Upper limits on the throughput, in multiples of one process alone. Each is at least 1."""
    bounds = [Bound(float(clients), count_phrase(clients, "process", "processes"))]
    if activity := workload.sm_activity:
        share = min(1.0, max(_LEAST_ACTIVITY, activity))
        reason = f"one process keeps {activity:.0%} of the multiprocessors busy"
        bounds.append(Bound(1 / share, reason))
    cores = workload.cores or 1.0
    used = (
        f"one process keeps {cores:.1f} cores busy"
        if workload.cores
        else "one core for each process"
    )
    reason = f"{count_phrase(host.vcpus, 'vCPU')}, {used}"
    bounds.append(Bound(max(1.0, host.vcpus / cores), reason))
    return tuple(bounds)
