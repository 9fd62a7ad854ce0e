"""Checks of what each client gets: multiprocessors and memory. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from provision.mps.doctor.evidence import CudaProcess, Evidence
from provision.mps.doctor.finding import Finding, fail, ok, unknown, warn
from provision.mps.plan.gpu_limits import LEAST_SMS, sms_at, sms_of
from provision.mps.status.control_tool import read_memory_limit_mib
from provision.report.text import count_phrase

MIN_FREE_SHARE = 0.05
"""Share of the GPU's memory below which the next client finds none."""
LARGEST_STEP = 8
"""Multiprocessors by which a share may come out smaller than predicted: not every GPU is known to
have steps of two."""
_SEES = re.compile(r"^attached: .* sees (\d{1,5}) multiprocessors")

_RAISE_SHARE = "set provision.mps.thread_percentage higher: invoke mps.plan"


# --- multiprocessors ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Multiprocessors:
    """How many multiprocessors a client has. None where it is not known."""

    seen: int | None
    """By the probe client: rounding, minima and its own variables are included."""
    predicted: int | None
    """By the percentage and the GPU's name."""
    total: int | None
    """Of the GPU, by its name."""

    def __str__(self) -> str:
        number = self.predicted if self.seen is None else self.seen
        if number is None:
            return ""
        if self.total is None:
            return count_phrase(number, "multiprocessor")
        return f"{number} of {self.total} multiprocessors"


def share(evidence: Evidence) -> Finding:
    """The percentage in force gives a client two multiprocessors or more, and a lone client all."""
    percentage = evidence.status.thread_percentage
    if percentage is None:
        return unknown("the thread percentage is not known")
    sms = _multiprocessors(evidence, percentage)
    return (
        _predicted_share(sms, percentage)
        or _seen_share(sms, percentage)
        or _lone_client(evidence, percentage)
        or ok(f"{percentage:g} %{_seen_or_predicted(sms)}")
    )


def _seen_or_predicted(sms: _Multiprocessors) -> str:
    """`, a client sees 32 of 132 multiprocessors`, as far as it is known."""
    if not str(sms):
        return ""
    return f", {sms}" if sms.seen is None else f", a client sees {sms}"


def _multiprocessors(evidence: Evidence, percentage: float) -> _Multiprocessors:
    match = _SEES.search(evidence.probe)
    seen = int(match[1]) if match else None
    gpus = evidence.status.gpus
    total = sms_of(gpus[0].name) if gpus else None
    if total is None:
        return _Multiprocessors(seen, None, None)
    predicted = sms_at(percentage, total, gpus[0].compute_capability)
    return _Multiprocessors(seen, predicted, total)


def _predicted_share(sms: _Multiprocessors, percentage: float) -> Finding | None:
    """A share that is too small, or not known, where no client has seen it."""
    if sms.seen is not None:
        return None
    if sms.predicted is None and percentage < 100:
        return unknown(
            f"it is not known how many multiprocessors {percentage:g} % are",
            "no client reported it, and the GPU's name is not known",
            "invoke dev.exec -- python3 -c 'import ctypes'",
        )
    if sms.predicted is not None and sms.predicted < LEAST_SMS:
        return fail(
            "the share rounds to nothing",
            f"{percentage:g} % of {sms.total} is less than {LEAST_SMS}: users report that contexts"
            " fail with error 46",
            _RAISE_SHARE,
        )
    return None


def _seen_share(sms: _Multiprocessors, percentage: float) -> Finding | None:
    """A share that is smaller than predicted, or too small, where a client has seen it."""
    if sms.seen is None:
        return None
    tolerance = 0 if percentage >= 100 else LARGEST_STEP
    if sms.predicted is not None and sms.seen + tolerance < sms.predicted:
        return warn(
            f"a client sees {sms}",
            f"{percentage:g} % are {sms.predicted}: a variable of the container's lowers it, or the"
            " server has another share than its daemon",
            "unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in worker.env and in the image; else invoke"
            " mps.disable, then mps.enable",
        )
    if sms.seen < LEAST_SMS:
        return warn(
            f"a client sees {sms}",
            f"fewer than {LEAST_SMS}: users report that a share that rounds to nothing fails with"
            " error 46",
            _RAISE_SHARE,
        )
    return None


def _lone_client(evidence: Evidence, percentage: float) -> Finding | None:
    """A single client that may not use the whole GPU."""
    if percentage >= 100 or evidence.client_count != 1:
        return None
    return warn(
        f"one client, held to {percentage:g} %",
        "no other client uses the rest",
        "unset provision.mps.thread_percentage, then invoke mps.enable",
    )


# --- memory ---------------------------------------------------------------------------------------


def memory(evidence: Evidence) -> Finding:
    """There is memory left, limits fit the card, and no framework takes all of it."""
    first = evidence.status.gpus[0]
    free, total = first.memory_free_mib, first.memory_total_mib
    if free is None or total is None:
        return unknown("the GPU's memory is not known")
    if free < total * MIN_FREE_SHARE:
        return warn(
            "the GPU's memory is nearly used up",
            f"{free} of {total} MiB are free",
            "run fewer workers: invoke mps.plan --peak-memory=…",
        )
    limit = evidence.status.memory_limit
    of_each = f", {limit} for each client" if limit else ""
    return (
        _limits_exceed_card(evidence, total)
        or _greedy_process(evidence)
        or _greedy_container(evidence)
        or ok(f"{free:,} of {total:,} MiB free{of_each}")
    )


def _limits_exceed_card(evidence: Evidence, total_mib: int) -> Finding | None:
    """The limits of all clients together are larger than the card."""
    number, limit = evidence.client_count, evidence.status.memory_limit or ""
    limit_mib = read_memory_limit_mib(limit)
    if limit_mib is None or limit_mib * number <= total_mib:
        return None
    return warn(
        f"{count_phrase(number, 'client')} may take {limit} each",
        f"that is {limit_mib * number:,} MiB, and the card has {total_mib:,}: the last ones run out"
        " of memory",
        f"set provision.mps.memory_limit to what invoke mps.plan --clients={number} says",
    )


def _greedy_process(evidence: Evidence) -> Finding | None:
    """A process whose framework takes the whole card at its start."""
    for process in evidence.cuda_processes:
        if _takes_card_with_tensorflow(process):
            return warn(
                f"process {process.pid} runs TensorFlow without TF_FORCE_GPU_ALLOW_GROWTH=true",
                "TensorFlow takes the whole card at its start, unless the program itself sets"
                " memory growth",
                "start it again with dev.exec or dev.run, or with TF_FORCE_GPU_ALLOW_GROWTH=true",
            )
        if _takes_card_with_jax(process):
            return warn(
                f"process {process.pid} runs JAX without XLA_PYTHON_CLIENT_PREALLOCATE=false",
                "JAX takes most of what is free at its start, so the first worker gets more than"
                " the next",
                "set XLA_PYTHON_CLIENT_PREALLOCATE: 'false' in worker.env, then invoke dev.up and"
                " start it again",
            )
    return None


def _takes_card_with_tensorflow(process: CudaProcess) -> bool:
    growth = process.environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "")
    return bool(growth or "tensorflow" in process.libraries) and not _is_true(growth)


def _takes_card_with_jax(process: CudaProcess) -> bool:
    variables: Mapping[str, str] = process.environment
    preallocate = variables.get("XLA_PYTHON_CLIENT_PREALLOCATE")
    if "XLA_PYTHON_CLIENT_MEM_FRACTION" in variables:
        return False
    return _is_true(preallocate) if preallocate else "jaxlib" in process.libraries


def _greedy_container(evidence: Evidence) -> Finding | None:
    """A container whose next TensorFlow program takes the whole card."""
    if _is_true(evidence.environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "")):
        return None
    return warn(
        "TF_FORCE_GPU_ALLOW_GROWTH is not set",
        "TensorFlow takes the whole card at its start, and the next worker gets nothing",
        "invoke dev.up   (sets it), and XLA_PYTHON_CLIENT_PREALLOCATE=false for JAX",
    )


def _is_true(text: str) -> bool:
    return text.strip().lower() in {"true", "1"}
