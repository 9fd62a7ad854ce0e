"""mps.plan: how many processes can share the GPU, with which share and limits."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from provision.commands.mps.shared.fetch_status import fetch_status
from provision.commands.mps.shared.gpu_users import check_gpu_unused, describe_gpu_users
from provision.commands.shared import host_access
from provision.commands.shared.project_files import bring_project
from provision.commands.shared.result import TaskResult
from provision.commands.shared.run_script import run_script
from provision.commands.shared.targets import Targets
from provision.commands.shared.user_program.run import run_program
from provision.commands.shared.worker_container import container_not_running
from provision.core.errors import CommandFailed, ProvisionError, Unreachable, UsageError
from provision.core.model import Host, Note, Transport
from provision.mps.plan import host_facts
from provision.mps.plan.measure import Measurement, measure_words, read_measurement
from provision.mps.plan.model import Advice, Bound, Plan, Workload
from provision.mps.plan.sizing import plan
from provision.mps.plan.text import how_to_apply, plan_lines
from provision.project.project import Project
from provision.report.checks import columns

_FACTS_TIMEOUT_S = 90.0


def mps_plan(
    project: Project,
    targets: Targets,
    clients: str | None,
    peak_memory: str | None,
    measure: str | None,
) -> TaskResult:
    """The plan for one host, from its facts and from what one process needs.

    `clients` and `peak_memory` are flags as the user wrote them; `measure` is a command that is run
    once in the container to find out what one process needs. Raises `UsageError` for an invalid
    flag and for `measure` on a mock, and `HostError` when the container does not run, when other
    programs use the GPU, and when the command fails.
    """
    client_count = None if clients is None else _client_count(clients)
    peak_mib = None if peak_memory is None else _size_mib(peak_memory)
    target = host_access.resolve_host(project, targets)
    with contextlib.closing(host_access.connect(project, target)) as transport:
        text = _fetch_facts(project, transport, measures=measure is not None)
        with _naming_host(target):
            facts = host_facts.host_facts(text)
        measurement, other_users = (
            (None, None)
            if measure is None
            else _measure_alone(project, transport, measure, host_facts.gpu_uuid(text))
        )
    workload = measurement.workload(client_count) if measurement else Workload(clients=client_count)
    if peak_mib is not None:
        workload = replace(workload, peak_memory_mib=peak_mib)
    result = _with_warning(plan(facts, workload), other_users)
    document = {
        "host": asdict(facts),
        "workload": asdict(workload),
        "plan": _plan_document(result),
        "measured": {**asdict(measurement), "disturbed": other_users} if measurement else None,
    }
    apply = project.with_program_name(how_to_apply(result))
    lines = plan_lines(facts, workload, measurement, result, how_to_apply=apply, width=columns())
    return TaskResult(document, 0, "\n".join(lines))


def _fetch_facts(project: Project, transport: Transport, *, measures: bool) -> str:
    """The output of the script of `host_facts` on the host."""
    settings = project.settings
    script = host_facts.host_facts_script(settings.worker.name, settings.mps.gpu or "")
    text = run_script(transport, script, "reading the facts of the GPU", timeout_s=_FACTS_TIMEOUT_S)
    if not host_facts.is_running(text):
        raise container_not_running(project, transport)
    if measures and host_facts.is_mock(text):
        raise UsageError(
            "--measure needs a GPU",
            where=transport.host.name,
            why="this is a mock: its GPU computes nothing, so it has no figures",
            fix=f"{project.program_argv0} mps.plan --peak-memory=2g",
        )
    return text


@contextlib.contextmanager
def _naming_host(target: Host) -> Iterator[None]:
    """Put the host's name in front of the place of an error."""
    try:
        yield
    except ProvisionError as error:
        error.where = f"{target.name}: {error.where}"
        raise


# --- flags ----------------------------------------------------------------------------------------


def _client_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:6]) > 0 and len(text) < 6):
        raise UsageError(
            f"{text[:20]!r} is not a valid number",
            where="--clients",
            why="allowed: a whole number from 1 to 99999",
            fix="--clients=4",
        )
    return int(text)


def _size_mib(text: str) -> int:
    match = re.fullmatch(
        r"(\d{1,7}(?:\.\d{1,3})?)\s*(m|g)?(?:i?b)?", text.strip().lower(), re.ASCII
    )
    size = round(float(match[1]) * (1024 if match[2] == "g" else 1)) if match else 0
    if not size:
        raise UsageError(
            f"{text[:20]!r} is not a valid size",
            where="--peak-memory",
            why="allowed: a size of at least 1m, such as 900m, 2g or 1.5g",
            fix="--peak-memory=2g",
        )
    return size


# --- measurement ----------------------------------------------------------------------------------


def _measure_alone(
    project: Project, transport: Transport, command: str, gpu: str
) -> tuple[Measurement, str | None]:
    """Send the project and measure `command`, and list the other users of the GPU after it.

    The list is None where it could not be fetched; the figures are kept. Raises
    `HostError` when other programs use the GPU before the run: their memory and activity would be
    taken for those of the command.
    """
    check_gpu_unused(project, transport, gpu)
    bring_project(project, transport)
    measurement = _measure(project, transport, command)
    try:
        status = fetch_status(project, transport.host, transport, gpu=gpu)
        return measurement, describe_gpu_users(status)
    except Unreachable:
        raise
    except ProvisionError as error:
        project.emit(Note(f"after the run the users of the GPU could not be listed: {error.what}"))
        return measurement, None


def _measure(project: Project, transport: Transport, command: str) -> Measurement:
    """Run the command once, its output on standard error.

    Raises `CommandFailed` when it ends with another status than 0.
    """
    out = bytearray()
    quiet = replace(project, stdout=out.extend)
    words = measure_words(command, project.settings.mps.gpu or "")
    done = run_program(quiet, transport, project.settings.worker.name, words)
    if done.exit_code != 0:
        raise CommandFailed(
            "the program to be measured failed",
            where=transport.host.name,
            why=f"{command}: status {done.exit_code}; its output stands above",
            fix=f"{project.program_argv0} dev.exec -- {command}",
        )
    with _naming_host(transport.host):
        return read_measurement(out.decode("utf-8", "replace"))


def _with_warning(result: Plan, other_users: str | None) -> Plan:
    """The plan with a further warning if other processes used the GPU after the run."""
    if not other_users:
        return result
    text = (
        "other processes use the GPU after the run, so the figures may include them: "
        f"{other_users}; measure again without them"
    )
    position = sum(advice.level == "stop" for advice in result.advice)
    advice = [*result.advice]
    advice.insert(position, Advice("warn", text))
    return replace(result, advice=tuple(advice))


def _plan_document(result: Plan) -> dict[str, Any]:
    """The plan as `--json` prints it."""

    def rounded(bound: Bound) -> dict[str, Any]:
        return {"value": round(bound.value, 2), "reason": bound.reason}

    return {
        **asdict(result),
        "speedup": rounded(result.speedup),
        "bounds": [rounded(bound) for bound in result.bounds],
        "advice": [advice._asdict() for advice in result.advice],
        "worthwhile": result.worthwhile,
    }
