"""mps.bench from the first cell to the end, or an early end, on a host with prepared answers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.commands.mps.bench.bench import mps_bench
from provision.commands.mps.bench.options import parse_options
from provision.commands.shared import host_access
from provision.commands.shared.result import TaskResult
from provision.commands.shared.targets import Targets
from provision.core.errors import CommandTimeout, ProvisionError, Unreachable, UsageError
from provision.core.model import Event, Host, Note, Sink
from provision.mps.bench.cell import CellFailed
from provision.project.project import Project
from provision.settings import Settings
from tests.examples.pages import documented

FACTS = (
    "mock=\nrunning worker=true\nworkers=worker \ncpus=0-3\npython=yes\ntorch=\n"
    "name=NVIDIA L4\ndriver_version=580.1\ncompute_mode=Default\n"
)
QUIET = "container=true\npercentage=Cannot find MPS control daemon process\nboxes=worker \n"
CELL = re.compile(r"provision-bench-\w+/cell (\d+) (\S+) (?:program|start)")
FOLDER = "mps-bench"


class Gpu:
    """A host whose cells take a second for each process without MPS, and half of that with it.

    `at` maps the number of a run, from 1, to an error to raise or an output to print.
    """

    def __init__(self, at: dict[int, BaseException | str] | None = None) -> None:
        self.at = at or {}
        self.host = Host(name="box", address="box.invalid", user="me")
        self.cells: list[str] = []
        self.commands: list[str] = []
        self.ended = 0
        self.removed = 0
        self.closed = False
        self.seen: Callable[[], None] = lambda: None

    def exchange(
        self,
        command: str,
        stdin: bytes = b"",
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        del stdin, on_stderr, timeout_s
        self.commands.append(command)
        cell = CELL.search(command)
        if cell is not None:
            on_stdout(self.run(int(cell[1]), cell[2].strip("'\\")).encode())
        elif "rm -rf" in command and "nvidia-cuda-mps-control" not in command:
            self.removed += 1
        elif "docker top" in command:
            on_stdout(QUIET.encode())
        elif "Cpus_allowed_list" in command:
            on_stdout(FACTS.encode())
        elif "grep -qxF" in command and "PROVISION_RUN=" in command:
            self.ended += 1
        return 0

    def run(self, clients: int, percentage: str) -> str:
        self.seen()
        self.cells.append(f"{clients} {percentage or '-'}")
        prepared = self.at.get(len(self.cells), "")
        if isinstance(prepared, BaseException):
            raise prepared
        if prepared:
            return prepared
        seconds = clients * (0.5 if percentage else 1.0)
        ends = "".join(f"client {each} 100.0 {100 + seconds} 0\n" for each in range(clients))
        seen = " ".join(map(str, range(clients))) if percentage else ""
        return f"idle 0\ngo 100.0\nattached {seen}\npeak {clients * 100}\n{ends}done\n"

    def close(self) -> None:
        self.closed = True


class Bench:
    """A project in a folder, and its runs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self._patch = monkeypatch

    def __call__(
        self, gpu: Gpu, *, settings: dict[str, Any] | None = None, **flags: Any
    ) -> TaskResult:
        self._patch.setattr(host_access, "resolve_host", lambda project, targets: gpu.host)
        self._patch.setattr(host_access, "connect", lambda project, target: gpu)
        project = Project(
            Settings.model_validate(settings or {}),
            self.folder,
            self.folder,
            emit=self.events.append,
        )
        asked = {"clients": "1,2", "modes": "none,mps", "rounds": "2", "with_chart": False, **flags}
        return mps_bench(project, Targets(), parse_options(**asked))

    def file(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / FOLDER / name).read_text())
        return found

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / FOLDER).iterdir())

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_complete_run_leaves_no_partial_files(bench: Bench) -> None:
    gpu = Gpu()
    done = bench(gpu)
    assert (done.exit_code, done.document["complete"], "why" in done.document) == (0, True, False)
    assert bench.files == ["mps-bench.html", "mps-bench.json"]
    assert set(done.document) == documented()["mps.bench"]
    found = bench.file("mps-bench.json")
    assert {key: found[key] for key in ("complete", "gpu", "rounds", "steps")} == {
        "complete": True,
        "gpu": "NVIDIA L4",
        "rounds": 2,
        "steps": 3000,
    }
    assert {(cell["mode"], cell["clients"]): cell["makespan_s"] for cell in found["cells"]} == {
        ("none", 1): [1.0, 1.0],
        ("mps", 1): [0.5, 0.5],
        ("none", 2): [2.0, 2.0],
        ("mps", 2): [1.0, 1.0],
    }
    assert (gpu.cells[0], gpu.ended, gpu.removed, gpu.closed) == ("1 -", 0, 1, True)


def test_figures_are_on_disk_before_next_cell_begins(bench: Bench) -> None:
    """A killed process or a power failure loses one cell at most."""
    counts: list[int] = []
    gpu = Gpu()

    def look() -> None:
        if gpu.cells:
            part = bench.file("mps-bench-partial.json")
            assert (part["complete"], part["why"]) == (
                False,
                "still running when this was written, or killed",
            )
            counts.append(sum(len(cell["makespan_s"]) for cell in part["cells"]))

    gpu.seen = look
    bench(gpu)
    assert counts == [1, 2, 3, 4, 5, 6, 7]


CUTS = [
    (KeyboardInterrupt(), 130, "interrupted"),
    (
        Unreachable("the connection was lost", where="box", why="reset", fix="ssh box"),
        4,
        "the connection was lost: reset",
    ),
]


@pytest.mark.parametrize(("cut", "code", "why"), CUTS, ids=["ctrl-c", "connection"])
def test_interrupted_run_reports_figures_so_far(
    bench: Bench, cut: BaseException, code: int, why: str
) -> None:
    gpu = Gpu({4: cut})
    done = bench(gpu)
    assert (done.exit_code, done.document["complete"], done.document["why"]) == (code, False, why)
    assert done.document["error"]["what"] == why.partition(":")[0]
    assert bench.files == ["mps-bench-partial.html", "mps-bench-partial.json"]
    part = bench.file("mps-bench-partial.json")
    assert (part["complete"], part["why"], len(part["cells"])) == (False, why, 3)
    lines = done.text.splitlines()
    assert (lines[0], lines[1].split()[:2]) == ("", ["clients", "mode"]), (
        "below the ^C of the terminal"
    )
    assert max(map(len, lines)) <= 100
    assert len([line for line in lines[1:] if re.match(r"[ *] +\d", line)]) == 3
    assert f"interrupted after 3 of 8 runs: {why}" in lines
    assert "wrote mps-bench/mps-bench-partial.json" in lines
    assert (gpu.ended, gpu.removed, gpu.closed) == (1, 1, True), "no program still runs"
    assert f"Incomplete: {why}." in (bench.folder / FOLDER / "mps-bench-partial.html").read_text()


def test_interrupted_run_keeps_files_of_complete_one(bench: Bench) -> None:
    bench(Gpu())
    before = bench.file("mps-bench.json")
    bench(Gpu({3: KeyboardInterrupt()}))
    assert bench.file("mps-bench.json") == before
    assert len(bench.file("mps-bench-partial.json")["cells"]) == 2
    bench(Gpu())
    assert bench.files == ["mps-bench.html", "mps-bench.json"], (
        "a complete run removes the files of the interrupted one"
    )


def test_interruption_before_first_figure_is_raised(bench: Bench) -> None:
    gpu = Gpu({1: KeyboardInterrupt()})
    with pytest.raises(ProvisionError) as caught:
        bench(gpu)
    assert (caught.value.exit_code, bench.files, gpu.ended, gpu.removed) == (130, [], 1, 1)


def test_cell_beyond_time_limit_is_ended_and_others_run(bench: Bench) -> None:
    gpu = Gpu({2: CommandTimeout("no end after 1800 s", where="box")})
    done = bench(gpu)
    assert (done.exit_code, done.document["complete"], gpu.ended, len(gpu.cells)) == (0, True, 1, 8)
    assert [failure["why"] for failure in done.document["failures"]] == [
        "no end within 30m00s: it was ended"
    ]


GPU_ROW = (
    "gpu|0, GPU-00000000-c0de, NVIDIA L4, 580.1, 23034, 0, 23034, 8.9, Default, [N/A], 0, "
    "Disabled, 00000000:00:04.0\n"
)


@pytest.mark.parametrize(
    ("capability", "cuda", "limit"),
    [("6.0", "12.2", 16), ("8.9", "12.8", 48), ("9.0", "13.0", 48), ("9.0", "13.1", 60)],
)
def test_cells_above_client_limit_are_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capability: str, cuda: str, limit: int
) -> None:
    status = (
        QUIET
        + GPU_ROW.replace("8.9", capability)
        + f"smi|| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: {cuda} |\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "QUIET", status)
    gpu = Gpu()
    done = bench(gpu, clients=f"1,{limit},{limit + 1}", budget="1h")
    assert done.exit_code == 0
    assert (
        f"{limit + 1} 100" in gpu.cells,
        f"{limit + 1} -" in gpu.cells,
        f"{limit} 100" in gpu.cells,
    ) == (False, True, True)
    why = f"a server of MPS takes {limit} clients on this GPU with this driver"
    assert done.document["failures"] == [{"mode": "mps", "clients": limit + 1, "why": why}]
    assert f"no figure: mps x {limit + 1}: {why}" in done.text.splitlines()
    first = next(index for index, note in enumerate(bench.notes) if note.startswith("left out"))
    assert first < next(
        index for index, note in enumerate(bench.notes) if note.startswith("calibrating")
    )


def test_only_the_chosen_gpu_is_measured_and_inspected(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "FACTS", FACTS + "gpu=GPU-11111111-c0de\n")
    other = (
        "top|812|other\nholder|812|7|python3|python3 serve.py\n"
        "place|812, GPU-00000000-c0de\nchosen=GPU-11111111-c0de\n"
    )
    monkeypatch.setattr(
        sys.modules[__name__],
        "QUIET",
        QUIET + GPU_ROW.replace("GPU-00000000", "GPU-11111111") + other,
    )
    gpu = Gpu()
    done = bench(gpu, settings={"mps": {"gpu": 1}})
    assert (done.exit_code, done.document["gpu_uuid"]) == (0, "GPU-11111111-c0de")
    assert all(
        "GPU-11111111-c0de" in command
        for command in gpu.commands
        if CELL.search(command) or "docker top" in command
    )


def test_other_gpu_users_are_reported_with_the_figures(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two cells no client runs: a process on the GPU then is another user's."""
    gpu = Gpu()
    module = sys.modules[__name__]
    guest = QUIET + "top|812|other\nholder|812|7|python3|python3 serve.py <b>\n"
    gpu.seen = lambda: monkeypatch.setattr(module, "QUIET", guest) if len(gpu.cells) == 6 else None
    done = bench(gpu)
    assert (done.exit_code, done.document["disturbed"]) == (
        0,
        [{"round": 2, "by": "other 7 python3 serve.py <b>"}],
    )
    assert "after round 2 others use the GPU: other 7 python3 serve.py <b>" in bench.notes
    assert any(line.startswith("not alone: after round 2") for line in done.text.splitlines())
    assert "python3 serve.py &lt;b&gt;" in (bench.folder / FOLDER / "mps-bench.html").read_text()


@pytest.mark.parametrize(
    ("rounds", "warning"), [("1", "1 round only"), ("2", "2 rounds only"), ("3", None)]
)
def test_too_few_rounds_are_run_with_a_warning(
    bench: Bench, rounds: str, warning: str | None
) -> None:
    done = bench(Gpu(), rounds=rounds)
    expected = [] if warning is None else [f"{warning}: a median and a spread need 3"]
    assert (
        [note for note in bench.notes if " only: " in note]
        == expected
        == bench.notes[: len(expected)]
    ), "before anything is measured"
    assert [line for line in done.text.splitlines() if " only: " in line] == expected
    assert (done.exit_code, bench.file("mps-bench.json")["few_rounds"]) == (
        0,
        expected[0] if expected else None,
    )
    assert (
        re.findall(
            r"<p>(\d+ rounds? only: .*)\.</p>",
            (bench.folder / FOLDER / "mps-bench.html").read_text(),
        )
        == expected
    )


def test_failed_status_query_does_not_end_the_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu()
    module = sys.modules[__name__]
    broken = QUIET + "gpu|nonsense\n"
    gpu.seen = lambda: monkeypatch.setattr(module, "QUIET", broken) if gpu.cells else None
    done = bench(gpu)
    assert (done.exit_code, done.document["complete"], len(done.document["cells"])) == (0, True, 4)
    assert (
        len([note for note in bench.notes if "users of the GPU could not be listed" in note]) == 2
    )


def test_no_other_gpu_users_report_nothing(bench: Bench) -> None:
    done = bench(Gpu())
    assert done.document["disturbed"] == []
    assert "not alone" not in done.text


def test_missing_gpu_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "FACTS", FACTS + "gpu=No devices were found\n")
    with pytest.raises(UsageError, match="there is no such GPU") as caught:
        bench(Gpu(), settings={"mps": {"gpu": 7}})
    assert (caught.value.where, caught.value.why) == (
        "provision.mps.gpu: 7",
        "No devices were found",
    )


def test_failed_pilot_is_replaced_by_fewer_processes(bench: Bench) -> None:
    """Sixteen processes may not fit into the memory: that is a failed cell, not the end."""
    gpu = Gpu({2: "failed out of memory\n"})
    done = bench(gpu, clients="1,2,4", budget="1h")
    assert gpu.cells[:4] == ["1 -", "4 -", "2 -", "4 100"]
    assert "calibrating: none x 4 gives no figure: the cell could not run" in bench.notes
    assert (done.exit_code, len(done.document["cells"])) == (0, 6)


def test_failure_of_one_process_alone_is_raised(bench: Bench) -> None:
    with pytest.raises(CellFailed) as caught:
        bench(Gpu({1: "failed no luck\n"}), budget="1h")
    assert caught.value.why == "no luck"


def test_repeated_failure_is_printed_once_with_its_count(bench: Bench) -> None:
    def fails(self: Gpu, clients: int, percentage: str) -> str:
        return (
            "failed out of luck\n"
            if (clients, percentage) == (2, "100")
            else run(self, clients, percentage)
        )

    run = Gpu.run
    gpu = Gpu()
    gpu.run = fails.__get__(gpu)  # type: ignore[method-assign]
    done = bench(gpu)
    assert [line for line in done.text.splitlines() if line.startswith("no figure")] == [
        "no figure: mps x 2: the cell could not run: out of luck (2 times)"
    ]


def test_folder_without_git_is_not_sent_with_a_note(bench: Bench) -> None:
    done = bench(Gpu(), command="python3 train.py")
    assert done.exit_code == 0
    assert [note for note in bench.notes if "were not sent" in note] == [bench.notes[0]]


def test_unwritable_output_folder_is_refused_before_measuring(bench: Bench) -> None:
    (bench.folder / FOLDER).write_text("")
    gpu = Gpu()
    with pytest.raises(ProvisionError, match="the results cannot be written"):
        bench(gpu)
    assert (gpu.cells, gpu.removed) == ([], 1)


def test_write_failure_keeps_figures_in_the_result(bench: Bench) -> None:
    gpu = Gpu()

    def fill() -> None:
        if len(gpu.cells) == 2:
            for path in (bench.folder / FOLDER).iterdir():
                path.unlink()
            (bench.folder / FOLDER).rmdir()

    gpu.seen = fill
    done = bench(gpu)
    assert len([note for note in bench.notes if "could not be written" in note]) == 1
    assert (done.exit_code, done.document["files"], len(done.document["cells"])) == (1, {}, 4)
    assert done.document["error"]["what"] == "the results cannot be written"
    assert "clients" in done.text
