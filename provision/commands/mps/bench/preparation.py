"""The preparation of a benchmark: fetch facts, refuse unsuitable targets, send the program."""

from __future__ import annotations

from provision.commands.mps.bench.options import BenchOptions
from provision.commands.mps.bench.target import BenchTarget, new_token
from provision.commands.mps.shared.gpu_users import check_gpu_unused
from provision.commands.mps.shared.status_report import client_limit
from provision.commands.shared.project_files import bring_project
from provision.commands.shared.run_script import run_script
from provision.commands.shared.worker_container import container_not_running
from provision.core.errors import HostError, UsageError
from provision.core.model import Transport
from provision.mps.bench import chart
from provision.mps.bench.cell_script import workload_source
from provision.mps.bench.target_facts import TargetFacts, read_target_facts, target_facts_script
from provision.project.project import Project
from provision.recipes.worker import daemon_container_name

_FACTS_TIMEOUT_S = 120.0


def prepare_target(project: Project, transport: Transport, options: BenchOptions) -> BenchTarget:
    """The target of a benchmark, with the program in its container.

    Raises `UsageError` for a mock and for a GPU that does not exist, `HostError` where a container
    is stopped or lacks what is needed, or where the GPU is busy or lets one process in at a time.
    """
    facts = _fetch_facts(project, transport)
    _check_not_mock(facts, transport)
    for container in (project.settings.worker.name, daemon_container_name(project.settings)):
        if facts.running.get(container) != "true":
            raise container_not_running(project, transport, container)
    _check_gpu(project, facts, transport.host.name)
    _check_compute_mode(project, facts, transport.host.name)
    status = check_gpu_unused(project, transport, facts.gpu_uuid)
    if options.command is None and not facts.has_python:
        raise HostError(
            "the container has no python3 for the built-in program",
            where=transport.host.name,
            why="command -v python3",
            fix="--command PROGRAM",
        )
    if options.with_chart:
        chart.check_installed()
    workload = options.workload or ("mlp" if facts.has_torch else "driver")
    target = BenchTarget(project, transport, facts, workload, new_token(), client_limit(status))
    if options.command is not None:
        bring_project(project, transport)
    target.send_workload(workload_source(workload))
    return target


def _fetch_facts(project: Project, transport: Transport) -> TargetFacts:
    settings = project.settings
    script = target_facts_script(
        settings.worker.name, daemon_container_name(settings), settings.mps.gpu or ""
    )
    return read_target_facts(
        run_script(transport, script, "reading the facts of the GPU", timeout_s=_FACTS_TIMEOUT_S)
    )


def _check_not_mock(facts: TargetFacts, transport: Transport) -> None:
    if facts.is_mock:
        raise UsageError(
            "mps.bench measures a GPU; this is a mock, which has none",
            where=transport.host.name,
        )


def _check_gpu(project: Project, facts: TargetFacts, where: str) -> None:
    if facts.gpu_uuid and not facts.gpu_uuid.startswith("GPU-"):
        raise UsageError(
            "there is no such GPU",
            where=f"provision.mps.gpu: {project.settings.mps.gpu or ''}",
            why=facts.gpu_uuid,
            fix=f"{project.program_argv0} dev.exec -- nvidia-smi -L",
        )
    if not facts.gpu_name:
        raise HostError(
            "no GPU answers in the container",
            where=where,
            why="nvidia-smi lists none",
            fix="invoke vm.provision",
        )


def _check_compute_mode(project: Project, facts: TargetFacts, where: str) -> None:
    """Raise `HostError` for a GPU that lets in a single process, which may be the MPS server."""
    if facts.compute_mode.startswith(("Exclusive", "Prohibited")):
        was_set_here = project.settings.mps.exclusive
        raise HostError(
            "several processes cannot use the GPU without MPS now: nothing could be compared",
            where=where,
            why=f"the compute mode is {facts.compute_mode}",
            fix=f"{project.program_argv0} mps.disable"
            if was_set_here
            else "sudo nvidia-smi -c DEFAULT   (on the host)",
        )
