"""mps.doctor: check everything that MPS depends on, in one exchange."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from provision.commands.mps.shared.fetch_status import status_script_for
from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import ProvisionError
from provision.core.exchange import SectionResult, exchange
from provision.core.facts import FACTS, read_facts
from provision.core.job import Section
from provision.core.model import Host, Scalar, Transport
from provision.core.resource import Resource, compare
from provision.core.shell import Script
from provision.mps.daemon.probe_client import attachment_script
from provision.mps.doctor.checks import diagnose, exit_code, numbered
from provision.mps.doctor.evidence import (
    Evidence,
    gpu_processes_script,
    read_evidence,
    worker_container_script,
)
from provision.mps.status.status import MpsStatus, read_status
from provision.project.project import Project
from provision.recipes.mps import mps
from provision.recipes.worker import daemon_container_name
from provision.report.checks import checks_document, checks_lines, columns
from provision.resources.driver import DRIVER_DIR

_SETTINGS_KEYS = {
    "mode": "mps.exclusive",
    "changed_by_us": "mps.exclusive",
    "thread_percentage": "mps.thread_percentage",
    "memory_limit": "mps.memory_limit",
    "cpus": "mps.cpus",
    "gpu": "mps.gpu",
}
"""Keys of the settings by keys of the states that compute mode and daemon read."""


def mps_doctor(project: Project, targets: Targets, options: Sequence[str] = ()) -> TaskResult:
    """Run every check on one host; `options` are pipeline options to check too.

    Exit status 0 healthy, 1 warnings, 2 broken, 3 where evidence is missing.
    """
    target = host_access.resolve_host(project, targets)
    with closing(host_access.connect(project, target)) as transport:
        answers = _fetch_answers(project, target, transport)
    evidence = _evidence(project, target, answers, options)
    checks = [
        replace(check, fix=project.with_program_name(check.fix)) for check in diagnose(evidence)
    ]
    return TaskResult(
        checks_document(checks),
        exit_code(checks),
        "\n".join(checks_lines(numbered(checks), width=columns())),
    )


def _fetch_answers(
    project: Project, target: Host, transport: Transport
) -> Mapping[str, SectionResult]:
    """The answers of all scripts, in one exchange.

    The probe runs last, so the status does not list it among the clients.
    """
    worker, daemon = project.settings.worker.name, daemon_container_name(project.settings)
    driver = target.driver_dir or DRIVER_DIR.path
    other = daemon if daemon != worker else ""
    scripts: list[tuple[str, Script, float]] = [
        ("facts", FACTS, 30.0),
        ("container", worker_container_script(worker, driver, daemon=other), 120.0),
        ("processes", gpu_processes_script(driver), 60.0),
        ("status", status_script_for(project, target), 60.0),
        ("mode", _planned(project, target)[0].probe(), 60.0),
        ("probe", attachment_script(worker), 60.0),
    ]
    sections = [Section(key, body, limit_s) for key, body, limit_s in scripts]
    reply = exchange(transport, sections, clock=time.monotonic)
    if reply.error is not None:
        raise reply.error
    return reply.results


def _evidence(
    project: Project, target: Host, answers: Mapping[str, SectionResult], options: Sequence[str]
) -> Evidence:
    """The answers as one record. Processes that use only GPUs of no interest are left out."""
    evidence = read_evidence(_text(answers, "container"), _text(answers, "processes"))
    status, error = _status(_text(answers, "status"))
    return replace(
        evidence,
        status=status,
        status_error=error,
        cuda_processes=[
            process
            for process in evidence.cuda_processes
            if process.pid not in status.other_gpu_pids
        ],
        probe=_text(answers, "probe").strip(),
        options=options,
        differs=_differences(project, target, answers),
        wanted_gpu=project.settings.mps.gpu or "",
    )


def _planned(project: Project, target: Host) -> tuple[Resource, Resource]:
    """The compute mode and the daemon as `mps.enable` would leave them."""
    mode, daemon = mps(project.settings, host=target)[:2]
    return mode, daemon


def _differences(
    project: Project, target: Host, answers: Mapping[str, SectionResult]
) -> dict[str, tuple[str, str]]:
    """Settings that are not in force, by key: the value in force and that of the settings."""
    mode, daemon = _planned(project, target)
    facts = read_facts(_text(answers, "facts"))
    texts = ((mode, _text(answers, "mode")), (daemon, _without_gpus(_text(answers, "status"))))
    changes = [
        change
        for resource, text in texts
        for change in compare(resource.read(text) or {}, resource.desired(facts))
    ]
    return {
        _SETTINGS_KEYS[change.key]: (
            _setting_text(change.key, change.actual),
            _setting_text(change.key, change.desired),
        )
        for change in changes
        if change.key in _SETTINGS_KEYS
    }


def _setting_text(key: str, value: Scalar) -> str:
    """A value as the settings have it."""
    match value:
        case bool():
            return "yes" if value else "no"
        case None:
            return "none"
        case float():
            return f"{value:g}"
        case _:
            return "all" if key == "gpu" and not value else str(value)


def _text(answers: Mapping[str, SectionResult], key: str) -> str:
    return answers[key].output if key in answers else ""


def _status(text: str) -> tuple[MpsStatus, str]:
    """The status, and why it is incomplete.

    The daemon's part is read also where that of nvidia-smi is unreadable.
    """
    try:
        return read_status(text), ""
    except ProvisionError as error:
        problem = f"{error.what}: {error.why}"
    try:
        return read_status(_without_gpus(text)), problem
    except ProvisionError:
        return MpsStatus(), problem


def _without_gpus(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(("gpu|", "app|")))
