"""mps.bench: n processes at once with and without MPS, measured on the user's own GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from provision.commands.mps.bench.options import BenchOptions
from provision.commands.mps.bench.preparation import prepare_target
from provision.commands.mps.bench.record import BenchRecord
from provision.commands.mps.bench.rounds import run_rounds
from provision.commands.mps.bench.target import BenchTarget
from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import Interrupted, ProvisionError
from provision.core.model import Note
from provision.mps.bench.grid import CellKey, cells_over_limit, grid_cells
from provision.project.project import Project

_WORKLOADS = {
    "mlp": "light trainings of an MLP of MNIST's shape",
    "driver": "short kernels through the CUDA driver API",
}


def mps_bench(project: Project, targets: Targets, options: BenchOptions) -> TaskResult:
    """Measure every cell of the grid in interleaved rounds; write JSON, chart and report.

    The figures are written after every cell. A run that is interrupted (Ctrl-C, a lost connection)
    ends with the figures so far. Exit status 1 when no cell has a result. Raises `UsageError` on a
    mock, which has nothing to measure, and `HostError` where the containers are unsuitable.
    """
    keys = grid_cells(options.modes, options.clients)
    host = host_access.resolve_host(project, targets)
    with contextlib.closing(host_access.connect(project, host)) as transport:
        target = prepare_target(project, transport, options)
        excluded = cells_over_limit(keys, target.client_limit)
        possible = tuple(key for key in keys if key not in excluded)
        record = _new_record(target, options, possible)
        record.announce()
        for key in excluded:
            limit = f"a server of MPS takes {target.client_limit} clients"
            record.leave_out(key, f"{limit} on this GPU with this driver")
        interruption = _run_until_interrupted(target, options, possible, record)
    return record.finish(interruption)


def _new_record(target: BenchTarget, options: BenchOptions, keys: Sequence[CellKey]) -> BenchRecord:
    """The empty record. Raises `ProvisionError` where its files cannot be written."""
    facts, project = target.facts, target.project
    about = {
        "gpu": facts.gpu_name or None,
        "gpu_uuid": facts.gpu_uuid or None,
        "driver": facts.driver or None,
        "gpu_memory": facts.gpu_memory or None,
        "compute_mode": facts.compute_mode or None,
        "cpus": len(facts.cpus) or None,
        "core_sets": target.is_pinned(options),
        "topology": project.settings.mps.topology,
        "program": options.command or f"built-in {target.workload}: {_WORKLOADS[target.workload]}",
    }
    record = BenchRecord(
        folder=project.project_dir / options.output,
        shown_folder=options.output,
        about=about,
        planned_runs=options.rounds * len(keys),
        rounds=options.rounds,
        emit=project.emit,
        with_chart=options.with_chart,
    )
    try:
        record.check_writable()
    except ProvisionError:
        _clean_up(target)
        raise
    return record


def _run_until_interrupted(
    target: BenchTarget, options: BenchOptions, keys: Sequence[CellKey], record: BenchRecord
) -> ProvisionError | None:
    """Run all rounds and clean up; return what interrupted them, or raise it without a figure."""
    interruption: ProvisionError | None = None
    try:
        run_rounds(target, options, keys, record)
    except KeyboardInterrupt:
        interruption = Interrupted("interrupted", where="mps.bench")
    except ProvisionError as error:
        interruption = error
    _clean_up(target, cell_may_run=interruption is not None)
    if interruption is not None and not record.samples.by_cell:
        raise interruption
    return interruption


def _clean_up(target: BenchTarget, *, cell_may_run: bool = False) -> None:
    """End an interrupted cell, then remove its folder. A failure becomes a note, no error."""
    try:
        if cell_may_run:
            target.end_cell()
        target.remove_files()
    except (ProvisionError, KeyboardInterrupt):
        text = f"may be left behind in container {target.container}: {target.folder}"
        target.project.emit(Note(text))
