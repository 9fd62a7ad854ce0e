"""Checks of the control daemon and its server. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from provision.mps.doctor.evidence import Evidence, MpsProcess
from provision.mps.doctor.finding import Finding, fail, ok, warn
from provision.report.text import count_phrase

_RESTART = "invoke mps.disable, then invoke mps.enable"


def daemon(evidence: Evidence) -> Finding:
    """The daemon answers, and its plan is that of the settings.

    Exit statuses and socket files prove nothing.
    """
    if not evidence.status.daemon:
        answer = evidence.status_error or evidence.status.why_no_answer
        return fail(
            "no control daemon answers",
            answer or "it printed nothing",
            "invoke mps.enable   (files of an earlier daemon do no harm)",
        )
    if evidence.differs:
        pairs = evidence.differs.items()
        return warn(
            "the plan of the settings is not in force",
            "; ".join(f"{key} {actual}, not {wanted}" for key, (actual, wanted) in pairs),
            "invoke mps.enable   (a server keeps the plan of its start)",
        )
    return ok("answers")


def one_daemon(evidence: Evidence) -> Finding:
    """One live daemon has the pipe directory, and no ended process of MPS is left."""
    processes, pipe = evidence.mps_processes, evidence.value("pipe")
    running = _running_daemons(processes)
    on_pipe = [process.pid for process in running if process.pipe == pipe]
    return (
        _wrong_daemons(evidence, on_pipe, pipe)
        or _foreign_daemon([process for process in running if process.pipe != pipe])
        or _zombies(sum(process.state == "Z" for process in processes))
        or ok("one daemon" if on_pipe else "no daemon, and none left over")
    )


def _running_daemons(processes: Sequence[MpsProcess]) -> list[MpsProcess]:
    """Live processes without a parent among `processes`: a server is a child of its daemon."""
    pids = {process.pid for process in processes}
    return [each for each in processes if each.state not in {"Z", "X"} and each.parent not in pids]


def _wrong_daemons(evidence: Evidence, pids: Sequence[int], pipe: str) -> Finding | None:
    """Several daemons of the pipe directory, one that does not answer, or one without a server."""
    end = f"kill {' '.join(map(str, pids))}   (in the container), then invoke mps.enable"
    if len(pids) > 1:
        return fail(
            f"{len(pids)} daemons have {pipe}",
            "the directory, and the lock in it, was removed under one of them",
            end,
        )
    if pids and not evidence.status.daemon:
        return fail(
            f"daemon {pids[0]} lives and does not answer",
            "its sockets were removed, or it is stuck",
            end,
        )
    serverless = evidence.number("serverless")
    # Some drivers find the server program beside the daemon all the same.
    if serverless and evidence.status.server_state != "ACTIVE":
        return fail(
            f"daemon {serverless} finds no nvidia-cuda-mps-server on its PATH",
            "it was started with a PATH without the driver's bin folder, and starts its server by"
            " name: servers end with status 1",
            _RESTART,
        )
    return None


def _foreign_daemon(daemons: Sequence[MpsProcess]) -> Finding | None:
    if not daemons:
        return None
    first = daemons[0]
    return warn(
        "there is a daemon of another pipe directory",
        f"process {first.pid} has {first.pipe or 'the default one'}: a program with that directory"
        " does not use the daemon of the settings",
        f"kill {first.pid}   (in the container), if no program needs it",
    )


def _zombies(count: int) -> Finding | None:
    if not count:
        return None
    return warn(
        f"{count} ended processes of MPS are zombies",
        "process 1 of the container does not reap, so pgrep and kill -0 still find them",
        "invoke dev.up   (its containers run with --init)",
    )


def control_log(evidence: Evidence) -> Finding:
    """No server ended as soon as it started: control.log has the only trace of that."""
    log = evidence.control
    if log.respawns:
        pids = ", ".join(map(str, log.failed[-3:]))
        return fail(
            "the server ends each time it is started",
            f"servers {pids} ended with a failure, one after the other",
            "look at checks 2, 4, 5 and 8; then invoke mps.disable and mps.enable",
        )
    if log.fatal:
        return fail(
            "a server met a fatal exception",
            f"{count_phrase(log.fatal, 'time')}, and no server became ready since",
            "look at checks 4 and 5; then invoke vm.provision and invoke dev.up",
        )
    if log.refused_uids:
        return warn(
            f"commands of user {', '.join(map(str, log.refused_uids))} were refused",
            "settings are for root and for the daemon's user",
            "run them as root",
        )
    return ok("nothing unusual" if log.socket else "empty")


def server(evidence: Evidence) -> Finding:
    """The server is ACTIVE, and no user waits for it: a server serves one user at a time."""
    state, uid = evidence.status.server_state, evidence.status.server_uid
    if state == "FAULT":
        return fail(
            "the server is in FAULT",
            f"a client's fatal fault reaches every client{_first_failed(evidence)}",
            "stop all workers on this GPU: the server recovers when the last one ends; else invoke"
            " mps.disable --force, then mps.enable",
        )
    waiting = [user for user in evidence.control.pending_uids if uid is not None and user != uid]
    if waiting:
        return fail(
            f"clients of user {', '.join(map(str, waiting))} wait",
            f"the server is that of user {uid}, and serves one at a time",
            "run daemon and workers as one user",
        )
    if not state:
        return fail(
            "the daemon has no server",
            "the next client starts it; one that was started is gone",
            "invoke mps.enable",
        )
    if state != "ACTIVE":
        return warn(
            f"the server is {state}",
            "clients are kept waiting",
            "wait 30 s; sudo nvidia-smi -pm 1   (on the host) makes it faster",
        )
    return _past_fault(evidence) or ok(f"ACTIVE, user {uid}" if uid is not None else "ACTIVE")


def _past_fault(evidence: Evidence) -> Finding | None:
    """A fault that the server recovered from.

    Driver 580 is ACTIVE at once and serves new clients; server.log keeps the line while it lives.
    """
    if not evidence.server.fault:
        return None
    return warn(
        "the server met a fatal fault and is ACTIVE again",
        f"the fault reached every client of that time{_first_failed(evidence)}",
        "start the workers that ended with it again; a restarted server (mps.disable, then"
        " mps.enable) has a log without it",
    )


def _first_failed(evidence: Evidence) -> str:
    """The client whose fault the others share, as the end of a sentence; empty where unknown."""
    suspect = evidence.server.suspect
    return f"; the first client that failed is process {suspect}" if suspect else ""
