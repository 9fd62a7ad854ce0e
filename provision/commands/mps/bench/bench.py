"""The benchmark of MPS on a user's own GPU: one cell after the other in the worker container, then table, chart and report."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from provision.commands.mps.bench.options import Asked
from provision.commands.mps.bench.results import Figures
from provision.commands.mps.bench.target import Place
from provision.commands.mps.shared.fetch_status import fetch_status
from provision.commands.mps.shared.gpu_users import check_gpu_unused, describe_gpu_users
from provision.commands.mps.shared.status_report import client_limit
from provision.commands.shared import convergence, remote_exec
from provision.commands.shared.project_files import bring_project
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core import durations
from provision.core.errors import HostError, Interrupted, ProvisionError, Unreachable, UsageError
from provision.core.model import Note, Transport
from provision.core.shell import fields, script
from provision.mps.bench import chart, grid
from provision.mps.bench.cell import CellFailed
from provision.mps.bench.grid import Key, Pilot
from provision.project.project import Project
from provision.recipes.worker import daemon_container

_ABOUT = {
    "mlp": "light trainings of an MLP of MNIST's shape",
    "driver": "short kernels through the CUDA driver API",
}
PILOT_STEPS = 200

_LOOK = """
echo "cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)"
command -v taskset >/dev/null && echo taskset=yes
command -v python3 >/dev/null && echo python=yes
python3 -c 'import importlib.util as u; print("torch=%s" % ("yes" if u.find_spec("torch") else ""))' 2>/dev/null
gpu=
if test -n "$1" || test "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')" -gt 1; then
    gpu=$(nvidia-smi -i "${1:-0}" --query-gpu=uuid --format=csv,noheader 2>&1 | head -n 1)
    echo "gpu=$gpu"
fi
for key in name driver_version memory.total compute_mode; do
    echo "$key=$(nvidia-smi ${gpu:+-i "$gpu"} --query-gpu="$key" --format=csv,noheader 2>/dev/null | head -n 1)"
done
"""
_HOST_LOOK = """
echo "mock=${PROVISION_MOCK_ROOT:+yes}"
for box in "$name" "$daemon"; do
    echo "running $box=$(docker container inspect -f '{{.State.Running}}' "$box" 2>/dev/null)"
done
echo "boxes=$({ echo "$name"; docker ps --filter "label=provision.sibling=$name" --format '{{.Names}}' | sort; } | tr '\\n' ' ')"
docker exec "$name" sh -c "$body" provision "$gpu" 2>/dev/null || true
"""


def mps_bench(project: Project, targets: Targets, asked: Asked) -> TaskResult:
    """Measure every cell of the grid in interleaved rounds and write JSON, chart and report. Exit status 1 when no cell gave a figure.

    What was measured is written after every cell; a run that is cut (Ctrl-C, a lost connection)
    ends with what there is. Raises `UsageError` on a mock, which has nothing to measure, and
    `HostError` where the containers cannot be measured in.
    """
    keys = grid.grid(asked.modes, asked.clients)
    transport = convergence.connect(project, convergence.host(project, targets))
    try:
        place = _look(project, transport, asked)
        possible = tuple(key for key in keys if key not in grid.over_limit(keys, place.limit))
        figures = _figures(place, asked, possible)
        figures.announce()
        for key in keys:
            if key not in possible:
                figures.leave_out(
                    key, f"a server of MPS takes {place.limit} clients on this GPU with this driver"
                )
        cut = _until_cut(place, asked, possible, figures)
    finally:
        transport.close()
    return figures.finish(cut)


def _figures(place: Place, asked: Asked, keys: Sequence[Key]) -> Figures:
    """Where the results go, and what is known of them beforehand. Raises `ProvisionError` where they cannot be written."""
    said = {key: value.strip() or None for key, value in place.about.items()}
    about = {
        "gpu": said.get("name"),
        "gpu_uuid": said.get("gpu"),
        "driver": said.get("driver_version"),
        "gpu_memory": said.get("memory.total"),
        "compute_mode": said.get("compute_mode"),
        "cpus": len(place.cpus) or None,
        "core_sets": place.pins(asked),
        "topology": place.project.settings.mps.topology,
        "program": asked.command or f"built-in {place.workload}: {_ABOUT[place.workload]}",
    }
    figures = Figures(
        folder=place.project.project_dir / asked.output,
        shown=asked.output,
        about=about,
        planned=asked.rounds * len(keys),
        rounds=asked.rounds,
        emit=place.project.emit,
        with_chart=asked.with_chart,
    )
    try:
        figures.check()
    except ProvisionError:
        _tidy(place)
        raise
    return figures


def _until_cut(
    place: Place, asked: Asked, keys: Sequence[Key], figures: Figures
) -> ProvisionError | None:
    """Measure, and tidy up; what cut it short, which is raised where nothing was measured yet."""
    cut: ProvisionError | None = None
    try:
        _measure(place, asked, keys, figures)
    except KeyboardInterrupt:
        cut = Interrupted("interrupted", where="mps.bench")
    except ProvisionError as error:
        cut = error
    _tidy(place, running=cut is not None)
    if cut is not None and not figures.results.samples:
        raise cut
    return cut


def _tidy(place: Place, *, running: bool = False) -> None:
    """End what still runs of a cell that was cut, then remove the folder, into which it writes. No figure is lost for a failure here."""
    try:
        if running:
            place.end()
        place.tidy()
    except (ProvisionError, KeyboardInterrupt):
        place.project.emit(
            Note(f"may be left behind in container {place.container}: {place.folder}")
        )


def _look(project: Project, transport: Transport, asked: Asked) -> Place:
    """What the container has. Refuses a mock, a container that is not there, one that lacks what is needed, and a busy GPU."""
    name = project.settings.worker.name
    chosen = project.settings.mps.gpu or ""
    daemon = daemon_container(project.settings)
    body = script(_HOST_LOOK, name=name, daemon=daemon, body=_LOOK, gpu=chosen)
    about = dict(
        fields(remote_exec.checked(transport, body, "looking at the GPU", timeout_s=120.0))
    )
    if about.get("mock"):
        raise UsageError(
            "mps.bench measures a GPU: this is a mock, which has none, and no figure is made up",
            where=transport.host.name,
        )
    for box in (name, daemon):
        if about.get(f"running {box}", "").strip() != "true":
            raise remote_exec.not_running(project, transport, box)
    gpu = about.get("gpu", "").strip()
    if gpu and not gpu.startswith("GPU-"):
        fix = f"{project.program_argv0} dev.exec -- nvidia-smi -L"
        raise UsageError(
            "there is no such GPU", where=f"provision.mps.gpu: {chosen}", why=gpu, fix=fix
        )
    if not about.get("name", "").strip():
        raise HostError(
            "no GPU answers in the container",
            where=transport.host.name,
            why="nvidia-smi named none",
            fix="invoke vm.provision",
        )
    _compares(project, transport.host.name, about.get("compute_mode", "").strip())
    status = check_gpu_unused(project, transport, gpu)
    if asked.command is None and about.get("python") != "yes":
        raise HostError(
            "the container has no python3 for the built-in program",
            where=transport.host.name,
            why="command -v python3",
            fix="--command PROGRAM",
        )
    if asked.with_chart:
        chart.check_installed()
    workload = asked.workload or ("mlp" if about.get("torch") == "yes" else "driver")
    place = Place(project, transport, about, workload, client_limit(status))
    if asked.command is not None:
        bring_project(project, transport)
    place.put(
        resources.files("provision.mps.bench").joinpath(f"workloads/{workload}.py").read_bytes()
    )
    return place


def _compares(project: Project, where: str, mode: str) -> None:
    """Refuse a GPU that lets in a single process at a time, which the server of MPS may be."""
    if mode.startswith(("Exclusive", "Prohibited")):
        ours = project.settings.mps.exclusive
        raise HostError(
            "several processes cannot use the GPU without MPS now: nothing could be compared",
            where=where,
            why=f"the compute mode is {mode}",
            fix=f"{project.program_argv0} mps.disable"
            if ours
            else "sudo nvidia-smi -c DEFAULT   (on the host)",
        )


def _measure(place: Place, asked: Asked, keys: Sequence[Key], figures: Figures) -> None:
    """Calibrate, then every cell of every round. The first failure of one process alone ends it: nothing could be compared."""
    emit = place.project.emit
    runs = [] if asked.budget_s is None and not asked.fixed else _pilots(place, asked, keys)
    steps = _steps(asked, keys, runs)
    figures.steps = None if asked.fixed else steps
    left = dict.fromkeys(keys, asked.rounds)
    whole_s: dict[Key, float] = grid.predicted_s(keys, runs, steps) if runs else {}
    for number, key in grid.rounds_of(keys, asked.rounds):
        try:
            sample, seconds = place.run(asked, key, steps)
        except CellFailed as error:
            if not figures.results.samples:
                raise
            figures.took(key, f"{error.what}: {error.why}")
            said = f"no figure: {error.what}"
        else:
            figures.took(key, sample)
            whole_s[key] = seconds
            said = f"{sample.makespan_s:7.2f} s"
        left[key] -= 1
        emit(
            Note(
                f"round {number}/{asked.rounds}  {key.mode:>5} x {key.clients:<3} {said}{_left(left, whole_s)}"
            )
        )
        if sum(left.values()) % len(keys) == 0:
            _look_again(place, figures, number)


def _look_again(place: Place, figures: Figures, number: int) -> None:
    """Who else uses the GPU now that a round has ended; a look that fails is no reason to end what is measured."""
    try:
        figures.looked(
            number,
            describe_gpu_users(
                fetch_status(place.project, place.transport.host, place.transport, gpu=place.gpu)
            ),
        )
    except Unreachable:
        raise
    except ProvisionError as error:
        place.project.emit(
            Note(f"after round {number} it was not seen who else uses the GPU: {error.what}")
        )


def _left(left: dict[Key, int], whole_s: dict[Key, float]) -> str:
    """What is still to come, as far as it is known."""
    if not whole_s or not any(left.values()):
        return ""
    mean_s = sum(whole_s.values()) / len(whole_s)
    return f"   {durations.rounded(sum(count * whole_s.get(key, mean_s) for key, count in left.items()))} left"


def _pilots(place: Place, asked: Asked, keys: Sequence[Key]) -> list[Pilot]:
    """How long the ends of the grid take. Where one gives no figure, fewer processes are tried: the grid itself will tell why."""
    runs: list[Pilot] = []
    for arm in grid.pilots(keys):
        for key in arm:
            place.project.emit(Note(f"calibrating: {key}"))
            try:
                sample, seconds = place.run(asked, key, PILOT_STEPS)
            except CellFailed as error:
                if not runs:
                    raise
                place.project.emit(Note(f"calibrating: {key} gives no figure: {error.what}"))
                continue
            runs.append(Pilot(key, 1 if asked.fixed else PILOT_STEPS, sample.makespan_s, seconds))
            break
    return runs


def _steps(asked: Asked, keys: Sequence[Key], runs: Sequence[Pilot]) -> int:
    if not runs or asked.budget_s is None:
        return 1 if asked.fixed else asked.steps or grid.STEPS
    if not asked.fixed:
        return grid.steps_for(keys, runs, rounds=asked.rounds, budget_s=asked.budget_s)
    needed_s = asked.rounds * sum(grid.predicted_s(keys, runs, 1).values())
    if needed_s > asked.budget_s:
        why = f"{asked.rounds} rounds of {len(keys)} cells take about {durations.rounded(needed_s)}, and the command takes no {{steps}}"
        fix = "fewer --clients or --modes, a larger --budget, or {steps} in the command"
        raise UsageError(
            "the grid does not fit the budget",
            where=f"--budget {durations.rounded(asked.budget_s)}",
            why=why,
            fix=fix,
        )
    return 1
