"""What a benchmark leaves: one document, a table, and files that are written as it goes, so that a run that is cut keeps its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any

from provision.commands.shared.result import TaskResult
from provision.core.errors import EXIT_FAILED, ProvisionError
from provision.core.files import SHARED, write_atomically
from provision.core.model import Emit, Note
from provision.mps.bench import chart, grid, page
from provision.mps.bench.cell import Sample
from provision.mps.bench.grid import Key, Results

WHOLE, PART = "mps-bench", "mps-bench-partial"
"""Names of the files of a whole run, and of one that is not: what was measured to its end is never
replaced by a part."""
KINDS = ("json", "html", "svg", "png")


@dataclass
class Figures:
    """The results of one run, and where they go. `about` is what was measured on what; `planned` the number of runs of cells."""

    folder: Path
    shown: Path
    """The folder as the user named it."""
    about: Mapping[str, Any]
    planned: int
    rounds: int
    emit: Emit
    with_chart: bool = True
    steps: int | None = None
    results: Results = field(default_factory=Results)
    runs: int = 0
    """Runs of cells that have ended, whichever way."""
    disturbed: list[dict[str, Any]] = field(default_factory=list)
    """Rounds after which somebody else was seen on the GPU, and who."""
    _unwritten: bool = False

    def check(self) -> None:
        """Raise `ProvisionError` where nothing can be written: before the benchmark, not after it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / f".{PART}", b"", mode=SHARED)
            (self.folder / f".{PART}").unlink()
        except OSError as error:
            raise self._refused(error) from error

    def announce(self) -> None:
        """Say beforehand what the figures will lack."""
        if few := grid.few_rounds(self.rounds):
            self.emit(Note(few))

    def leave_out(self, key: Key, why: str) -> None:
        """A cell that cannot be measured, which is known beforehand."""
        self.results.failures.append((key, why))
        self.emit(Note(f"left out: {key}: {why}"))

    def took(self, key: Key, outcome: Sample | str) -> None:
        """Add the sample of a cell, or why it gave none, and write down all that there is. A full disk ends no measurement."""
        self.runs += 1
        if isinstance(outcome, str):
            self.results.failures.append((key, outcome))
        else:
            self.results.samples.setdefault(key, []).append(outcome)
        document = self.document("still running when this was written, or killed")
        try:
            write_atomically(self.folder / f"{PART}.json", _json(document), mode=SHARED)
        except OSError as error:
            if not self._unwritten:
                self.emit(Note(f"what is measured so far could not be written: {error}"))
            self._unwritten = True

    def looked(self, number: int, others: str) -> None:
        """Who else used the GPU when a round had ended; nobody is no news."""
        if others:
            self.disturbed.append({"round": number, "by": others})
            self.emit(Note(f"after round {number} others use the GPU: {others}"))

    def document(self, cut: str | None = None) -> dict[str, Any]:
        """The document of `--json`; `cut` is why it is not complete."""
        state = {"complete": cut is None, **({} if cut is None else {"why": cut})}
        date = datetime.now(UTC).isoformat(timespec="seconds")
        about = {**state, **self.about, "date": date, "steps": self.steps, "rounds": self.rounds}
        warned = {"few_rounds": grid.few_rounds(self.rounds), "disturbed": self.disturbed}
        return grid.document(grid.summary(self.results), self.results, about | warned)

    def finish(self, cut: ProvisionError | None) -> TaskResult:
        """Files, document and text; the exit status is that of what cut the run, 1 where no cell gave a figure."""
        cells = grid.summary(self.results)
        document = self.document(None if cut is None else _reason(cut))
        try:
            files = self._write(cells, document, WHOLE if cut is None else PART)
        except ProvisionError as error:
            files, cut = {}, cut or error
        document["files"] = files
        lines = [
            grid.table(cells, grid.best(cells)),
            "",
            *map(_filled, (document["advice"], *_told(self.results), *self._warned())),
        ]
        if cut is not None:
            document["error"] = cut.as_dict()
            told = f"cut after {self.runs} of {self.planned} runs: {_reason(cut)}"
            lines = ["", *lines, _filled(told), *([f"  try: {cut.fix}"] if cut.fix else [])]
        lines += [f"wrote {name}" for name in files.values()]
        return TaskResult(
            document,
            cut.exit_code if cut is not None else 0 if cells else EXIT_FAILED,
            "\n".join(lines),
        )

    def _warned(self) -> list[str]:
        """A line for too few rounds, and one for each round in which the GPU was not ours alone."""
        few = grid.few_rounds(self.rounds)
        others = [
            f"not alone: after round {each['round']} the GPU was used by {each['by']}: measure again"
            for each in self.disturbed
        ]
        return [few, *others] if few else others

    def _write(
        self, cells: tuple[grid.CellResult, ...], document: dict[str, Any], stem: str
    ) -> dict[str, str]:
        """JSON, HTML and, where wanted, SVG and PNG; their paths by kind. A whole run removes what a cut one left."""
        title = f"{document['gpu']}, {document['cpus']} cores, {document['program']}"
        drawn = chart.draw(cells, title) if self.with_chart and cells else {}
        contents = {"json": _json(document)}
        contents["html"] = page.report(
            cells, document, svg=drawn["svg"].decode() if drawn else None
        ).encode()
        contents |= drawn
        try:
            for kind, data in contents.items():
                write_atomically(self.folder / f"{stem}.{kind}", data, mode=SHARED)
            for kind in KINDS:
                if stem == WHOLE:
                    (self.folder / f"{PART}.{kind}").unlink(missing_ok=True)
        except OSError as error:
            raise self._refused(error) from error
        return {kind: str(self.shown / f"{stem}.{kind}") for kind in contents}

    def _refused(self, error: OSError) -> ProvisionError:
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


def _reason(cut: ProvisionError) -> str:
    return ": ".join(filter(None, (cut.what, cut.why)))


def _told(results: Results) -> list[str]:
    """A line for each reason why a cell gave no figure."""
    times = {entry: results.failures.count(entry) for entry in results.failures}
    return [
        f"no figure: {key}: {why.splitlines()[0]}" + (f" ({count} times)" if count > 1 else "")
        for (key, why), count in times.items()
    ]
