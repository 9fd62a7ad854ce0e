"""MPS for the worker: on, off, and what it says of itself."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from provision.commands.image.build import worker_image
from provision.commands.shared import convergence, remote_exec
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import EXIT_FAILED, ProvisionError
from provision.core.model import Host, HostReport, Note, Status, Transport
from provision.core.resource import Resource
from provision.core.shell import Script
from provision.mps.plan import sizing
from provision.mps.status.parse import SmiGpu
from provision.mps.status.status import MpsClient, MpsStatus, read_status, status_script
from provision.project.project import Project
from provision.recipes import mps
from provision.recipes.mps import compute_mode, elsewhere, outside
from provision.recipes.worker import containers_alone, daemon_container
from provision.report.text import clean
from provision.resources.driver import DRIVER_DIR


def mps_enable(project: Project, targets: Targets) -> TaskResult:
    """A control daemon as planned, a server that is ACTIVE, a client of each container found attached; again after a boot.

    Where the settings ask for another topology than the containers have, clients leave first and
    the containers are made anew. One exchange looks, one acts; a changed topology costs one more
    for each step.
    """
    image = worker_image(project)

    def recipe(target: Host) -> list[Resource]:
        other = elsewhere(project.settings, image=image.reference)
        boxes = containers_alone(project.settings, image, host=target, after=(other.name,))
        own = mps(project.settings, host=target, needs=tuple(box.name for box in boxes))
        return [
            other,
            *boxes,
            *own,
            *([] if targets.check else [outside(project.settings, host=target)]),
        ]

    chosen = convergence.hosts(project, targets)
    finished = convergence.converge(project, targets, chosen, recipe, "mps.enable")
    give_mode_back(project, targets, chosen, finished.reports)
    return convergence.done(finished, check=targets.check)


def give_mode_back(
    project: Project, targets: Targets, chosen: Sequence[Host], reports: Sequence[HostReport]
) -> None:
    """The compute mode as it was found, where a daemon did not come up: with EXCLUSIVE_PROCESS one program would have the GPU alone."""
    if project.settings.mps.exclusive and not targets.check:
        for report in reports:
            if _cut_short(report):
                _restore_mode(
                    project, next(target for target in chosen if target.name == report.host), report
                )


def _cut_short(report: HostReport) -> bool:
    """True where something was done on the host, and the daemon is not known to be as planned: failed, interrupted, or out of reach."""
    fine, daemons = {Status.OK, Status.CHANGED}, {"mps", "mps-as-chosen"}
    return report.round_trips > 1 and any(
        each.resource in daemons and each.status not in fine for each in report.outcomes
    )


def _restore_mode(project: Project, target: Host, report: HostReport) -> None:
    """Give it back on one host. A server of before that goes on keeps the mode that it had."""
    try:
        with contextlib.closing(convergence.connect(project, target)) as transport:
            if (
                "compute-mode" not in report.changed
                and look(project, target, transport).server_state == "ACTIVE"
            ):
                return
        quiet = replace(project, emit=lambda event: None)
        mode = compute_mode(project.settings, "", target)
        restored = convergence.converge(
            quiet, Targets(), [target], lambda host: [mode], "mps.enable"
        ).reports[0]
        failed, changed = restored.failed, restored.changed
    except ProvisionError:  # the run itself says why it was cut
        failed, changed = True, ()
    if not failed and not changed:
        return  # it is not ours
    how = (
        f"could not be restored: {project.program_argv0} mps.disable tries it again"
        if failed
        else "is as it was found"
    )
    project.emit(Note(f"the compute mode of the GPU {how}", target.name))


def mps_disable(project: Project, targets: Targets, *, force: bool = False) -> TaskResult:
    """No daemon and no server; folders and compute mode as they were found.

    Clients have a while to leave, then they are named; with `force` MPS terminates them.
    """

    def recipe(target: Host) -> list[Resource]:
        own = mps(project.settings, present=False, force=force, host=target)
        return [elsewhere(project.settings, force=force), *own]

    return convergence.run(project, targets, recipe, "mps.disable")


def mps_status(project: Project, targets: Targets, *, strict: bool = False) -> TaskResult:
    """What the control daemon of one host says, and who uses the GPU. Exit status 1 when no daemon answers.

    With `strict`, also when a process uses the GPU outside MPS, nobody can tell whether one does,
    the server is not ACTIVE, or it was not proven that programs attach to it.
    """
    target = convergence.host(project, targets)
    transport = convergence.connect(project, target)
    try:
        status = look(project, target, transport)
    finally:
        transport.close()
    return TaskResult(
        document(project, status),
        0 if well(status, strict=strict) else EXIT_FAILED,
        text(project, status),
    )


def well(status: MpsStatus, *, strict: bool) -> bool:
    """True where a daemon answers; with `strict`, where nothing else is wrong either."""
    serves = status.server_state == "ACTIVE" and status.attached
    return status.daemon and (
        not strict or (serves and not status.outside and status.outside_known)
    )


def look(
    project: Project, target: Host, transport: Transport, *, gpu: str | None = None
) -> MpsStatus:
    """The status of MPS on a host, in one exchange. `gpu` (index or UUID) is looked at in place of that of the settings."""
    return read_status(
        remote_exec.checked(
            transport,
            script_for(project, target, gpu=gpu),
            "reading the MPS status",
            timeout_s=60.0,
        )
    )


def script_for(project: Project, target: Host, *, gpu: str | None = None) -> Script:
    """The script whose answer `read_status` reads, users of the GPU included."""
    settings = project.settings
    return status_script(
        daemon_container(settings),
        worker=settings.worker.name if settings.mps.topology == "containers" else "",
        workers=settings.worker.processes,
        device=gpu or settings.mps.gpu or "",
        users=True,
        driver_dir=target.driver_dir or DRIVER_DIR.path,
    )


def document(project: Project, status: MpsStatus) -> dict[str, Any]:
    """The document of `--json`."""
    server = (
        {"state": status.server_state, "pid": status.server_pid, "uid": status.server_uid}
        if status.server_pid is not None
        else None
    )
    return {
        "container": status.container_running,
        "daemon": status.daemon,
        "server": server,
        "compute_mode": status.compute_mode or None,
        "thread_percentage": status.thread_percentage,
        "memory_limit": status.memory_limit,
        "client_limit": client_limit(status),
        "clients": _listed(status.clients),
        "outside": _listed(status.outside),
        "outside_known": status.outside_known,
        "named": [
            {"name": each.name, "uid": each.uid, "pid": each.pid, "state": each.state}
            for each in status.named
        ]
        or None,
        "topology": project.settings.mps.topology,
        "missing": list(status.missing),
        "cpus": status.cpus or None,
        "gpu": status.gpu or None,
        "proof": dict(status.proof) or None,
        "gpus": [_gpu(gpu) for gpu in status.gpus],
    }


def _gpu(gpu: SmiGpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "utilization_percent": gpu.utilization,
        "memory_used_mib": gpu.memory_used_mib,
        "memory_total_mib": gpu.memory_total_mib,
    }


def client_limit(status: MpsStatus) -> int | None:
    """Contexts that one server takes; None where the GPU or the driver is not known."""
    capability = min(
        (gpu.compute_capability for gpu in status.gpus if gpu.compute_capability), default=None
    )
    if capability is None or status.cuda is None:
        return None
    return sizing.client_limit(capability, status.cuda)


def _listed(users: Sequence[MpsClient]) -> list[dict[str, Any]]:
    return [
        {
            "pid": user.pid,
            "command": user.command,
            "container": user.container,
            "memory_mib": user.memory_mib,
        }
        for user in users
    ]


def text(project: Project, status: MpsStatus) -> str:
    """The same for people."""
    if not status.container_running:
        name = daemon_container(project.settings)
        which = (
            "the worker container"
            if name == project.settings.worker.name
            else f"the container {name}"
        )
        return f"{which} is not running: {project.program_argv0} dev.up"
    if status.named:
        names = ", ".join(
            f"{server.name} (uid {server.uid}, {server.state or 'not running'})"
            for server in status.named
        )
        lines = [f"a daemon of MPS v3 answers, which somebody else started: server {names}"]
        return "\n".join(
            [
                *lines,
                *_table("", status.clients),
                *_table("these use the GPU without MPS", status.outside),
            ]
        )
    if not status.daemon:
        said = f" ({clean(status.silence)})" if status.silence else ""
        lines = [
            f"no MPS daemon answers in the container{said}",
            f"  try: {project.program_argv0} mps.enable",
        ]
        return "\n".join([*lines, *_table("these use the GPU without MPS", status.outside)])
    limit = client_limit(status)
    rows = [
        ("daemon", f"answers (pid {status.daemon_pid})" if status.daemon_pid else "answers"),
        ("server", _server(status)),
        *([("workers", _workers(status.workers, status.missing))] if status.workers else []),
        ("proof", _proof(status)),
        ("compute mode", status.compute_mode or "not known"),
        ("thread percentage", f"{status.thread_percentage:g} % for each client"),
        (
            "memory limit",
            f"{status.memory_limit} for each client" if status.memory_limit else "none",
        ),
        *([("cpus", status.cpus)] if status.cpus not in {"", "all"} else []),
        *([("gpu", status.gpu)] if status.gpu else []),
        ("clients", f"{len(status.clients)}" + (f" of {limit}" if limit else "")),
        *(
            []
            if status.outside_known
            else [
                (
                    "outside",
                    "not known: only root sees it, and nvidia-smi does not tell (become: sudo)",
                )
            ]
        ),
    ]
    lines = [f"{name:<18} {clean(value)}" for name, value in rows]
    outside = _table("these use the GPU outside MPS: restart them", status.outside)
    return "\n".join([*lines, *outside, *_table("attached" if outside else "", status.clients)])


def _server(status: MpsStatus) -> str:
    if status.server_pid is None:
        return "none yet: the first client starts it"
    return f"{status.server_state} (pid {status.server_pid}, uid {status.server_uid})"


def _workers(total: int, missing: Sequence[str]) -> str:
    """How many worker containers run, and which do not."""
    return f"{total - len(missing)} of {total}" + (
        f"; not running: {', '.join(missing)}" if missing else ""
    )


def _proof(status: MpsStatus) -> str:
    """What the probe clients said; one line for all that are attached."""
    if not status.proof:
        where = (
            "on this server" if status.workers is None else "with this server and these containers"
        )
        return f"not tried {where}: mps.enable tries it"
    if status.attached:
        count = len(status.proof)
        return (
            status.proof[0][1]
            if count == 1
            else f"a client of each of {count} containers was attached"
        )
    return "; ".join(
        f"{box}: {said}" for box, said in status.proof if not said.startswith("attached")
    )


def _table(title: str, users: Sequence[MpsClient]) -> list[str]:
    """One line for each process, with its memory where it is known; nothing of its command line that a terminal would obey."""
    if not users:
        return []
    named = [
        (user, clean(user.container), clean(user.command))
        for user in sorted(users, key=lambda user: user.pid)
    ]
    home = max(9, *(len(container) for _, container, _ in named))
    rows = [
        f"  {user.pid:>7}  {container:<{home}}  {_memory(user):>10}  {command}"
        for user, container, command in named
    ]
    return [
        "",
        *([title] if title else []),
        f"  {'pid':>7}  {'container':<{home}}  {'memory':>10}  command",
        *rows,
    ]


def _memory(user: MpsClient) -> str:
    return "-" if user.memory_mib is None else f"{user.memory_mib} MiB"
