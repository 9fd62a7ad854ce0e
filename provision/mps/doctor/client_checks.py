"""Checks of the programs that use the GPU: variables, attachment, number. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from provision.mps.doctor.evidence import Evidence
from provision.mps.doctor.finding import Finding, fail, ok, unknown, warn
from provision.mps.plan.gpu_limits import SPARE_CLIENTS, client_limit
from provision.report.text import count_phrase

_LIMITING = {
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "it lowers what the server grants",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "it lowers what the server grants",
    "CUDA_DEVICE_MAX_CONNECTIONS": "more connections make fewer clients fit",
}
"""Variables that limit one program, and how."""
_MAX_LISTED = 4


def environment(evidence: Evidence) -> Finding:
    """No program has variables that keep it out of MPS or limit it."""
    processes = evidence.cuda_processes
    for process in processes:
        name = f"process {process.pid}"
        if problem := _other_pipe(name, process.environment, evidence.value("pipe")):
            return problem
        if problem := _limited(name, process.environment):
            return problem
    if problem := _limited("the container", evidence.environment):
        return problem
    if not processes:
        return ok("nothing unusual")
    return ok(f"{count_phrase(len(processes), 'process runs', 'processes run')} CUDA, all in order")


def _other_pipe(name: str, variables: Mapping[str, str], pipe: str) -> Finding | None:
    """A pipe directory that is not the daemon's: the program runs without MPS."""
    own = variables.get("CUDA_MPS_PIPE_DIRECTORY")
    if own == pipe:
        return None
    return fail(
        f"{name} has another pipe directory",
        f"it has {own or 'none'}, the daemon {pipe}: it runs without MPS and reports nothing",
        "start it with dev.exec or dev.run, or with the container's CUDA_MPS_PIPE_DIRECTORY",
    )


def _limited(name: str, variables: Mapping[str, str]) -> Finding | None:
    """A device index, which the daemon's remap makes wrong, or a variable of `_LIMITING`."""
    visible = variables.get("CUDA_VISIBLE_DEVICES", "")
    if visible and not visible.startswith(("GPU-", "MIG-")):
        return warn(
            f"{name} has CUDA_VISIBLE_DEVICES={visible}",
            f"{visible} counts the daemon's devices from 0 again: an index that is not there is an"
            " error",
            "unset CUDA_VISIBLE_DEVICES in workers, or use the GPU's UUID",
        )
    for variable, why in _LIMITING.items():
        if value := variables.get(variable):
            return warn(f"{name} has {variable}={value}", why, f"unset {variable}, unless intended")
    return None


def attachment(evidence: Evidence) -> Finding:
    """A CUDA client is in the server's list, and every other user of the GPU is, too."""
    return (
        _probe_failed(evidence)
        or _outside(evidence)
        or _wrong_type(evidence)
        or _attachment_unknown(evidence)
        or ok(evidence.probe)
    )


def _probe_failed(evidence: Evidence) -> Finding | None:
    what, answer = "a probe client is not attached to the server", evidence.probe
    if answer.startswith("outside"):
        return fail(
            what,
            answer,
            "invoke mps.disable, then invoke mps.enable; the checks above show why",
        )
    if answer.startswith("failed"):
        text = shlex.quote(answer.partition(";")[0][:60])
        return fail(what, answer, f"invoke mps.explain --text {text}")
    return None


def _outside(evidence: Evidence) -> Finding | None:
    outside = evidence.status.outside
    if not outside:
        return None
    pronoun = "it" if len(outside) == 1 else "them"
    return fail(
        f"{count_phrase(len(outside), 'process uses', 'processes use')} the GPU outside MPS",
        "; ".join(map(str, outside[:_MAX_LISTED])),
        f"start {pronoun} again, now that the daemon answers",
    )


def _wrong_type(evidence: Evidence) -> Finding | None:
    """A process in the server's list that nvidia-smi does not call a client of MPS."""
    types = evidence.process_types
    for client in evidence.status.clients:
        kind = types.get(client.host_pid or 0, "M")
        if not kind.startswith("M"):
            return warn(
                f"nvidia-smi gives process {client.host_pid} the type {kind}",
                "it is in the server's list, and a client of MPS is of type M+C: another process"
                " may have had its number",
                "invoke mps.status; start it again where it runs outside MPS",
            )
    return None


def _attachment_unknown(evidence: Evidence) -> Finding | None:
    if not evidence.status.outside_known:
        return unknown(
            "it is not known who uses the GPU",
            "only root sees it, and nvidia-smi does not report it",
            "become: sudo   for this host",
        )
    if not evidence.probe.startswith("attached"):
        return unknown(
            "it is not known whether a client attaches",
            evidence.probe or "the probe client did not run",
            "invoke dev.exec -- python3 -c 'import ctypes'",
        )
    return None


def clients(evidence: Evidence) -> Finding:
    """There is room for two more clients: a probe and a debugger need it."""
    gpus, count = evidence.status.gpus, evidence.client_count
    capability = gpus[0].compute_capability if gpus else None
    limit = client_limit(capability, evidence.status.cuda)
    if count > limit - SPARE_CLIENTS:
        return warn(
            f"{count} clients",
            f"the server takes {limit}; the next ones get error 808",
            f"run {limit - SPARE_CLIENTS} workers or fewer, one context each: invoke mps.plan",
        )
    return ok(f"{count} of {limit}")
