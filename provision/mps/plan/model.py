"""The records of a plan: facts of the host, needs of one process, the recommendation. Pure.

The field names are keys of the document of `mps.plan --json`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

ActivityKind: TypeAlias = Literal["sm", "time", ""]


@dataclass(frozen=True)
class HostFacts:
    """The GPU and the machine it is in. A fact that could not be read is None."""

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
    """What one process needs. A number that is not known is None."""

    clients: int | None = None
    """The number of processes that the caller asks for."""
    peak_memory_mib: int | None = None
    activity: float | None = None
    """The share of the GPU that one process alone keeps busy, from 0 to 1."""
    activity_kind: ActivityKind = ""
    """`sm`: the GPU counted busy multiprocessors. `time`: it reported only that some kernel ran,
    which does not show how much of the GPU is left and bounds nothing."""
    cores: float | None = None
    """CPU cores that one process keeps busy."""

    @property
    def sm_activity(self) -> float | None:
        """The share of the multiprocessors that one process keeps busy; None where not counted."""
        return self.activity if self.activity_kind == "sm" else None


class Bound(NamedTuple):
    """An upper limit on a number, and its reason."""

    value: float
    reason: str


class Advice(NamedTuple):
    """What to know before following the plan. `stop`: MPS is the wrong tool, or cannot work."""

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
    """The even share of the memory. A limit of this size for each client may be enforced; none is
    required."""
    tensorflow_limit_mib: int | None
    """The same share for TensorFlow's logical device, which does not count the context."""
    speedup: Bound
    bounds: tuple[Bound, ...]
    advice: tuple[Advice, ...] = field(default=())

    @property
    def worthwhile(self) -> bool:
        """False where MPS is the wrong tool."""
        return not any(advice.level == "stop" for advice in self.advice)
