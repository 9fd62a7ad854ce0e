"""Advice: how to share the GPU, and what an error text means."""

from __future__ import annotations

import codecs
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from provision.commands.mps.shared.fetch_status import fetch_status
from provision.commands.mps.shared.gpu_users import check_gpu_unused, describe_gpu_users
from provision.commands.shared import convergence, remote_exec
from provision.commands.shared.project_files import bring_project
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import (
    EXIT_FAILED,
    CommandFailed,
    ProvisionError,
    Unreachable,
    UsageError,
)
from provision.core.model import Host, Note, Transport
from provision.mps.explain import Match, explain
from provision.mps.plan import host_facts
from provision.mps.plan.measure import MEASURE, Measured, measured
from provision.mps.plan.sizing import Advice, HostFacts, Plan, Workload, plan
from provision.project.project import Project
from provision.report.checks import columns, wrapped
from provision.report.text import clean, counted

_LARGEST_BYTES = 64 << 20
_LABEL = 10
_COLUMN = 20
_TRAP = "a thread for each core in every process was up to 64 times slower"


def mps_plan(
    project: Project,
    targets: Targets,
    clients: str | None,
    peak_memory: str | None,
    measure: str | None,
) -> TaskResult:
    """How many processes, with which share and limits, from the host's facts and what one process needs."""
    wanted = None if clients is None else _clients(clients)
    peak = None if peak_memory is None else _size_mib(peak_memory)
    target = convergence.host(project, targets)
    with contextlib.closing(convergence.connect(project, target)) as transport:
        facts_script = host_facts.host_facts_script(
            project.settings.worker.name, project.settings.mps.gpu or ""
        )
        text = remote_exec.checked(transport, facts_script, "looking at the GPU", timeout_s=90.0)
        if not host_facts.is_running(text):
            raise remote_exec.not_running(project, transport)
        if measure is not None and host_facts.is_mock(text):
            why = "this is a mock: its GPU computes nothing, and no figure is made up"
            raise UsageError(
                "--measure needs a GPU",
                where=target.name,
                why=why,
                fix=f"{project.program_argv0} mps.plan --peak-memory=2g",
            )
        with _at(target):
            facts = host_facts.host_facts(text)
        run, others = (
            (None, None)
            if measure is None
            else _alone(project, transport, measure, host_facts.gpu_uuid(text))
        )
    work = run.workload(wanted) if run else Workload(clients=wanted)
    work = work if peak is None else replace(work, peak_memory_mib=peak)
    made = _warned(plan(facts, work), others)
    told = {**asdict(run), "disturbed": others} if run else None
    document = {
        "host": asdict(facts),
        "workload": asdict(work),
        "plan": _plan_document(made),
        "measured": told,
    }
    return TaskResult(document, 0, "\n".join(_plan_lines(project, facts, work, run, made)))


@contextlib.contextmanager
def _at(target: Host) -> Iterator[None]:
    """Say on which host an answer could not be read."""
    try:
        yield
    except ProvisionError as error:
        error.where = f"{target.name}: {error.where}"
        raise


def _clients(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:6]) > 0 and len(text) < 6):
        why = "allowed: a whole number from 1 to 99999"
        raise UsageError(
            f"{text[:20]!r} is no number for it", where="--clients", why=why, fix="--clients=4"
        )
    return int(text)


def _size_mib(text: str) -> int:
    found = re.fullmatch(
        r"(\d{1,7}(?:\.\d{1,3})?)\s*(m|g)?(?:i?b)?", text.strip().lower(), re.ASCII
    )
    size = round(float(found[1]) * (1024 if found[2] == "g" else 1)) if found else 0
    if not size:
        why = "allowed: a size of at least 1m, such as 900m, 2g or 1.5g"
        raise UsageError(
            f"{text[:20]!r} is no size", where="--peak-memory", why=why, fix="--peak-memory=2g"
        )
    return size


def _alone(
    project: Project, transport: Transport, command: str, gpu: str
) -> tuple[Measured, str | None]:
    """Send the project and run the command, as long as nobody else uses the GPU. Who uses it after the run; None where that was not seen.

    What others hold and do would be taken for what one process needs. A second look that fails is
    no reason to lose the figures.
    """
    check_gpu_unused(project, transport, gpu)
    bring_project(project, transport)
    run = _measure(project, transport, command)
    try:
        return run, describe_gpu_users(fetch_status(project, transport.host, transport, gpu=gpu))
    except Unreachable:
        raise
    except ProvisionError as error:
        project.emit(Note(f"after the run it was not seen who else uses the GPU: {error.what}"))
        return run, None


def _warned(made: Plan, others: str | None) -> Plan:
    """The plan, and that others came while its figures were measured."""
    if not others:
        return made
    said = Advice(
        "warn",
        f"after the run others use the GPU, so the figures may be theirs as well: {others}; measure again without them",
    )
    at = sum(each.level == "stop" for each in made.advice)
    return replace(made, advice=(*made.advice[:at], said, *made.advice[at:]))


def _measure(project: Project, transport: Transport, command: str) -> Measured:
    """Run the command once, its output to standard error. Raises `CommandFailed` when it ends with another status than 0."""
    out = bytearray()
    quiet = replace(project, stdout=out.extend)
    words = ["sh", "-c", MEASURE, "provision", command, project.settings.mps.gpu or ""]
    done = remote_exec.run(quiet, transport, project.settings.worker.name, words)
    if done.exit_code != 0:
        why = f"{command}: status {done.exit_code}; its output stands above"
        fix = f"{project.program_argv0} dev.exec -- {command}"
        raise CommandFailed(
            "the program to be measured failed", where=transport.host.name, why=why, fix=fix
        )
    with _at(transport.host):
        return measured(out.decode("utf-8", "replace"))


def _plan_document(made: Plan) -> dict[str, Any]:
    def bound(value: float, reason: str) -> dict[str, Any]:
        return {"value": round(value, 2), "reason": reason}

    return {
        **asdict(made),
        "speedup": bound(*made.speedup),
        "bounds": [bound(*each) for each in made.bounds],
        "advice": [each._asdict() for each in made.advice],
        "worthwhile": made.worthwhile,
    }


# --- the plan in words ----------------------------------------------------------------------------


def _plan_lines(
    project: Project, facts: HostFacts, work: Workload, run: Measured | None, made: Plan
) -> list[str]:
    rows = [
        *_host_rows(facts),
        *_load_rows(work, run),
        ("", ""),
        *_number_rows(facts, work, made),
        ("to apply", project.spoken(_apply(made))),
    ]
    width = columns()
    lines = [
        f"{label:<{_COLUMN}}" + "\n".join(wrapped(text, _COLUMN, width=width)) if label else ""
        for label, text in rows
    ]
    advice = [
        f"{each.level:<{_COLUMN}}" + "\n".join(wrapped(each.text, _COLUMN, width=width))
        for each in made.advice
    ]
    verdict = (
        []
        if made.worthwhile
        else ["", "MPS is the wrong tool here; what follows after stop says why."]
    )
    return [*lines, *verdict, *([""] if advice else []), *advice]


def _dotted(version: Sequence[int] | None) -> str:
    return ".".join(map(str, version)) if version else "unknown"


def _mib(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,} MiB"


def _host_rows(facts: HostFacts) -> list[tuple[str, str]]:
    sms = "an unknown number of" if facts.sm_count is None else str(facts.sm_count)
    source = {"driver": "", "table": " (by its name)", "": ""}[facts.sm_source]
    capability, cuda = _dotted(facts.compute_capability), _dotted(facts.cuda)
    return [
        (
            "GPU",
            f"{facts.gpu}, compute capability {capability}, {sms} multiprocessors{source}, CUDA {cuda}, driver {facts.driver}",
        ),
        ("memory", f"{_mib(facts.memory_total_mib)}, {_mib(facts.memory_free_mib)} free"),
        ("machine", f"{counted(facts.vcpus, 'vCPU')}, /dev/shm {_mib(facts.shm_mib)}"),
    ]


def _load_rows(work: Workload, run: Measured | None) -> list[tuple[str, str]]:
    known = []
    if work.peak_memory_mib is not None:
        known.append(f"{_mib(work.peak_memory_mib)} at its peak")
    if work.activity is not None:
        kind = (
            "SM activity, counted by the GPU"
            if work.activity_kind == "sm"
            else "of the time some kernel ran (time utilisation, not SM activity)"
        )
        known.append(f"{work.activity:.0%} {kind}")
    if work.cores is not None:
        known.append(f"{work.cores:.1f} cores")
    if run is not None:
        known.append(f"measured in a run of {run.seconds:.1f} s")
    return [("one process", ", ".join(known) or "nothing is known of it")]


def _number_rows(facts: HostFacts, work: Workload, made: Plan) -> list[tuple[str, str]]:
    share = f"{made.thread_percentage} %"
    share += (
        f", {made.sms_per_client} of {facts.sm_count} multiprocessors"
        if made.sms_per_client is not None
        else ""
    )
    expected = (
        "unknown"
        if made.expected_memory_mib is None
        else f"{_mib(made.expected_memory_mib)} for all"
    )
    context = (
        ""
        if made.context_mib is None
        else f", of it {made.context_mib} MiB for the context of each"
    )
    limit = (
        "unknown"
        if made.memory_limit_mib is None
        else f"{_mib(made.memory_limit_mib)} each when shared evenly; none is needed where all workers are yours"
    )
    tensorflow = _mib(made.tensorflow_limit_mib)
    if made.tensorflow_limit_mib is not None:
        tensorflow += " for its logical device, which leaves out the context"
    usual = ", usually 0.75 to 0.95 of that" if work.activity_kind == "sm" else ""
    return [
        (
            "clients",
            f"{made.clients}: {made.clients_reason} (limit of the server: {made.client_limit})",
        ),
        ("thread percentage", f"{share}: {made.percentage_reason}"),
        ("expected memory", expected + context),
        ("memory limit", limit),
        ("TensorFlow limit", tensorflow),
        (
            "OpenMP threads",
            f"{made.omp_threads} for each (OMP_NUM_THREADS, MKL_NUM_THREADS, OPENBLAS_NUM_THREADS): {_TRAP}",
        ),
        (
            "throughput",
            f"at most {made.speedup.value:.1f} times one process{usual} ({made.speedup.reason})",
        ),
    ]


def _apply(made: Plan) -> str:
    """The settings that follow from the plan."""
    if made.thread_percentage == 100:
        return "leave provision.mps.thread_percentage unset, then invoke mps.enable"
    return (
        f"set provision.mps.thread_percentage to {made.thread_percentage}, then invoke mps.enable"
    )


# --- error texts ----------------------------------------------------------------------------------


def mps_explain(project: Project, text: str | None, file: str | None) -> TaskResult:
    """Causes and remedies for an error text or a log; exit status 1 when nothing in it is known."""
    given = _given(project, text, file)
    found = [
        replace(match, row=replace(match.row, remedy=project.spoken(match.row.remedy)))
        for match in explain(given)
    ]
    document = {"matches": [match.as_dict() for match in found]}
    if found:
        return TaskResult(document, 0, "\n\n".join("\n".join(_told(match)) for match in found))
    program = project.program_argv0
    known = f"nothing in it is known; {program} mps.doctor looks at the host itself"
    return TaskResult(
        document, EXIT_FAILED, known if given.strip() else "there is no text to explain"
    )


def _given(project: Project, text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        raise UsageError(
            "needs a text or a file, and not both",
            where="mps.explain",
            why="--text is the text itself, --file where it is read from, - for standard input",
            fix=f"{project.program_argv0} mps.explain --text 'Error 805'",
        )
    if text is not None:
        return text
    try:
        if file == "-":
            return _decoded(sys.stdin.buffer.read(_LARGEST_BYTES))
        with Path(str(file)).expanduser().open("rb") as opened:
            return _decoded(opened.read(_LARGEST_BYTES))
    except OSError as error:
        raise UsageError(
            "the file cannot be read",
            where=str(file),
            why=error.strerror or str(error),
            fix="--file - reads it from a pipe",
        ) from error


def _decoded(data: bytes) -> str:
    """The text, in the encoding that its mark names: PowerShell writes UTF-16 into a file; UTF-8 without one."""
    marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if marked else "utf-8-sig", "replace")


def _told(match: Match) -> list[str]:
    times = f", {match.times} lines" if match.times > 1 else ""
    line = clean(match.text)
    width = columns()
    shown = line if len(line) <= width else f"{line[: width - 1]}…"
    parts = (("cause", match.row.cause), ("remedy", match.row.remedy))
    rest = [
        f"  {label:<{_LABEL - 2}}" + "\n".join(wrapped(text, _LABEL, width=width))
        for label, text in parts
    ]
    return [shown, f"  {'line':<{_LABEL - 2}}{match.line}{times}", *rest]
