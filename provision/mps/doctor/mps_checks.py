"""What the checks of `mps.doctor` make of MPS itself: daemon, server, clients, shares. Pure; in the order of `doctor.CHECKS`."""

from __future__ import annotations

import re
import shlex

from provision.mps.doctor.evidence import Found
from provision.mps.doctor.verdict import Judged, fail, ok, unknown, warn
from provision.mps.plan.gpu_limits import LEAST_SMS, SPARE_CLIENTS, client_limit, sms_at, sms_of
from provision.mps.status import control_tool
from provision.report.text import counted

LEAST_FREE = 0.05
"""Share of the GPU's memory below which the next client finds none."""
LARGEST_STEP = 8
"""Multiprocessors by which a share may come out smaller than foretold: steps other than two are not
known of every GPU."""


def daemon(found: Found) -> Judged:
    """It answers a query with a number, since exit statuses and socket files prove nothing; as `mps.enable` would have it."""
    if found.daemon.answers and found.differs:
        why = "; ".join(
            f"{key} {actual}, not {wanted}" for key, (actual, wanted) in found.differs.items()
        )
        return warn(
            "the plan of the settings is not in force",
            why,
            "invoke mps.enable   (a server keeps the plan of its start)",
        )
    if found.daemon.answers:
        return ok("answers")
    return fail(
        "no control daemon answers",
        found.daemon.said or "it printed nothing",
        "invoke mps.enable   (files of an earlier daemon do no harm)",
    )


def one_daemon(found: Found) -> Judged:
    """One live daemon for the pipe directory, and no corpses. A server is a child of its daemon."""
    pipe, pids = found.value("pipe"), {each.pid for each in found.processes}
    alive = [
        each for each in found.processes if each.state not in {"Z", "X"} and each.parent not in pids
    ]
    daemons = [each.pid for each in alive if each.pipe == pipe]
    elsewhere = [each for each in alive if each.pipe != pipe]
    zombies = sum(each.state == "Z" for each in found.processes)
    end = f"kill {' '.join(map(str, daemons))}   (in the container), then invoke mps.enable"
    if len(daemons) > 1:
        return fail(
            f"{len(daemons)} daemons have {pipe}",
            "the directory, and the lock in it, was removed under one of them",
            end,
        )
    if daemons and not found.daemon.answers:
        return fail(
            f"daemon {daemons[0]} lives and does not answer",
            "its sockets were removed, or it is stuck",
            end,
        )
    serverless = found.number("serverless")
    if (
        serverless and found.daemon.server_state != "ACTIVE"
    ):  # some drivers find it beside the daemon all the same
        why = "it was started with a PATH without the driver's bin folder, and starts its server by name: servers end with status 1"
        return fail(
            f"daemon {serverless} finds no nvidia-cuda-mps-server on its PATH",
            why,
            "invoke mps.disable, then invoke mps.enable",
        )
    if elsewhere:
        why = f"process {elsewhere[0].pid} has {elsewhere[0].pipe or 'the default one'}: whoever names another directory does not meet it"
        return warn(
            "there is a daemon of another pipe directory",
            why,
            f"kill {elsewhere[0].pid}   (in the container), if nobody needs it",
        )
    if zombies:
        why = "process 1 of the container does not reap, so pgrep and kill -0 still find them"
        return warn(
            f"{zombies} ended processes of MPS are zombies",
            why,
            "invoke dev.up   (its containers run with --init)",
        )
    return ok("one daemon" if daemons else "no daemon, and none left over")


def control_log(found: Found) -> Judged:
    """Servers that end as soon as they start leave their only trace here."""
    log = found.control
    if log.respawns:
        why = f"servers {', '.join(map(str, log.failed[-3:]))} ended with a failure, one after the other"
        return fail(
            "the server ends each time it is started",
            why,
            "look at checks 2, 4, 5 and 8; then invoke mps.disable and mps.enable",
        )
    if log.fatal:
        why = f"{counted(log.fatal, 'time')}, and no server became ready since"
        return fail(
            "a server met a fatal exception",
            why,
            "look at checks 4 and 5; then invoke vm.provision and invoke dev.up",
        )
    if log.refused_uids:
        users = ", ".join(map(str, log.refused_uids))
        return warn(
            f"commands of user {users} were refused",
            "settings are for root and for the daemon's user",
            "run them as root",
        )
    return ok("nothing unusual" if log.socket else "empty")


def server(found: Found) -> Judged:
    """ACTIVE, of the user whose workers wait for it: one user at a time."""
    state, uid = found.daemon.server_state, found.daemon.server_uid
    suspect = (
        f"; the first client that failed is process {found.server.suspect}"
        if found.server.suspect
        else ""
    )
    if state == "FAULT":
        fix = "stop all workers on this GPU: the server recovers when the last one ends; else invoke mps.disable --force, then mps.enable"
        return fail(
            "the server is in FAULT", f"a client's fatal fault reaches every client{suspect}", fix
        )
    waiting = [user for user in found.control.pending_uids if uid is not None and user != uid]
    if waiting:
        why = f"the server is that of user {uid}, and serves one at a time"
        return fail(
            f"clients of user {', '.join(map(str, waiting))} wait",
            why,
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
    if found.server.fault:  # seen on driver 580: ACTIVE at once, and newcomers work; its log keeps the line for as long as it lives
        why = f"the fault reached every client of that time{suspect}"
        fix = "start the workers that ended with it again; a server started anew (mps.disable, then mps.enable) has a log without it"
        return warn("the server met a fatal fault and is ACTIVE again", why, fix)
    return ok(f"ACTIVE, user {uid}" if uid is not None else "ACTIVE")


def environment(found: Found) -> Judged:
    """The workers' variables: another pipe directory is a silent fall-back, a device index after the remap an error."""
    everyone = [
        *((f"process {each.pid}", each.environment) for each in found.workers),
        ("the container", found.environment),
    ]
    pipe = found.value("pipe")
    for who, variables in everyone:
        theirs = variables.get("CUDA_MPS_PIPE_DIRECTORY")
        if who != "the container" and theirs != pipe:
            why = f"it has {theirs or 'none'}, the daemon {pipe}: it runs without MPS and reports nothing"
            return fail(
                f"{who} names another pipe directory",
                why,
                "start it with dev.exec or dev.run, or with the container's CUDA_MPS_PIPE_DIRECTORY",
            )
        visible = variables.get("CUDA_VISIBLE_DEVICES", "")
        if visible and not visible.startswith(("GPU-", "MIG-")):
            why = f"{visible} counts the daemon's devices from 0 again: an index that is not there is an error"
            return warn(
                f"{who} has CUDA_VISIBLE_DEVICES={visible}",
                why,
                "unset CUDA_VISIBLE_DEVICES in workers, or use the GPU's UUID",
            )
        for name in (
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            "CUDA_DEVICE_MAX_CONNECTIONS",
        ):
            if variables.get(name):
                why = (
                    "more connections make fewer clients fit"
                    if "CONNECTIONS" in name
                    else "it lowers what the server grants"
                )
                return warn(
                    f"{who} has {name}={variables[name]}", why, f"unset {name}, unless it is meant"
                )
    if not found.workers:
        return ok("nothing unusual")
    return ok(
        f"{counted(len(found.workers), 'process runs CUDA', 'processes run CUDA')}, all in order"
    )


def attachment(found: Found) -> Judged:
    """A CUDA client that is in the server's list, nobody who is not, and nobody in it who is no client for nvidia-smi."""
    said = found.probe
    if said.startswith(("outside", "failed")):
        fix = (
            "invoke mps.disable, then invoke mps.enable; the checks above say why"
            if said.startswith("outside")
            else f"invoke mps.explain --text {shlex.quote(said.partition(';')[0][:60])}"
        )
        return fail("a probe client is not attached to the server", said, fix)
    if found.daemon.outside:
        names = "; ".join(found.daemon.outside[:4])
        number = len(found.daemon.outside)
        what = f"{counted(number, 'process uses', 'processes use')} the GPU outside MPS"
        return fail(
            what,
            names,
            f"start {'it' if number == 1 else 'them'} again, now that the daemon answers",
        )
    if odd := [
        pid for pid in found.daemon.client_hosts if not found.types.get(pid, "M").startswith("M")
    ]:
        what = f"process {odd[0]} is of type {found.types[odd[0]]} for nvidia-smi"
        why = "it is in the server's list, and a client of MPS is of type M+C: another process may have had its number"
        return warn(what, why, "invoke mps.status; start it again where it runs outside MPS")
    if not found.daemon.outside_known:
        return unknown(
            "who uses the GPU was not seen",
            "only root sees it, and nvidia-smi does not tell",
            "become: sudo   for this host",
        )
    if said.startswith("attached"):
        return ok(said)
    return unknown(
        "whether a client attaches was not seen",
        said or "the probe client did not run",
        "invoke dev.exec -- python3 -c 'import ctypes'",
    )


def clients(found: Found) -> Judged:
    """Two fewer than the limit: a probe and a debugger want room."""
    number = len(found.daemon.clients)
    capability = found.daemon.gpus[0].compute_capability if found.daemon.gpus else None
    limit = client_limit(capability, found.daemon.cuda)
    if number > limit - SPARE_CLIENTS:
        why = f"the server takes {limit}; the next ones get error 808"
        return warn(
            f"{number} clients",
            why,
            f"run {limit - SPARE_CLIENTS} workers or fewer, one context each: invoke mps.plan",
        )
    return ok(f"{number} of {limit}")


def share(found: Found) -> Judged:
    """The percentage in force: at least two multiprocessors, no cap on a client alone."""
    percentage = found.daemon.thread_percentage
    if percentage is None:
        return unknown("the thread percentage is not told")
    return (
        _multiprocessors(found, percentage)
        or _alone(found, percentage)
        or ok(f"{percentage:g} %{_seen_of(found, percentage)}")
    )


def _seen(found: Found) -> int | None:
    """Multiprocessors that the probe client saw: rounding, floors and its own variables are in it. None where it saw none."""
    told = re.search(r"^attached: .* sees (\d{1,5}) multiprocessors", found.probe)
    return int(told[1]) if told else None


def _foretold(found: Found, percentage: float) -> tuple[int | None, int | None]:
    """Multiprocessors that a client should see, and all of them, by the GPU's name; None for an unknown one."""
    first = found.daemon.gpus[0] if found.daemon.gpus else None
    total = sms_of(first.name) if first else None
    return (
        (None, None)
        if first is None or total is None
        else (sms_at(percentage, total, first.compute_capability), total)
    )


def _seen_of(found: Found, percentage: float) -> str:
    """`, a client sees 32 of 132 multiprocessors`, as far as that is known."""
    seen, (foretold, total) = _seen(found), _foretold(found, percentage)
    if seen is None:
        return "" if foretold is None else f", {foretold} of {total} multiprocessors"
    return f", a client sees {_of(seen, total)}"


def _of(seen: int, total: int | None) -> str:
    return (
        counted(seen, "multiprocessor") if total is None else f"{seen} of {total} multiprocessors"
    )


def _multiprocessors(found: Found, percentage: float) -> Judged | None:
    """What is wrong with the number that a client has; what it saw goes before what it should see."""
    seen, (foretold, total) = _seen(found), _foretold(found, percentage)
    more = "set provision.mps.thread_percentage higher: invoke mps.plan"
    if seen is None and foretold is None and percentage < 100:
        why = "no client told it, and the GPU's name is not known"
        return unknown(
            f"how many multiprocessors {percentage:g} % are",
            why,
            "invoke dev.exec -- python3 -c 'import ctypes'",
        )
    if seen is None and foretold is not None and foretold < LEAST_SMS:
        why = f"{percentage:g} % of {total} is less than {LEAST_SMS}: contexts were reported to fail with error 46"
        return fail("the share rounds to nothing", why, more)
    if (
        seen is not None
        and foretold is not None
        and seen + (0 if percentage >= 100 else LARGEST_STEP) < foretold
    ):
        why = f"{percentage:g} % are {foretold}: a variable of the container's lowers it, or the server has another share than its daemon"
        fix = "unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in worker.env and in the image; else invoke mps.disable, then mps.enable"
        return warn(f"a client sees {seen} of {total} multiprocessors", why, fix)
    if seen is not None and seen < LEAST_SMS:
        why = f"fewer than {LEAST_SMS}, and a share that rounds to nothing was reported to fail with error 46"
        return warn(f"a client sees {_of(seen, total)}", why, more)
    return None


def _alone(found: Found, percentage: float) -> Judged | None:
    """A client that is held back, and nobody who uses the rest."""
    if percentage >= 100 or len(found.daemon.clients) != 1:
        return None
    fix = "unset provision.mps.thread_percentage, then invoke mps.enable"
    return warn(f"one client, held to {percentage:g} %", "nobody else uses the rest", fix)


def memory(found: Found) -> Judged:
    """Room on the card, limits that it can keep, and frameworks that do not take all of it."""
    first = found.daemon.gpus[0]
    free, total = first.memory_free_mib, first.memory_total_mib
    if free is None or total is None:
        return unknown("the GPU's memory is not told")
    if free < total * LEAST_FREE:
        why = f"{free} of {total} MiB are free"
        return warn(
            "the GPU's memory is nearly used up",
            why,
            "run fewer workers: invoke mps.plan --peak-memory=…",
        )
    limit, number = (
        control_tool.read_memory_limit_mib(found.daemon.memory_limit or ""),
        len(found.daemon.clients),
    )
    if limit is not None and limit * number > total:
        what = f"{counted(number, 'client')} may take {found.daemon.memory_limit} each"
        fix = f"set provision.mps.memory_limit to what invoke mps.plan --clients={number} says"
        return warn(
            what,
            f"that is {limit * number:,} MiB, and the card has {total:,}: the last ones run out of memory",
            fix,
        )
    if greedy := _greedy(found):
        return greedy
    held = f", {found.daemon.memory_limit} for each client" if found.daemon.memory_limit else ""
    return ok(f"{free:,} of {total:,} MiB free{held}")


def _greedy(found: Found) -> Judged | None:
    """Who takes the whole card at its start: workers by what they have loaded or were told; the next one has what the container has."""
    for worker in found.workers:
        grows = worker.environment.get("TF_FORCE_GPU_ALLOW_GROWTH")
        if not _true(grows or "") and (grows or "tensorflow" in worker.libraries):
            why = "TensorFlow takes the whole card at its start, unless the program itself sets memory growth"
            fix = "start it again with dev.exec or dev.run, or with TF_FORCE_GPU_ALLOW_GROWTH=true"
            return warn(
                f"process {worker.pid} runs TensorFlow without TF_FORCE_GPU_ALLOW_GROWTH=true",
                why,
                fix,
            )
        takes = worker.environment.get("XLA_PYTHON_CLIENT_PREALLOCATE")
        chosen = "XLA_PYTHON_CLIENT_MEM_FRACTION" in worker.environment
        if not chosen and (_true(takes) if takes else "jaxlib" in worker.libraries):
            why = "JAX takes most of what is free at its start, so the first worker gets more than the next"
            fix = "set XLA_PYTHON_CLIENT_PREALLOCATE: 'false' in worker.env, then invoke dev.up and start it again"
            return warn(
                f"process {worker.pid} runs JAX without XLA_PYTHON_CLIENT_PREALLOCATE=false",
                why,
                fix,
            )
    if not _true(found.environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "")):
        why = "TensorFlow takes the whole card at its start, and the next worker gets nothing"
        return warn(
            "TF_FORCE_GPU_ALLOW_GROWTH is not set",
            why,
            "invoke dev.up   (sets it), and XLA_PYTHON_CLIENT_PREALLOCATE=false for JAX",
        )
    return None


def _true(text: str) -> bool:
    return text.strip().lower() in {"true", "1"}
