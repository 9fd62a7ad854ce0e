"""mps.doctor: everything that MPS rests on, looked at in one exchange."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from provision.commands.mps.shared.fetch_status import status_script_for
from provision.commands.shared import convergence
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import ProvisionError
from provision.core.exchange import SectionResult, exchange
from provision.core.facts import FACTS, read_facts
from provision.core.job import Section
from provision.core.model import Host, Scalar, Transport
from provision.core.resource import Resource, compare
from provision.core.shell import Script, script
from provision.mps.daemon.client import CLIENT
from provision.mps.doctor.checks import diagnose, exit_code, numbered
from provision.mps.doctor.evidence import Daemon, found, look_script, workers_script
from provision.mps.status.inside import PROVE
from provision.mps.status.status import MpsStatus, read_status
from provision.project.project import Project
from provision.recipes.mps import mps
from provision.recipes.worker import daemon_container_name
from provision.report.checks import checks_document, checks_lines, columns
from provision.resources.driver import DRIVER_DIR

_PROBE = """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true || exit 0
docker exec "$name" sh -c "$body" provision "$client" 2>/dev/null | tail -n 1
"""

_KEYS = {
    "mode": "mps.exclusive",
    "changed_by_us": "mps.exclusive",
    "thread_percentage": "mps.thread_percentage",
    "memory_limit": "mps.memory_limit",
    "cpus": "mps.cpus",
    "gpu": "mps.gpu",
}
"""What the settings call that which the compute mode and the daemon read."""


def mps_doctor(project: Project, targets: Targets, options: Sequence[str] = ()) -> TaskResult:
    """Every check, in order, each with a remedy. Exit status 0 healthy, 1 warnings, 2 broken, 3 cannot tell."""
    target = convergence.host(project, targets)
    with closing(convergence.connect(project, target)) as transport:
        answers = _asked(project, target, transport)
    seen = found(_text(answers, "look"), _text(answers, "workers"))
    status, said = _status(_text(answers, "status"))
    whole = replace(
        seen,
        daemon=_daemon(status, said),
        workers=[worker for worker in seen.workers if worker.pid not in status.elsewhere],
        probe=_text(answers, "probe").strip(),
        options=options,
        differs=_differs(project, target, answers),
        wanted_gpu=project.settings.mps.gpu or "",
    )
    checks = [replace(check, fix=project.with_program_name(check.fix)) for check in diagnose(whole)]
    return TaskResult(
        checks_document(checks),
        exit_code(checks),
        "\n".join(checks_lines(numbered(checks), width=columns())),
    )


def _asked(project: Project, target: Host, transport: Transport) -> Mapping[str, SectionResult]:
    """Everything in one exchange. The clients of the status are counted before the probe joins them."""
    name, other = project.settings.worker.name, daemon_container_name(project.settings)
    driver = target.driver_dir or DRIVER_DIR.path
    look = look_script(name, driver, daemon=other if other != name else "")
    scripts: list[tuple[str, Script, float]] = [
        ("facts", FACTS, 30.0),
        ("look", look, 120.0),
        ("workers", workers_script(driver), 60.0),
        ("status", status_script_for(project, target), 60.0),
        ("mode", _plan(project, target)[0].probe(), 60.0),
        ("probe", script(_PROBE, name=name, body=PROVE, client=CLIENT), 60.0),
    ]
    reply = exchange(
        transport,
        [Section(key, body, limit_s) for key, body, limit_s in scripts],
        clock=time.monotonic,
    )
    if reply.error is not None:
        raise reply.error
    return reply.results


def _plan(project: Project, target: Host) -> tuple[Resource, Resource]:
    """The compute mode and the daemon, as `mps.enable` would make them."""
    mode, daemon = mps(project.settings, host=target)[:2]
    return mode, daemon


def _differs(
    project: Project, target: Host, answers: Mapping[str, SectionResult]
) -> dict[str, tuple[str, str]]:
    """What of the plan is not in force, by keys of the settings: what is, and what they say."""
    mode, daemon = _plan(project, target)
    facts = read_facts(_text(answers, "facts"))
    texts = ((mode, _text(answers, "mode")), (daemon, _without_gpus(_text(answers, "status"))))
    changes = [
        change
        for resource, text in texts
        for change in compare(resource.read(text) or {}, resource.desired(facts))
    ]
    return {
        _KEYS[change.key]: (_said(change.key, change.actual), _said(change.key, change.desired))
        for change in changes
        if change.key in _KEYS
    }


def _said(key: str, value: Scalar) -> str:
    """A value of the plan in the words of the settings."""
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
    """The status, and why it could not be read: of a GPU that nvidia-smi cannot tell, the daemon still can."""
    try:
        return read_status(text), ""
    except ProvisionError as error:
        said = f"{error.what}: {error.why}"
    try:
        return read_status(_without_gpus(text)), said
    except ProvisionError:
        return MpsStatus(), said


def _without_gpus(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(("gpu|", "app|")))


def _daemon(status: MpsStatus, said: str) -> Daemon:
    return Daemon(
        answers=status.daemon,
        said=said or status.silence,
        server_state=status.server_state,
        server_uid=status.server_uid,
        thread_percentage=status.thread_percentage,
        memory_limit=status.memory_limit,
        clients=[client.pid for client in status.clients],
        client_hosts=[client.host_pid for client in status.clients if client.host_pid is not None],
        outside=[
            f"{user.pid} {user.command}" + (f" ({user.container})" if user.container else "")
            for user in status.outside
        ],
        outside_known=status.outside_known,
        workers=status.workers,
        missing=status.missing,
        gpus=status.gpus,
        cuda=status.cuda,
    )
