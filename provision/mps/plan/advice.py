"""What to know before following a plan: obstacles, shortages, unknowns. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from provision.mps.plan import memory
from provision.mps.plan.gpu_limits import context_mib, is_before_volta
from provision.mps.plan.model import Advice, HostFacts, Plan, Workload
from provision.report.text import count_phrase

BUSY = 0.8
"""SM activity of one process above which sharing gains next to nothing."""
DEFAULT_SHM_MIB = 64
"""Docker's /dev/shm; it sufficed for three clients (measured)."""
MEMORY_FITS = "so many fit into the GPU's memory"
"""The reason of a plan whose number of clients is limited by memory."""
MEMORY_FITS_NONE = "not even one fits into the GPU's memory"
"""The reason of a plan whose single client is expected to run out of memory."""
_SMALL_LIMIT_MIB = 1024
_IN_USE_SHARE, _IN_USE_MIB = 0.02, 1024
"""Memory that is in use although no program runs: the driver's own, a server, a light client."""
_LEVELS = ("stop", "warn", "note")


def advise(host: HostFacts, workload: Workload, plan: Plan) -> tuple[Advice, ...]:
    """All advice on `plan`, the most serious first."""
    advice = (
        *_obstacles(host),
        *_wrong_tool(workload, plan),
        *_client_shortages(host, workload, plan),
        *_memory_shortages(host, workload, plan),
        *_memory_in_use(host),
        *_unknowns(host, workload),
    )
    return tuple(sorted(advice, key=lambda item: _LEVELS.index(item.level)))


def _obstacles(host: HostFacts) -> Iterator[Advice]:
    """Properties of the host with which MPS cannot work."""
    if host.mig:
        text = "MIG is on, and only whole GPUs are planned for; turn it off with nvidia-smi -mig 0"
        yield Advice("stop", text)
    if is_before_volta(host.compute_capability):
        text = (
            "the GPU is older than Volta: its MPS server does not start in a container, "
            "and clients are not isolated"
        )
        yield Advice("stop", text)
    if host.compute_mode.replace("_", "").lower() == "prohibited":
        text = (
            "the compute mode is PROHIBITED: nothing runs on the GPU until nvidia-smi -c 0 is run"
        )
        yield Advice("stop", text)


def _wrong_tool(workload: Workload, plan: Plan) -> Iterator[Advice]:
    """Workloads for which MPS brings nothing, and what to try before it."""
    activity = workload.sm_activity
    is_busy = activity is not None and activity > BUSY
    if is_busy:
        text = (
            f"one process alone keeps {activity:.0%} of the multiprocessors busy: "
            "more processes add 1.0 to 1.2 times at best"
        )
        yield Advice("stop", text)
    if plan.clients == 1 and plan.clients_reason == MEMORY_FITS:
        text = "only one process fits into the memory: it has nothing to share the GPU with"
        yield Advice("stop", f"{text}, MPS brings nothing")
    elif plan.clients == 1 and plan.clients_reason != MEMORY_FITS_NONE:
        yield Advice("stop", "one process has nothing to share the GPU with, MPS brings nothing")
    elif plan.clients > 1 and not is_busy:
        text = (
            "one process with larger batches, or one shared model (Beam: large_model, "
            "model_copies), is the first thing to try"
        )
        yield Advice("note", text)


def _client_shortages(host: HostFacts, workload: Workload, plan: Plan) -> Iterator[Advice]:
    """Fewer clients than asked for, or more than the machine's cores and /dev/shm carry."""
    if workload.clients is not None and plan.clients < workload.clients:
        possible = "1 is possible" if plan.clients == 1 else f"{plan.clients} are possible"
        text = f"{workload.clients} clients were asked for, {possible}: {plan.clients_reason}"
        yield Advice("warn", text)
    if plan.clients > host.vcpus:
        vcpus = count_phrase(host.vcpus, "vCPU")
        text = (
            f"{plan.clients} processes on {vcpus} slow one another down before they reach the GPU"
        )
        yield Advice("warn", text)
    if host.shm_mib is not None and host.shm_mib <= DEFAULT_SHM_MIB and plan.clients > 3:
        text = (
            f"shared memory (/dev/shm) of {host.shm_mib} MiB sufficed for three clients when "
            "measured: set worker.shm_size to 1g"
        )
        yield Advice("warn", text)


def _memory_shortages(host: HostFacts, workload: Workload, plan: Plan) -> Iterator[Advice]:
    """Too little GPU memory for one process, or a peak that cannot be right."""
    peak = workload.peak_memory_mib
    context = None if host.sm_count is None else context_mib(host.sm_count)
    if peak is not None and context is not None and peak < context:
        text = (
            f"a peak of {peak} MiB is less than one context takes, about {context} MiB with "
            f"{host.sm_count} multiprocessors; a peak includes it, so that is counted"
        )
        yield Advice("warn", text)
    if not memory.fits(host, workload, plan.clients, plan.thread_percentage):
        free = max(0, int(memory.available_mib(host) or 0))
        text = (
            f"even one process does not fit: it needs {plan.expected_memory_mib} MiB, "
            f"{free} MiB are free after the reserve"
        )
        yield Advice("stop", text)
    if plan.memory_limit_mib is not None and plan.memory_limit_mib < _SMALL_LIMIT_MIB:
        text = (
            f"{plan.memory_limit_mib} MiB for each client is little: "
            "a framework takes 500 MiB before any data"
        )
        yield Advice("warn", text)


def _memory_in_use(host: HostFacts) -> Iterator[Advice]:
    """A note where running programs, the user's own workers included, reduce the free memory."""
    total, free = host.memory_total_mib, host.memory_free_mib
    if total is None or free is None or total - free <= total * _IN_USE_SHARE + _IN_USE_MIB:
        return
    text = (
        f"{total - free:,} MiB of the GPU's memory are in use now, and only free memory is "
        "counted: plan again when those programs have ended"
    )
    yield Advice("note", text)


def _unknowns(host: HostFacts, workload: Workload) -> Iterator[Advice]:
    """What the plan does not know, and how to find it out."""
    if workload.activity_kind == "time":
        text = (
            "the GPU reported only how much of the time a kernel ran, not how much of it was "
            "used: the gain cannot be predicted from it"
        )
        yield Advice("note", text)
    elif not workload.activity_kind:
        text = (
            "how busy one process keeps the GPU is not known: "
            '--measure "python x.py" runs it once and measures'
        )
        yield Advice("note", text)
    if workload.peak_memory_mib is None:
        text = (
            "what one process needs is not known, so the memory counts contexts alone: "
            "--peak-memory or --measure"
        )
        yield Advice("note", text)
    if host.sm_count is None:
        text = "the number of multiprocessors is not known: shares and contexts are not counted"
        yield Advice("note", text)
