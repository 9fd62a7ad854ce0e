"""A plan for sharing one GPU: (HostFacts, Workload) -> Plan. Pure.

Sources: the NVIDIA MPS guide ("When to use MPS": client limits, provisioning by 100/n and 100/(0.5
n)), and what was measured on H100 and H200 (docs/facts.md): a client's context shrinks with the
multiprocessors that it may use, shares are cut down to an even number of them, and processes that
each start a thread per core are up to 64 times slower.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple, TypeAlias

from provision.report.text import counted

SERVER_MIB = 74
"""GPU memory in use with a server and no client (measured, H100 and H200)."""
CONTEXT_BASE_MIB = 27
CONTEXT_MIB_PER_SM = 3.7
"""A light client's context is about 27 MiB + 3.7 MiB for each multiprocessor it may use: 517 MiB at
132, 144 at 32, 79 at 14, 72 at 12 (measured, H100 and H200). Of other GPUs it is an estimate."""
RESERVE_SHARE, RESERVE_MIB = 0.05, 512
"""Memory that a plan leaves alone."""
IN_USE_SHARE, IN_USE_MIB = 0.02, 1024
"""Memory that is not free although nobody runs: the driver's own, a server, a light client."""
SPARE_CLIENTS = 2
"""Clients that a plan leaves free below the server's limit: a probe, a debugger."""
LEAST_SMS = 2
"""A share that rounds to nothing fails with error 46 (k8s-device-plugin#1118: 16 % of 10
multiprocessors)."""
LEAST_ACTIVITY = 0.001
"""No activity is told finer than this: nvidia-smi says whole percents, their average a little
more."""
BUSY = 0.8
"""SM activity of one process above which sharing gains next to nothing."""
SMALL_LIMIT_MIB = 1024
SO_MANY_FIT = "so many fit into the GPU's memory"
NOT_ONE_FITS = "not even one fits into the GPU's memory"
DEFAULT_SHM_MIB = 64
"""Docker's /dev/shm; it sufficed for three clients (measured)."""
VOLTA = (7, 0)
HOPPER = (9, 0)
HOPPER_LEAST_SMS = 8
"""A client sees eight at 1, 2 and 3 % of 132 (measured, H200). Of other GPUs no such floor is
known, and none is counted on."""
ActivityKind: TypeAlias = Literal["sm", "time", ""]


@dataclass(frozen=True)
class HostFacts:
    """What the plan needs to know of GPU and machine. What could not be read is None."""

    gpu: str = ""
    driver: str = ""
    compute_capability: tuple[int, int] | None = None
    cuda: tuple[int, int] | None = None
    memory_total_mib: int | None = None
    memory_free_mib: int | None = None
    sm_count: int | None = None
    sm_source: Literal["driver", "table", ""] = ""
    vcpus: int = 1
    shm_mib: int | None = None
    compute_mode: str = ""
    mig: bool = False


@dataclass(frozen=True)
class Workload:
    """What one process needs. `activity` is the share of the GPU that one process alone keeps busy, from 0 to 1.

    `activity_kind` is `sm` where the GPU counted its multiprocessors, `time` where it told only
    that some kernel ran; the latter says nothing about how much of the GPU is left and bounds
    nothing.
    """

    clients: int | None = None
    peak_memory_mib: int | None = None
    activity: float | None = None
    activity_kind: ActivityKind = ""
    cores: float | None = None
    """CPU cores that one process keeps busy."""


class Bound(NamedTuple):
    """One limit on a number, and where it comes from."""

    value: float
    reason: str


class Advice(NamedTuple):
    """Something to know before the plan is followed. `stop`: MPS is the wrong tool, or cannot work."""

    level: Literal["note", "warn", "stop"]
    text: str


@dataclass(frozen=True)
class Plan:
    """The recommendation, each number with its reason."""

    clients: int
    clients_reason: str
    client_limit: int
    thread_percentage: int
    percentage_reason: str
    sms_per_client: int | None
    omp_threads: int
    context_mib: int | None
    expected_memory_mib: int | None
    memory_limit_mib: int | None
    """What each client may have when all get the same; a limit of this size may be enforced, and
    need not be."""
    tensorflow_limit_mib: int | None
    """The same budget for TensorFlow's logical device, which does not count the context."""
    speedup: Bound
    bounds: tuple[Bound, ...]
    advice: tuple[Advice, ...] = field(default=())

    @property
    def worthwhile(self) -> bool:
        """False where MPS is the wrong tool."""
        return not any(each.level == "stop" for each in self.advice)


def client_limit(compute_capability: tuple[int, int] | None, cuda: tuple[int, int] | None) -> int:
    """Contexts that a server takes: 16 before Volta, 48 up to CUDA 13.0 (measured: docs/facts.md), 60 from CUDA 13.1 on (MPS guide)."""
    if compute_capability is not None and compute_capability < VOLTA:
        return 16
    return 60 if cuda is not None and cuda >= (13, 1) else 48


def sms_at(
    percentage: float, sm_count: int, compute_capability: tuple[int, int] | None = None
) -> int:
    """Multiprocessors that a client sees: the share rounded down to an even number (measured: 25 % of 132 is 32, 30 % 38).

    Hopper goes no lower than `HOPPER_LEAST_SMS`.
    """
    share = int(sm_count * percentage / 100 + 1e-9)
    even = sm_count if percentage >= 100 else share // 2 * 2 if share >= LEAST_SMS else share
    return max(even, min(HOPPER_LEAST_SMS, sm_count)) if compute_capability == HOPPER else even


def context_mib(sms: int) -> int:
    """GPU memory of a light client's context that may use so many multiprocessors."""
    return math.ceil(CONTEXT_BASE_MIB + CONTEXT_MIB_PER_SM * sms)


@cache
def _table() -> Sequence[tuple[re.Pattern[str], int]]:
    text = resources.files("provision.mps.plan").joinpath("gpus.toml").read_text(encoding="utf-8")
    return tuple((re.compile(row["name"]), row["sms"]) for row in tomllib.loads(text)["gpu"])


def sms_of(name: str) -> int | None:
    """Multiprocessors of a GPU by its name, from the packaged table; None for an unknown one."""
    return next((sms for pattern, sms in _table() if pattern.search(name)), None)


def plan(host: HostFacts, work: Workload) -> Plan:
    """The recommendation for `work` on `host`. Never raises; what cannot be had becomes advice."""
    limit = client_limit(host.compute_capability, host.cuda)
    most = _most(host, work, limit)
    ceiling = max(1, min(int(bound.value) for bound in most))
    clients, percentage = _fitting(host, work, ceiling)
    tightest = min(most, key=lambda bound: bound.value)
    sms = (
        None
        if host.sm_count is None
        else sms_at(percentage, host.sm_count, host.compute_capability)
    )
    context = None if sms is None else context_mib(sms)
    room = _fits(host, work, clients, percentage)
    budget = _budget_mib(host, clients) if room else None
    bounds = _speed_bounds(host, work, clients)
    made = Plan(
        clients=clients,
        clients_reason=NOT_ONE_FITS
        if not room
        else tightest.reason
        if clients == ceiling
        else SO_MANY_FIT,
        client_limit=limit,
        thread_percentage=percentage,
        percentage_reason=_why_percentage(host, work, clients, percentage),
        sms_per_client=sms,
        omp_threads=max(1, host.vcpus // clients),
        context_mib=context,
        expected_memory_mib=_expected_mib(host, work, clients, percentage),
        memory_limit_mib=budget,
        tensorflow_limit_mib=None if budget is None else max(0, budget - (context or 0)),
        speedup=min(bounds, key=lambda bound: bound.value),
        bounds=bounds,
    )
    return replace(made, advice=_advice(host, work, made))


# --- how many -------------------------------------------------------------------------------------


def _most(host: HostFacts, work: Workload, limit: int) -> list[Bound]:
    """Upper limits on the number of clients, memory aside. A wish is held to what cannot be exceeded, not to what is wise."""
    bounds = [
        Bound(limit - SPARE_CLIENTS, f"the server takes {limit}, and {SPARE_CLIENTS} are left free")
    ]
    if work.clients is not None:
        return [Bound(max(1, work.clients), "as asked"), *bounds]
    bounds.insert(
        0,
        Bound(
            max(1, host.vcpus), f"one for each of {counted(host.vcpus, 'vCPU')}, as Dataflow does"
        ),
    )
    if work.activity_kind == "sm" and work.activity:
        reason = f"one process keeps {work.activity:.0%} of the multiprocessors busy, so more would find none free"
        bounds.append(Bound(math.ceil(1 / max(LEAST_ACTIVITY, work.activity)) + 1, reason))
    return bounds


def _reserve_mib(host: HostFacts) -> float:
    return (host.memory_total_mib or 0) * RESERVE_SHARE + RESERVE_MIB


def _expected_mib(host: HostFacts, work: Workload, clients: int, percentage: int) -> int | None:
    """Memory of the server and so many clients. A peak holds a context of full size, which shrinks with the percentage."""
    if host.sm_count is None:
        return None if work.peak_memory_mib is None else SERVER_MIB + clients * work.peak_memory_mib
    context = context_mib(sms_at(percentage, host.sm_count, host.compute_capability))
    data = max(0, (work.peak_memory_mib or 0) - context_mib(host.sm_count))
    return SERVER_MIB + clients * (context + data)


def _available_mib(host: HostFacts) -> float | None:
    free = host.memory_total_mib if host.memory_free_mib is None else host.memory_free_mib
    return None if free is None else free - _reserve_mib(host)


def _budget_mib(host: HostFacts, clients: int) -> int | None:
    """The even share of what is free after the reserve and the server; None where that is not known, or no context fits into it."""
    available = _available_mib(host)
    share = None if available is None else int((available - SERVER_MIB) // clients)
    return share if share is not None and share > CONTEXT_BASE_MIB else None


def _fits(host: HostFacts, work: Workload, clients: int, percentage: int) -> bool:
    expected, available = _expected_mib(host, work, clients, percentage), _available_mib(host)
    return expected is None or available is None or expected <= available


def _fitting(host: HostFacts, work: Workload, ceiling: int) -> tuple[int, int]:
    """The most clients that fit into the memory, and the highest percentage at which they do; one client where none fits."""
    for clients in range(ceiling, 0, -1):
        for percentage in _candidates(host, work, clients):
            if _fits(host, work, clients, percentage):
                return clients, percentage
    return 1, 100


# --- which share ----------------------------------------------------------------------------------


def _least_percentage(host: HostFacts) -> int:
    return 1 if not host.sm_count else min(100, math.ceil(100 * LEAST_SMS / host.sm_count))


def _candidates(host: HostFacts, work: Workload, clients: int) -> list[int]:
    """Percentages to try, the preferred one first: 200/N where one process is known to need no more, else 100; 100/N last."""
    if clients == 1 or (host.compute_capability is not None and host.compute_capability < VOLTA):
        return [100]
    double, single = (
        max(_least_percentage(host), min(100, math.ceil(share / clients))) for share in (200, 100)
    )
    known = (
        work.activity_kind == "sm" and work.activity is not None and work.activity <= double / 100
    )
    return [double, single] if known else [100, double, single]


def _why_percentage(host: HostFacts, work: Workload, clients: int, percentage: int) -> str:
    if clients == 1:
        return "a client alone is never held back"
    if host.compute_capability is not None and host.compute_capability < VOLTA:
        return "GPUs before Volta know no shares"
    if percentage == 100:
        return "no cap, as it is not known how much one process uses at a time, and a cap holds it back while the others pause"
    if percentage == _least_percentage(host) and percentage > math.ceil(100 / clients):
        return f"the least that leaves {LEAST_SMS} multiprocessors of {host.sm_count}"
    if percentage == math.ceil(200 / clients):
        if percentage in _candidates(host, work, clients)[:1]:
            return "200/N: twice the even share, which one process does not fill, and its context is smaller"
        return "200/N: with larger contexts so many clients do not fit into the memory"
    return "100/N: with larger contexts so many clients do not fit into the memory; a client alone is held back"


# --- what it can bring ----------------------------------------------------------------------------


def _speed_bounds(host: HostFacts, work: Workload, clients: int) -> tuple[Bound, ...]:
    """What the work of all processes together cannot be faster by than one process alone. Each is at least 1."""
    bounds = [Bound(float(clients), counted(clients, "process", "processes"))]
    if work.activity_kind == "sm" and work.activity:
        share = min(1.0, max(LEAST_ACTIVITY, work.activity))
        bounds.append(
            Bound(1 / share, f"one process keeps {work.activity:.0%} of the multiprocessors busy")
        )
    cores = work.cores or 1.0
    kept = (
        f"one process keeps {cores:.1f} cores busy" if work.cores else "one core for each process"
    )
    bounds.append(Bound(max(1.0, host.vcpus / cores), f"{counted(host.vcpus, 'vCPU')}, {kept}"))
    return tuple(bounds)


def _advice(host: HostFacts, work: Workload, made: Plan) -> tuple[Advice, ...]:
    found = (
        *_impossible(host),
        *_wrong_tool(work, made),
        *_shortages(host, work, made),
        *_in_use(host),
        *_unknowns(host, work),
    )
    return tuple(sorted(found, key=lambda each: ("stop", "warn", "note").index(each.level)))


def _impossible(host: HostFacts) -> list[Advice]:
    found = []
    if host.mig:
        found.append(
            Advice(
                "stop",
                "MIG is on: this toolkit plans for whole GPUs; turn it off with nvidia-smi -mig 0",
            )
        )
    if host.compute_capability is not None and host.compute_capability < VOLTA:
        found.append(
            Advice(
                "stop",
                "the GPU is older than Volta: its MPS server does not start in a container, and clients are not isolated",
            )
        )
    if host.compute_mode.replace("_", "").lower() == "prohibited":
        found.append(
            Advice(
                "stop",
                "the compute mode is PROHIBITED: nothing may use the GPU until nvidia-smi -c 0 is run",
            )
        )
    return found


def _wrong_tool(work: Workload, made: Plan) -> list[Advice]:
    found = []
    if work.activity_kind == "sm" and work.activity is not None and work.activity > BUSY:
        text = f"one process alone keeps {work.activity:.0%} of the multiprocessors busy: more processes add 1.0 to 1.2 times at best"
        found.append(Advice("stop", text))
    if made.clients == 1 and made.clients_reason != NOT_ONE_FITS:
        alone = (
            "one process"
            if made.clients_reason != SO_MANY_FIT
            else "only one process fits into the memory: it"
        )
        found.append(
            Advice("stop", f"{alone} has nothing to share the GPU with, MPS brings nothing")
        )
    elif made.clients > 1 and not found:
        text = "one process with larger batches, or one shared model (Beam: large_model, model_copies), is the first thing to try"
        found.append(Advice("note", text))
    return found


def _shortages(host: HostFacts, work: Workload, made: Plan) -> list[Advice]:
    found = []
    if work.clients is not None and made.clients < work.clients:
        possible = "1 is possible" if made.clients == 1 else f"{made.clients} are possible"
        found.append(
            Advice(
                "warn", f"{work.clients} clients were asked for, {possible}: {made.clients_reason}"
            )
        )
    if made.clients > host.vcpus:
        found.append(
            Advice(
                "warn",
                f"{made.clients} processes on {counted(host.vcpus, 'vCPU')} slow one another down before they reach the GPU",
            )
        )
    if (
        host.sm_count is not None
        and work.peak_memory_mib is not None
        and work.peak_memory_mib < (whole := context_mib(host.sm_count))
    ):
        instead = f"about {whole} MiB with {host.sm_count} multiprocessors; a peak includes it, so that is counted"
        found.append(
            Advice(
                "warn",
                f"a peak of {work.peak_memory_mib} MiB is less than one context takes, {instead}",
            )
        )
    if not _fits(host, work, made.clients, made.thread_percentage):
        needed, left = made.expected_memory_mib, max(0, int(_available_mib(host) or 0))
        found.append(
            Advice(
                "stop",
                f"even one process does not fit: it needs {needed} MiB, {left} MiB are free after the reserve",
            )
        )
    if made.memory_limit_mib is not None and made.memory_limit_mib < SMALL_LIMIT_MIB:
        found.append(
            Advice(
                "warn",
                f"{made.memory_limit_mib} MiB for each client is little: a framework takes 500 MiB before any data",
            )
        )
    if host.shm_mib is not None and host.shm_mib <= DEFAULT_SHM_MIB and made.clients > 3:
        found.append(
            Advice(
                "warn",
                f"shared memory (/dev/shm) of {host.shm_mib} MiB was seen to suffice for three clients: set worker.shm_size to 1g",
            )
        )
    return found


def _in_use(host: HostFacts) -> list[Advice]:
    """Running workers, one's own included, are taken for memory that is not there."""
    total, free = host.memory_total_mib, host.memory_free_mib
    if total is None or free is None or total - free <= total * IN_USE_SHARE + IN_USE_MIB:
        return []
    text = f"{total - free:,} MiB of the GPU's memory are in use now, and what is free is counted: ask again when those programs have ended"
    return [Advice("note", text)]


def _unknowns(host: HostFacts, work: Workload) -> list[Advice]:
    found = []
    if work.activity_kind == "time":
        text = "the GPU told only in how much of the time a kernel ran, not how much of it was used: the gain cannot be foretold from it"
        found.append(Advice("note", text))
    elif not work.activity_kind:
        found.append(
            Advice(
                "note",
                'how busy one process keeps the GPU is not known: --measure "python x.py" runs it once and looks',
            )
        )
    if work.peak_memory_mib is None:
        found.append(
            Advice(
                "note",
                "what one process needs is not known, so the memory counts contexts alone: --peak-memory or --measure",
            )
        )
    if host.sm_count is None:
        found.append(
            Advice(
                "note",
                "the number of multiprocessors is not known: shares and contexts are not counted",
            )
        )
    return found
