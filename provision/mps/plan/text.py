"""A plan as lines for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from provision.mps.plan.measure import Measurement
from provision.mps.plan.model import HostFacts, Plan, Workload
from provision.report.checks import wrapped
from provision.report.text import count_phrase

_INDENT = 20
_OMP_REASON = "a thread for each core in every process was up to 64 times slower"


def plan_lines(
    facts: HostFacts,
    workload: Workload,
    measurement: Measurement | None,
    plan: Plan,
    *,
    how_to_apply: str,
    width: int,
) -> list[str]:
    """The plan in lines of at most `width` columns: what it knows, its numbers, its advice."""
    rows = [
        *_host_rows(facts),
        ("one process", _workload_text(workload, measurement)),
        ("", ""),
        *_client_rows(facts, plan),
        *_memory_rows(plan),
        *_throughput_rows(workload, plan),
        ("to apply", how_to_apply),
    ]
    lines = [_labelled(label, text, width) for label, text in rows]
    if not plan.worthwhile:
        lines += ["", "MPS is the wrong tool here; the lines marked stop give the reasons."]
    if plan.advice:
        lines += ["", *(_labelled(item.level, item.text, width) for item in plan.advice)]
    return lines


def how_to_apply(plan: Plan) -> str:
    """The settings and the task that put the plan into effect."""
    if plan.thread_percentage == 100:
        return "leave provision.mps.thread_percentage unset, then invoke mps.enable"
    percentage = plan.thread_percentage
    return f"set provision.mps.thread_percentage to {percentage}, then invoke mps.enable"


def _labelled(label: str, text: str, width: int) -> str:
    return f"{label:<{_INDENT}}" + "\n".join(wrapped(text, _INDENT, width=width)) if label else ""


def _host_rows(facts: HostFacts) -> list[tuple[str, str]]:
    sms = "an unknown number of" if facts.sm_count is None else str(facts.sm_count)
    source = " (by its name)" if facts.sm_source == "table" else ""
    capability, cuda = _dotted(facts.compute_capability), _dotted(facts.cuda)
    gpu = (
        f"{facts.gpu}, compute capability {capability}, {sms} multiprocessors{source}, "
        f"CUDA {cuda}, driver {facts.driver}"
    )
    return [
        ("GPU", gpu),
        ("memory", f"{_mib(facts.memory_total_mib)}, {_mib(facts.memory_free_mib)} free"),
        ("machine", f"{count_phrase(facts.vcpus, 'vCPU')}, /dev/shm {_mib(facts.shm_mib)}"),
    ]


def _workload_text(workload: Workload, measurement: Measurement | None) -> str:
    known = []
    if workload.peak_memory_mib is not None:
        known.append(f"{_mib(workload.peak_memory_mib)} at its peak")
    if workload.activity is not None:
        kind = (
            "SM activity, counted by the GPU"
            if workload.activity_kind == "sm"
            else "of the time some kernel ran (time utilisation, not SM activity)"
        )
        known.append(f"{workload.activity:.0%} {kind}")
    if workload.cores is not None:
        known.append(f"{workload.cores:.1f} cores")
    if measurement is not None:
        known.append(f"measured in a run of {measurement.seconds:.1f} s")
    return ", ".join(known) or "nothing is known about it"


def _client_rows(facts: HostFacts, plan: Plan) -> list[tuple[str, str]]:
    share = f"{plan.thread_percentage} %"
    if plan.sms_per_client is not None:
        share += f", {plan.sms_per_client} of {facts.sm_count} multiprocessors"
    limit = f"limit of the server: {plan.client_limit}"
    return [
        ("clients", f"{plan.clients}: {plan.clients_reason} ({limit})"),
        ("thread percentage", f"{share}: {plan.percentage_reason}"),
    ]


def _memory_rows(plan: Plan) -> list[tuple[str, str]]:
    expected, limit, tensorflow = (
        _mib(value)
        for value in (plan.expected_memory_mib, plan.memory_limit_mib, plan.tensorflow_limit_mib)
    )
    if plan.expected_memory_mib is not None:
        expected += " for all"
    if plan.context_mib is not None:
        expected += f", of it {plan.context_mib} MiB for the context of each"
    if plan.memory_limit_mib is not None:
        limit += " each when shared evenly; none is needed where all workers are yours"
    if plan.tensorflow_limit_mib is not None:
        tensorflow += " for its logical device, which leaves out the context"
    return [
        ("expected memory", expected),
        ("memory limit", limit),
        ("TensorFlow limit", tensorflow),
    ]


def _throughput_rows(workload: Workload, plan: Plan) -> list[tuple[str, str]]:
    variables = "OMP_NUM_THREADS, MKL_NUM_THREADS, OPENBLAS_NUM_THREADS"
    usual = "" if workload.sm_activity is None else ", usually 0.75 to 0.95 of that"
    times = f"at most {plan.speedup.value:.1f} times one process"
    return [
        ("OpenMP threads", f"{plan.omp_threads} for each ({variables}): {_OMP_REASON}"),
        ("throughput", f"{times}{usual} ({plan.speedup.reason})"),
    ]


def _dotted(version: Sequence[int] | None) -> str:
    return ".".join(map(str, version)) if version else "unknown"


def _mib(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,} MiB"
