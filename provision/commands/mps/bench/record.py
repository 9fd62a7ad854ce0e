"""The record of one benchmark: samples and failures, files written after every cell, the result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any

from provision.commands.shared.result import TaskResult
from provision.core.errors import EXIT_FAILED, EXIT_OK, ProvisionError
from provision.core.files import SHARED, write_atomically
from provision.core.model import Emit, Note
from provision.mps.bench import chart
from provision.mps.bench.cell import Sample
from provision.mps.bench.document import bench_document, table
from provision.mps.bench.grid import CellKey, few_rounds_warning
from provision.mps.bench.page import report_page
from provision.mps.bench.results import CellResult, Samples, cell_results

_COMPLETE, _PARTIAL = "mps-bench", "mps-bench-partial"
"""File names of a complete run and of an interrupted one, which never replaces a complete one."""
_KINDS = ("json", "html", "svg", "png")


@dataclass
class BenchRecord:
    """The figures of one benchmark, and the files that hold them."""

    folder: Path
    shown_folder: Path
    """The folder as the user wrote it."""
    about: Mapping[str, Any]
    """What was measured on what, for the document."""
    planned_runs: int
    rounds: int
    emit: Emit
    with_chart: bool = True
    steps: int | None = None
    samples: Samples = field(default_factory=Samples)
    ended_runs: int = 0
    """Runs of cells with a sample or a failure."""
    disturbed: list[dict[str, Any]] = field(default_factory=list)
    """Rounds after which other processes used the GPU, and which."""
    _write_failed: bool = False

    def check_writable(self) -> None:
        """Create the folder and write a file on trial. Raises `ProvisionError` where that fails."""
        trial = self.folder / f".{_PARTIAL}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(trial, b"", mode=SHARED)
            trial.unlink()
        except OSError as error:
            raise self._not_writable(error) from error

    def announce(self) -> None:
        """Emit a warning where the figures will have too few rounds."""
        if warning := few_rounds_warning(self.rounds):
            self.emit(Note(warning))

    def leave_out(self, key: CellKey, why: str) -> None:
        """Record a cell that cannot be measured, before the runs begin."""
        self.samples.failures.append((key, why))
        self.emit(Note(f"left out: {key}: {why}"))

    def add_sample(self, key: CellKey, sample: Sample) -> None:
        """Add the sample of a run and write all figures so far."""
        self.samples.by_cell.setdefault(key, []).append(sample)
        self._end_run()

    def add_failure(self, key: CellKey, why: str) -> None:
        """Add a run without a sample and write all figures so far."""
        self.samples.failures.append((key, why))
        self._end_run()

    def _end_run(self) -> None:
        """Count a run and write the figures. A full disk is reported once and ends nothing."""
        self.ended_runs += 1
        document = self.document("still running when this was written, or killed")
        try:
            write_atomically(self.folder / f"{_PARTIAL}.json", _json(document), mode=SHARED)
        except OSError as error:
            if not self._write_failed:
                self.emit(Note(f"what is measured so far could not be written: {error}"))
            self._write_failed = True

    def add_other_users(self, number: int, users: str) -> None:
        """Record the other processes on the GPU after round `number`; nothing for none."""
        if users:
            self.disturbed.append({"round": number, "by": users})
            self.emit(Note(f"after round {number} others use the GPU: {users}"))

    def document(self, interruption: str | None = None) -> dict[str, Any]:
        """The document of `--json`; `interruption` is why it is not complete."""
        why = {} if interruption is None else {"why": interruption}
        about = {
            "complete": interruption is None,
            **why,
            **self.about,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "steps": self.steps,
            "rounds": self.rounds,
            "few_rounds": few_rounds_warning(self.rounds),
            "disturbed": self.disturbed,
        }
        return bench_document(cell_results(self.samples), self.samples, about)

    def finish(self, interruption: ProvisionError | None) -> TaskResult:
        """Write all files; the result has the exit code of the interruption, 1 without figures."""
        cells = cell_results(self.samples)
        document = self.document(None if interruption is None else _reason(interruption))
        try:
            stem = _COMPLETE if interruption is None else _PARTIAL
            files = self._write_files(cells, document, stem)
        except ProvisionError as error:
            files, interruption = {}, interruption or error
        document["files"] = files
        notes = (document["advice"], *_failure_lines(self.samples), *self._warnings())
        lines = [table(cells), "", *map(_filled, notes)]
        written = [f"wrote {name}" for name in files.values()]
        if interruption is None:
            exit_code = EXIT_OK if cells else EXIT_FAILED
            return TaskResult(document, exit_code, "\n".join([*lines, *written]))
        document["error"] = interruption.as_dict()
        runs = f"interrupted after {self.ended_runs} of {self.planned_runs} runs"
        lines = ["", *lines, _filled(f"{runs}: {_reason(interruption)}")]
        if interruption.fix:
            lines.append(f"  try: {interruption.fix}")
        return TaskResult(document, interruption.exit_code, "\n".join([*lines, *written]))

    def _warnings(self) -> Iterator[str]:
        """A line for too few rounds, and one for each round with other users of the GPU."""
        if warning := few_rounds_warning(self.rounds):
            yield warning
        for entry in self.disturbed:
            used = f"after round {entry['round']} the GPU was used by {entry['by']}"
            yield f"not alone: {used}: measure again"

    def _write_files(
        self, cells: tuple[CellResult, ...], document: dict[str, Any], stem: str
    ) -> dict[str, str]:
        """Write JSON, HTML and, where wanted, SVG and PNG; their paths by kind.

        A complete run removes the files of an interrupted one. Raises `ProvisionError`.
        """
        title = f"{document['gpu']}, {document['cpus']} cores, {document['program']}"
        charts = chart.draw(cells, title) if self.with_chart and cells else {}
        page = report_page(cells, document, svg=charts["svg"].decode() if charts else None)
        contents = {"json": _json(document), "html": page.encode(), **charts}
        try:
            for kind, data in contents.items():
                write_atomically(self.folder / f"{stem}.{kind}", data, mode=SHARED)
            if stem == _COMPLETE:
                for kind in _KINDS:
                    (self.folder / f"{_PARTIAL}.{kind}").unlink(missing_ok=True)
        except OSError as error:
            raise self._not_writable(error) from error
        return {kind: str(self.shown_folder / f"{stem}.{kind}") for kind in contents}

    def _not_writable(self, error: OSError) -> ProvisionError:
        return ProvisionError(
            "the results cannot be written",
            where=str(self.folder),
            why=str(error),
            fix="--output FOLDER",
        )


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()


def _filled(text: str) -> str:
    return fill(text, 100, subsequent_indent="  ", break_on_hyphens=False)


def _reason(error: ProvisionError) -> str:
    return ": ".join(filter(None, (error.what, error.why)))


def _failure_lines(samples: Samples) -> list[str]:
    """A line for each distinct failure of a cell, and how often it occurred."""
    counts = {failure: samples.failures.count(failure) for failure in samples.failures}
    return [
        f"no figure: {key}: {why.splitlines()[0]}" + (f" ({count} times)" if count > 1 else "")
        for (key, why), count in counts.items()
    ]
