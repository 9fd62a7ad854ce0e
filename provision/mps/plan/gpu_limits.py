"""What one GPU allows: clients of a server, multiprocessors of a share, size of a context. Pure.

Sources: the NVIDIA MPS guide (client limits) and measurements on H100 and H200 (docs/facts.md): a
client's context shrinks with the multiprocessors it may use, and shares are rounded down to an even
number of multiprocessors.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

VOLTA = (7, 0)
HOPPER = (9, 0)
HOPPER_LEAST_SMS = 8
"""A client sees eight multiprocessors at 1, 2 and 3 % of 132 (measured, H200). Other GPUs are
assumed to have no such floor."""
LEAST_SMS = 2
"""A share that rounds to no multiprocessor fails with error 46 (k8s-device-plugin#1118: 16 % of
10)."""
SPARE_CLIENTS = 2
"""Clients that a plan leaves free below the server's limit: a probe, a debugger."""
CONTEXT_BASE_MIB = 27
CONTEXT_MIB_PER_SM = 3.7
"""A light client's context takes about 27 MiB + 3.7 MiB for each multiprocessor it may use: 517 MiB
at 132, 144 at 32, 79 at 14, 72 at 12 (measured, H100 and H200). For other GPUs it is an
estimate."""
_ROUNDING = 1e-9
"""Keeps a share that is a whole number of multiprocessors from being rounded down."""


def is_before_volta(compute_capability: tuple[int, int] | None) -> bool:
    """True where the GPU is known to be older than Volta, which has no shares and no isolation."""
    return compute_capability is not None and compute_capability < VOLTA


def client_limit(compute_capability: tuple[int, int] | None, cuda: tuple[int, int] | None) -> int:
    """The number of contexts that a server takes.

    16 before Volta, 48 up to CUDA 13.0 (measured: docs/facts.md), 60 from CUDA 13.1 on (MPS guide).
    """
    if is_before_volta(compute_capability):
        return 16
    return 60 if cuda is not None and cuda >= (13, 1) else 48


def sms_at(
    percentage: float, sm_count: int, compute_capability: tuple[int, int] | None = None
) -> int:
    """The number of multiprocessors that a client sees at a thread percentage.

    The share is rounded down to an even number (measured: 25 % of 132 is 32, 30 % is 38). On Hopper
    it is at least `HOPPER_LEAST_SMS`.
    """
    share = int(sm_count * percentage / 100 + _ROUNDING)
    even = sm_count if percentage >= 100 else share // 2 * 2 if share >= LEAST_SMS else share
    return max(even, min(HOPPER_LEAST_SMS, sm_count)) if compute_capability == HOPPER else even


def context_mib(sms: int) -> int:
    """GPU memory of a light client's context that may use `sms` multiprocessors."""
    return math.ceil(CONTEXT_BASE_MIB + CONTEXT_MIB_PER_SM * sms)


def sms_of(name: str) -> int | None:
    """The multiprocessors of a GPU model by its name; None for an unknown one."""
    return next((sms for pattern, sms in _known_gpus() if pattern.search(name)), None)


@cache
def _known_gpus() -> Sequence[tuple[re.Pattern[str], int]]:
    text = (Path(__file__).parent / "gpus.toml").read_text(encoding="utf-8")
    return tuple((re.compile(row["name"]), row["sms"]) for row in tomllib.loads(text)["gpu"])
