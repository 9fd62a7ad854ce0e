"""One cell of a benchmark: what it runs, and what it printed as values. Pure; its shell is in `cell_script`.

A cell is n copies of one program that start together, with a daemon of its own or with none.
Protocol (facts/mps.md §3.5): warm-up before a barrier, fixed core sets, a fresh daemon, attachment
read from the daemon's own list and its absence shown in the other arm, every client's end reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.core.errors import ProvisionError
from provision.core.parsing import parse_int
from provision.mps.status import control_tool

READY_S = 300
"""How long a built-in program may take to stand at the barrier: importing a framework from a cold
disk, N times at once, takes a minute."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one cell runs. `percentage` is the default active thread percentage; None = without MPS."""

    clients: int
    percentage: int | None
    steps: int
    threads: int
    cores: tuple[str, ...]
    """The core set of each client as `taskset -c` reads it; "-" = any."""
    words: tuple[str, ...]
    """The program and its arguments."""
    waits: bool
    """The program itself waits at the barrier once it is ready; otherwise its start does."""
    ready_s: int = READY_S
    gpu: str = ""
    """UUID of the GPU where the machine has several; empty where it has one."""


@dataclass(frozen=True)
class ClientEnd:
    """The end of one client: seconds since the epoch, its exit status, and its last line."""

    client: int
    began_s: float
    ended_s: float
    status: int
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one run of a cell showed. Memory in MiB beyond what the GPU held before; None where nvidia-smi said nothing."""

    makespan_s: float
    ends: tuple[ClientEnd, ...]
    peak_memory_mib: int | None
    attached: frozenset[int]
    """Clients that a daemon listed: that of this cell, or, without MPS, any that was found."""

    @property
    def seconds(self) -> tuple[float, ...]:
        """How long each client took."""
        return tuple(end.ended_s - end.began_s for end in self.ends)


class CellFailed(ProvisionError):
    """The cell gave no figure: a client failed, was not attached, or the daemon did not come up."""


def read_cell(text: str, cell: Cell, where: str) -> Sample:
    """The sample in what the cell printed. Raises `CellFailed` for anything that makes its figure worthless."""
    said = [line.split(None, 1) for line in text.split("\n") if line.strip()]
    first = {words[0]: words[1] if len(words) > 1 else "" for words in said}
    if "failed" in first:
        raise CellFailed(
            "the cell could not run", where=where, why="\n".join([first["failed"], *_late(said)])
        )
    ends = _ends(
        [words[1] for words in said if words[0] == "client" and len(words) > 1], _last_lines(said)
    )
    go = _number(first.get("go", ""))
    if (
        "done" not in first
        or go is None
        or [end.client for end in ends] != list(range(cell.clients))
    ):
        raise CellFailed(
            "the cell did not reach its end",
            where=where,
            why=text[-500:].strip() or "it printed nothing",
        )
    bad = [end for end in ends if end.status != 0]
    if bad:
        why = "\n".join(f"client {end.client}: status {end.status}  {end.said}" for end in bad[:4])
        raise CellFailed(f"{len(bad)} of {cell.clients} clients failed", where=where, why=why)
    _check_times(ends, go, where)
    sample = Sample(
        makespan_s=max(end.ended_s for end in ends) - go,
        ends=ends,
        peak_memory_mib=_difference(first.get("idle", ""), first.get("peak", "")),
        attached=frozenset(control_tool.read_pids("\n".join(first.get("seen", "").split()))),
    )
    _prove(sample, cell, where)
    return sample


def _check_times(ends: Sequence[ClientEnd], go_s: float, where: str) -> None:
    """Programs of the user's may write down begin and end by themselves, and may take them from another clock."""
    for end in ends:
        if end.began_s < go_s - 1.0 or end.ended_s <= max(end.began_s, go_s):
            raise CellFailed(
                "the times of a client are no seconds since the epoch",
                where=where,
                why=f"client {end.client} began at {end.began_s:.3f} and ended at {end.ended_s:.3f}; all began after {go_s:.3f}",
                fix='write "%.6f %.6f" % (begin, end) of time.time() into $PROVISION_BENCH_TIMES',
            )


def _prove(sample: Sample, cell: Cell, where: str) -> None:
    """Attachment of every client with MPS, and of none without it: a silent fall-back would be measured otherwise."""
    if cell.percentage is None and sample.attached:
        names = ", ".join(map(str, sorted(sample.attached)))
        why = f"a daemon listed client {names}: the program sets CUDA_MPS_PIPE_DIRECTORY itself"
        raise CellFailed(
            "clients used MPS in a cell without it",
            where=where,
            why=why,
            fix="invoke mps.disable, then invoke mps.bench",
        )
    missing = sorted(set(range(cell.clients)) - sample.attached)
    if cell.percentage is not None and missing:
        names = ", ".join(map(str, missing))
        raise CellFailed(
            "not every client was attached to MPS",
            where=where,
            why=f"the daemon never listed client {names}",
        )


def _ends(lines: Sequence[str], said: dict[int, str]) -> tuple[ClientEnd, ...]:
    ends = []
    for line in lines:
        match line.split():
            case [client_text, began_text, ended_text, status_text]:
                client, status = parse_int(client_text), parse_int(status_text)
                began_s, ended_s = _number(began_text), _number(ended_text)
                if (
                    client is not None
                    and status is not None
                    and began_s is not None
                    and ended_s is not None
                ):
                    ends.append(ClientEnd(client, began_s, ended_s, status, said.get(client, "")))
    return tuple(sorted(ends, key=lambda end: end.client))


def _late(said: Sequence[Sequence[str]]) -> list[str]:
    """The last lines of the clients that were not ready, each with its client's number; of four of them at most."""
    lines = [words[1].split(None, 1) for words in said if words[0] == "late" and len(words) > 1]
    numbers = list(dict.fromkeys(line[0] for line in lines))
    shown = [
        f"client {line[0]}: {line[1] if len(line) > 1 else ''}"
        for line in lines
        if line[0] in numbers[:4]
    ]
    return [*shown, f"and {len(numbers) - 4} more"] if len(numbers) > 4 else shown


def _last_lines(said: Sequence[Sequence[str]]) -> dict[int, str]:
    lines = [words[1].split(None, 1) for words in said if words[0] == "said" and len(words) > 1]
    return {
        client: words[1]
        for words in lines
        if len(words) == 2 and (client := parse_int(words[0])) is not None
    }


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < 1e12 else None


def _difference(before: str, after: str) -> int | None:
    least, most = parse_int(before), parse_int(after)
    return None if least is None or most is None else most - least
