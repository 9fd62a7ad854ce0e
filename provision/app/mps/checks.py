"""mps.doctor: everything that MPS rests on, looked at in one exchange."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from provision.app import converging
from provision.app.mps.control import script_for
from provision.app.session import Done, Session, Targets
from provision.errors import ProvisionError
from provision.exchange import Answer, exchange
from provision.model import Host, Transport
from provision.mps.client import CLIENT
from provision.mps.doctor import diagnose, exit_code, numbered
from provision.mps.look import Daemon, found, look_script, workers_script
from provision.recipes.worker import daemon_container
from provision.report.checks import checks_document, checks_lines, columns
from provision.resources.gpu import DRIVER_DIR
from provision.resources.mps import MpsStatus, read_status
from provision.resources.mps.inside import PROVE
from provision.shell import Script, Section, script

_PROBE = """
test "$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)" = true || exit 0
docker exec "$name" sh -c "$body" provision "$client" 2>/dev/null | tail -n 1
"""


def mps_doctor(session: Session, targets: Targets, options: Sequence[str] = ()) -> Done:
    """Every check, in order, each with a remedy. Exit status 0 healthy, 1 warnings, 2 broken, 3 cannot tell."""
    target = converging.host(session, targets)
    with closing(converging.connect(session, target)) as transport:
        answers = _asked(session, target, transport)
    seen = found(_text(answers, "look"), _text(answers, "workers"))
    status, said = _status(_text(answers, "status"))
    mps = session.settings.mps
    whole = replace(
        seen,
        daemon=_daemon(status, said),
        workers=[worker for worker in seen.workers if worker.pid not in status.elsewhere],
        probe=_text(answers, "probe").strip(),
        options=options,
        wanted_percentage=mps.thread_percentage,
        wanted_gpu=mps.gpu or "",
    )
    checks = [replace(check, fix=session.spoken(check.fix)) for check in diagnose(whole)]
    return Done(checks_document(checks), exit_code(checks), "\n".join(checks_lines(numbered(checks), width=columns())))


def _asked(session: Session, target: Host, transport: Transport) -> Mapping[str, Answer]:
    """Everything in one exchange. The clients of the status are counted before the probe joins them."""
    name, other = session.settings.worker.name, daemon_container(session.settings)
    driver = target.driver_dir or DRIVER_DIR.path
    look = look_script(name, driver, daemon=other if other != name else "")
    scripts: list[tuple[str, Script, float]] = [
        ("look", look, 120.0),
        ("workers", workers_script(driver), 60.0),
        ("status", script_for(session, target), 60.0),
        ("probe", script(_PROBE, name=name, body=PROVE, client=CLIENT), 60.0),
    ]
    reply = exchange(transport, [Section(key, body, limit_s) for key, body, limit_s in scripts], clock=time.monotonic)
    if reply.error is not None:
        raise reply.error
    return reply.answers


def _text(answers: Mapping[str, Answer], key: str) -> str:
    return answers[key].output if key in answers else ""


def _status(text: str) -> tuple[MpsStatus, str]:
    """The status, and why it could not be read: of a GPU that nvidia-smi cannot tell, the daemon still can."""
    try:
        return read_status(text), ""
    except ProvisionError as error:
        said = f"{error.what}: {error.why}"
    try:
        return read_status("\n".join(line for line in text.splitlines() if not line.startswith(("gpu|", "app|")))), said
    except ProvisionError:
        return MpsStatus(), said


def _daemon(status: MpsStatus, said: str) -> Daemon:
    return Daemon(
        answers=status.daemon,
        said=said or status.said,
        server_state=status.server_state,
        server_uid=status.server_uid,
        thread_percentage=status.thread_percentage,
        memory_limit=status.memory_limit,
        clients=[client.pid for client in status.clients],
        client_hosts=[client.host_pid for client in status.clients if client.host_pid is not None],
        outside=[f"{user.pid} {user.command}" + (f" ({user.container})" if user.container else "") for user in status.outside],
        outside_known=status.outside_known,
        workers=status.workers,
        missing=status.missing,
        gpus=status.gpus,
        cuda=status.cuda,
    )
