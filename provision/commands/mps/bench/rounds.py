"""The runs of a benchmark: pilots to find the number of steps, then every cell of every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provision.commands.mps.bench.options import DEFAULT_STEPS, BenchOptions
from provision.commands.mps.bench.record import BenchRecord
from provision.commands.mps.bench.target import BenchTarget
from provision.commands.mps.shared.fetch_status import fetch_status
from provision.commands.mps.shared.gpu_users import describe_gpu_users
from provision.core import durations
from provision.core.errors import ProvisionError, Unreachable, UsageError
from provision.core.model import Note
from provision.mps.bench.cell import CellFailed
from provision.mps.bench.grid import CellKey, shuffled_rounds
from provision.mps.bench.pilots import Pilot, pilot_candidates, predict_s, steps_for_budget

PILOT_STEPS = 200


def run_rounds(
    target: BenchTarget, options: BenchOptions, keys: Sequence[CellKey], record: BenchRecord
) -> None:
    """Run the pilots where they are needed, then every cell once in each round.

    Raises `CellFailed` when the first cell, one process alone, gives no figure, `UsageError` when
    the grid does not fit the budget, and errors of the connection.
    """
    needs_pilots = options.budget_s is not None or options.has_fixed_steps
    pilots = _run_pilots(target, options, keys) if needs_pilots else []
    steps = _choose_steps(options, keys, pilots)
    record.steps = None if options.has_fixed_steps else steps
    runs_left = dict.fromkeys(keys, options.rounds)
    run_s = dict(predict_s(keys, pilots, steps)) if pilots else {}
    for number, key in shuffled_rounds(keys, options.rounds):
        try:
            sample, seconds = target.run_cell(options, key, steps)
        except CellFailed as error:
            if not record.samples.by_cell:
                raise
            record.add_failure(key, f"{error.what}: {error.why}")
            outcome = f"no figure: {error.what}"
        else:
            record.add_sample(key, sample)
            run_s[key] = seconds
            outcome = f"{sample.makespan_s:7.2f} s"
        runs_left[key] -= 1
        progress = f"round {number}/{options.rounds}  {key.mode:>5} x {key.clients:<3} {outcome}"
        target.project.emit(Note(progress + _time_left(runs_left, run_s)))
        if sum(runs_left.values()) % len(keys) == 0:
            _record_other_users(target, record, number)


def _record_other_users(target: BenchTarget, record: BenchRecord, number: int) -> None:
    """Record who uses the GPU after a round; a failed fetch becomes a note."""
    try:
        status = fetch_status(
            target.project, target.transport.host, target.transport, gpu=target.facts.gpu_uuid
        )
    except Unreachable:
        raise
    except ProvisionError as error:
        text = f"after round {number} the users of the GPU could not be listed: {error.what}"
        target.project.emit(Note(text))
    else:
        record.add_other_users(number, describe_gpu_users(status))


def _time_left(runs_left: Mapping[CellKey, int], run_s: Mapping[CellKey, float]) -> str:
    """About how long the remaining runs take; empty where that is unknown or nothing remains."""
    if not run_s or not any(runs_left.values()):
        return ""
    mean_s = sum(run_s.values()) / len(run_s)
    left_s = sum(count * run_s.get(key, mean_s) for key, count in runs_left.items())
    return f"   {durations.rounded(left_s)} left"


def _run_pilots(target: BenchTarget, options: BenchOptions, keys: Sequence[CellKey]) -> list[Pilot]:
    """Pilot one process alone and the largest cells; smaller ones where those give no figure."""
    pilots: list[Pilot] = []
    steps = 1 if options.has_fixed_steps else PILOT_STEPS
    for candidates in pilot_candidates(keys):
        for key in candidates:
            target.project.emit(Note(f"calibrating: {key}"))
            try:
                sample, total_s = target.run_cell(options, key, PILOT_STEPS)
            except CellFailed as error:
                if not pilots:
                    raise
                text = f"calibrating: {key} gives no figure: {error.what}"
                target.project.emit(Note(text))
                continue
            pilots.append(Pilot(key, steps, sample.makespan_s, total_s))
            break
    return pilots


def _choose_steps(options: BenchOptions, keys: Sequence[CellKey], pilots: Sequence[Pilot]) -> int:
    """The number of steps of every run; 1 for a program that takes none.

    Raises `UsageError` when the grid does not fit the budget.
    """
    if options.has_fixed_steps:
        if options.budget_s is not None:
            _check_budget(options, keys, pilots, options.budget_s)
        return 1
    if options.budget_s is None:
        return options.steps or DEFAULT_STEPS
    return steps_for_budget(keys, pilots, rounds=options.rounds, budget_s=options.budget_s)


def _check_budget(
    options: BenchOptions, keys: Sequence[CellKey], pilots: Sequence[Pilot], budget_s: float
) -> None:
    """Raise `UsageError` when the rounds of a program without steps take longer than the budget."""
    needed_s = options.rounds * sum(predict_s(keys, pilots, 1).values())
    if needed_s > budget_s:
        raise UsageError(
            "the grid does not fit the budget",
            where=f"--budget {durations.rounded(budget_s)}",
            why=f"{options.rounds} rounds of {len(keys)} cells take about "
            f"{durations.rounded(needed_s)}, and the command takes no {{steps}}",
            fix="fewer --clients or --modes, a larger --budget, or {steps} in the command",
        )
