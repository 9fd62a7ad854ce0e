"""One cell of a benchmark: what it runs, and the sample in what it printed. Pure.

A cell is n copies of one program that start together, with an MPS daemon of their own or none. Its
scripts are in `cell_script`. Protocol (facts/mps.md §3.5): warm-up before a barrier, fixed core
sets, a fresh daemon, attachment read from the daemon's own list and its absence proven without MPS,
the end of every client reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.core.errors import ProvisionError
from provision.core.parsing import parse_int

READY_S = 300
"""How long a built-in program may take to reach the barrier. Importing a framework from a cold
disk, N times at once, takes a minute."""
_SHOWN_CLIENTS = 4
"""How many clients an error quotes."""
_SHOWN_CHARS = 500


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a benchmark: how many clients run which program, and with which limits."""

    clients: int
    percentage: int | None
    """The default active thread percentage; None without MPS."""
    steps: int
    threads: int
    cores: tuple[str, ...]
    """The core set of each client as `taskset -c` reads it; "-" for any core."""
    words: tuple[str, ...]
    """The program and its arguments."""
    program_waits: bool
    """True where the program itself waits at the barrier; else its start does."""
    ready_s: int = READY_S
    gpu: str = ""
    """UUID of the GPU where the machine has several; empty where it has one."""


@dataclass(frozen=True)
class ClientEnd:
    """The end of one client. Times in seconds since the epoch."""

    client: int
    began_s: float
    ended_s: float
    status: int
    last_line: str = ""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one run of a cell showed."""

    makespan_s: float
    """Seconds from the common start until the last client ended."""
    ends: tuple[ClientEnd, ...]
    peak_memory_mib: int | None
    """The most memory that the GPU used above what it used before; None where not reported."""
    attached: frozenset[int]
    """Clients that a daemon listed: the cell's own one, or, without MPS, any that answers."""

    @property
    def seconds(self) -> tuple[float, ...]:
        """How long each client took."""
        return tuple(end.ended_s - end.began_s for end in self.ends)


class CellFailed(ProvisionError):
    """The cell gave no figure: a client failed, was not attached, or the daemon did not start."""


def read_cell(text: str, cell: Cell, where: str) -> Sample:
    """The sample in what the cell printed.

    `where` is the cell's name for errors. Raises `CellFailed` for anything that invalidates the
    figure.
    """
    lines = [line.split(None, 1) for line in text.split("\n") if line.strip()]
    values = {words[0]: words[1] if len(words) > 1 else "" for words in lines}
    if "failed" in values:
        raise CellFailed(
            "the cell could not run",
            where=where,
            why="\n".join([values["failed"], *_late_clients(_values(lines, "late"))]),
        )
    ends = _ends(_values(lines, "client"), _values(lines, "printed"))
    go_s = _number(values.get("go", ""))
    is_complete = [end.client for end in ends] == list(range(cell.clients))
    if "done" not in values or go_s is None or not is_complete:
        raise CellFailed(
            "the cell did not reach its end",
            where=where,
            why=text[-_SHOWN_CHARS:].strip() or "it printed nothing",
        )
    _check_statuses(ends, where)
    _check_times(ends, go_s, where)
    numbers = map(parse_int, values.get("attached", "").split())
    attached = frozenset(number for number in numbers if number is not None)
    _check_attachment(attached, cell, where)
    return Sample(
        makespan_s=max(end.ended_s for end in ends) - go_s,
        ends=ends,
        peak_memory_mib=_difference(values.get("idle", ""), values.get("peak", "")),
        attached=attached,
    )


def _check_statuses(ends: Sequence[ClientEnd], where: str) -> None:
    """Raise `CellFailed` where a client ended with another status than 0."""
    failed = [end for end in ends if end.status != 0]
    if failed:
        lines = (
            f"client {end.client}: status {end.status}  {end.last_line}"
            for end in failed[:_SHOWN_CLIENTS]
        )
        raise CellFailed(
            f"{len(failed)} of {len(ends)} clients failed", where=where, why="\n".join(lines)
        )


def _check_times(ends: Sequence[ClientEnd], go_s: float, where: str) -> None:
    """Raise `CellFailed` for times of another clock: the user's program may write its own times."""
    for end in ends:
        if end.began_s < go_s - 1.0 or end.ended_s <= max(end.began_s, go_s):
            raise CellFailed(
                "the times of a client are not seconds since the epoch",
                where=where,
                why=f"client {end.client} began at {end.began_s:.3f} and ended at "
                f"{end.ended_s:.3f}; all began after {go_s:.3f}",
                fix='write "%.6f %.6f" % (begin, end) of time.time() into $PROVISION_BENCH_TIMES',
            )


def _check_attachment(attached: frozenset[int], cell: Cell, where: str) -> None:
    """Raise `CellFailed` unless every client was attached with MPS, and none without it.

    CUDA falls back silently: without this check the wrong arm would be measured.
    """
    if cell.percentage is None:
        if attached:
            raise CellFailed(
                "clients used MPS in a cell without it",
                where=where,
                why=f"a daemon listed client {_joined(attached)}: "
                "the program sets CUDA_MPS_PIPE_DIRECTORY itself",
                fix="invoke mps.disable, then invoke mps.bench",
            )
    elif missing := set(range(cell.clients)) - attached:
        raise CellFailed(
            "not every client was attached to MPS",
            where=where,
            why=f"the daemon never listed client {_joined(missing)}",
        )


def _joined(clients: set[int] | frozenset[int]) -> str:
    return ", ".join(map(str, sorted(clients)))


def _values(lines: Sequence[Sequence[str]], key: str) -> list[str]:
    """What follows `key` in each line that begins with it."""
    return [words[1] for words in lines if words[0] == key and len(words) > 1]


def _ends(client_lines: Sequence[str], printed_lines: Sequence[str]) -> tuple[ClientEnd, ...]:
    """The end of each client, by its number; lines that are not an end are left out."""
    pairs = (line.split(None, 1) for line in printed_lines)
    last_lines = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    ends = []
    for line in client_lines:
        match line.split():
            case [number_text, began_text, ended_text, status_text]:
                number, status = parse_int(number_text), parse_int(status_text)
                began_s, ended_s = _number(began_text), _number(ended_text)
                if number is None or status is None or began_s is None or ended_s is None:
                    continue
                last_line = last_lines.get(number_text, "")
                ends.append(ClientEnd(number, began_s, ended_s, status, last_line))
    return tuple(sorted(ends, key=lambda end: end.client))


def _late_clients(late_lines: Sequence[str]) -> list[str]:
    """The last lines of the clients that were not ready, for a few of the clients."""
    lines = [line.split(None, 1) for line in late_lines]
    numbers = list(dict.fromkeys(line[0] for line in lines))
    shown = [
        f"client {line[0]}: {line[1] if len(line) > 1 else ''}"
        for line in lines
        if line[0] in numbers[:_SHOWN_CLIENTS]
    ]
    hidden = len(numbers) - _SHOWN_CLIENTS
    return [*shown, f"and {hidden} more"] if hidden > 0 else shown


def _number(text: str) -> float | None:
    """A number of seconds since the epoch; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < 1e12 else None


def _difference(before: str, after: str) -> int | None:
    least, most = parse_int(before), parse_int(after)
    return None if least is None or most is None else most - least
