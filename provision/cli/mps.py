"""NVIDIA MPS in the container: one GPU shared by many processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.adapter import command
from provision.cli.flags import TaskSpec

if TYPE_CHECKING:
    from provision.cli.execution import Run
    from provision.commands.shared.result import TaskResult


@command(
    TaskSpec("mps.plan", targets=True, prints_result=True, dry_run=False, single_host=True),
    about={
        "clients": "the number of processes, instead of as many as fit",
        "peak_memory": (
            "the peak GPU memory of one process, as nvidia-smi shows it without MPS: 900m, 2g"
        ),
        "measure": "a command to run once in the container, to measure what one process needs",
    },
)
def plan(
    run: Run, clients: str | None = None, peak_memory: str | None = None, measure: str | None = None
) -> TaskResult:
    """Plan how many processes can share the GPU, and with which limits.

    Every number comes with its reason; nothing is changed. `--measure "python x.py"` runs the
    command once and reads its peak memory and how busy it keeps the GPU.
    """
    from provision.commands.mps.plan import mps_plan

    return mps_plan(
        run.project, targets=run.targets, clients=clients, peak_memory=peak_memory, measure=measure
    )


@command(TaskSpec("mps.enable", targets=True))
def enable(run: Run) -> TaskResult:
    """Start the MPS daemon as the settings plan it, and prove that a client attaches.

    Run again, it changes nothing. A changed plan takes effect once the clients have ended.
    """
    from provision.commands.mps.enable import mps_enable

    return mps_enable(run.project, targets=run.targets)


@command(
    TaskSpec("mps.status", targets=True, prints_result=True, dry_run=False, single_host=True),
    about={
        "strict": (
            "end with 1 when a process uses the GPU outside MPS (or that is unknown), "
            "or no server is ACTIVE and proven"
        )
    },
)
def status(run: Run, *, strict: bool = False) -> TaskResult:
    """Show daemon, server, clients, and who uses the GPU outside MPS."""
    from provision.commands.mps.status import mps_status

    return mps_status(run.project, targets=run.targets, strict=strict)


@command(
    TaskSpec(
        "mps.top", targets=True, prints_result=True, streams=True, dry_run=False, single_host=True
    )
)
def top(run: Run) -> TaskResult:
    """Watch clients, memory and the GPU's activity, until q or Ctrl-C.

    Without a terminal, and with --json, it prints one reading.
    """
    import sys

    from provision.commands.mps.top import mps_top

    if run.confirm is None or not sys.stdout.isatty():
        return mps_top(run.project, targets=run.targets)
    from provision.report.screen import Screen

    with Screen() as screen:
        return mps_top(run.project, targets=run.targets, view=screen)


@command(
    TaskSpec("mps.disable", targets=True),
    about={"force": "terminate clients that are still attached"},
)
def disable(run: Run, *, force: bool = False) -> TaskResult:
    """Stop the MPS daemon once its clients have ended, and restore the previous state."""
    from provision.commands.mps.disable import mps_disable

    return mps_disable(run.project, targets=run.targets, force=force)


@command(
    TaskSpec("mps.bench", targets=True, dry_run=False, single_host=True),
    about={
        "command": (
            "your program instead of the built-in one; "
            "{steps} in it is replaced by the number of steps"
        ),
        "workload": (
            "the built-in program: mlp (PyTorch) or driver (no framework); "
            "mlp where PyTorch is installed"
        ),
        "clients": "numbers of processes, 1,2,4,8,16 by default",
        "modes": "any of none, mps, 100/N, 200/N; all by default",
        "rounds": "how often each cell is run, 3 by default",
        "budget": "the total time, from which the number of steps is derived: 6m",
        "steps": "steps of the program, 3000 by default",
        "output": "folder for JSON, report and charts, mps-bench by default",
        "unpinned": "do not pin each process to cores of its own",
        "no_chart": "draw no charts (they need matplotlib)",
    },
)
def bench(
    run: Run,
    *,
    command: str | None = None,
    workload: str | None = None,
    clients: str | None = None,
    modes: str | None = None,
    rounds: str | None = None,
    budget: str | None = None,
    steps: str | None = None,
    output: str | None = None,
    unpinned: bool = False,
    no_chart: bool = False,
) -> TaskResult:
    """Measure n processes at once with and without MPS.

    On your GPU, with your program or a built-in one: table, JSON, chart and report. Refused on the
    mock, which has nothing to measure.
    """
    from provision.commands.mps.bench.bench import mps_bench
    from provision.commands.mps.bench.options import parse_options

    options = parse_options(
        command=command,
        workload=workload,
        clients=clients,
        modes=modes,
        rounds=rounds,
        budget=budget,
        steps=steps,
        output=output,
        with_chart=not no_chart,
        pinned=not unpinned,
    )
    return mps_bench(run.project, targets=run.targets, options=options)


@command(
    TaskSpec("mps.explain", prints_result=True),
    about={
        "text": "the error text itself",
        "file": "a file that holds it, such as a log; - is standard input",
    },
)
def explain(run: Run, text: str | None = None, file: str | None = None) -> TaskResult:
    """Explain an error text or a log, and what to do.

    It covers NVIDIA's MPS and recognises errors of Apple's MPS. Exit status 1 when no part of the
    text is known.
    """
    from provision.commands.mps.explain import mps_explain

    return mps_explain(run.project, text=text, file=file)


@command(
    TaskSpec(
        "mps.doctor",
        targets=True,
        prints_result=True,
        words="pipeline options",
        dry_run=False,
        single_host=True,
    )
)
def doctor(run: Run) -> TaskResult:
    """Check everything that MPS depends on, in order, each with a remedy.

    Pipeline options after -- are checked too. Exit status 0: healthy, 1: warnings, 2: broken, 3:
    a check could not be made.
    """
    from provision.commands.mps.doctor import mps_doctor

    return mps_doctor(run.project, targets=run.targets, options=run.words)
