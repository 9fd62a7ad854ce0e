"""One run of a program in the container while the GPU is sampled: the script and its result.

SM activity is taken from the GPU's own counters where it has them (`nvidia-smi dmon --gpm-metrics`,
Hopper and later), else from the share of time in which any kernel ran. Both are averaged from the
first busy sample to the last, so that imports do not dilute them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.core.errors import ProvisionError
from provision.core.parsing import parse_decimal, parse_int
from provision.core.shell import fields, shell_text
from provision.mps.plan.model import ActivityKind, Workload
from provision.resources import nvidia_smi

HERE = Path(__file__).parent
SAMPLE_MS = 200
"""The interval of memory and utilisation samples; the GPU's own counters are read once a second."""
LEAST_BUSY_SAMPLES = 3
"""Fewer samples of the GPU's own counters are too few for an average."""


@dataclass(frozen=True)
class Measurement:
    """What one run of the program showed. Activity and cores are None where they were not reported.

    The field names are keys of the document of `mps.plan --json`.
    """

    status: int
    seconds: float
    peak_memory_mib: int | None
    """The most memory in use during the run above what was in use before it."""
    activity: float | None
    activity_kind: ActivityKind
    cores: float | None
    samples: int
    """The number of samples that `activity` is the average of."""

    def workload(self, clients: int | None) -> Workload:
        """The run as the workload of a plan for `clients` processes."""
        return Workload(
            clients, self.peak_memory_mib, self.activity, self.activity_kind, self.cores
        )


def measure_words(command: str, gpu: str = "") -> list[str]:
    """The words to run in the container: `command` once, while `gpu` is sampled.

    `gpu` is an index or a UUID; empty for the first GPU.
    """
    return ["sh", "-c", shell_text(HERE / "measure.sh"), "provision", command, gpu]


def read_measurement(text: str) -> Measurement:
    """The measurement that the script of `measure_words` printed.

    Raises `ProvisionError` where the GPU does not exist, reports no figures, or was not used.
    """
    values, memory, activity = _split(text)
    if "gpu" in values:
        raise ProvisionError(
            "there is no such GPU",
            where="provision.mps.gpu",
            why=values["gpu"].strip(),
            fix="invoke dev.exec -- nvidia-smi -L",
        )
    rows = [[parse_int(cell) for cell in row.split(",")] for row in memory if row.count(",") == 1]
    peak = _peak_mib(values.get("before", ""), [row[0] for row in rows if row[0] is not None])
    utilisation = [float(row[1]) for row in rows if row[1] is not None]
    kind, busy = _activity("\n".join(activity), utilisation)
    start, end = (parse_decimal(values.get(key, "")) or 0.0 for key in ("start", "end"))
    seconds = max(0.0, end - start)
    return Measurement(
        status=parse_int(values.get("status", "")) or 0,
        seconds=seconds,
        peak_memory_mib=peak,
        activity=sum(busy) / len(busy) / 100 if busy else None,
        activity_kind=kind,
        cores=_cores(values.get("times", ""), seconds),
        samples=len(busy),
    )


def _split(text: str) -> tuple[Mapping[str, str], list[str], list[str]]:
    """The `key=value` lines, the memory samples, and the lines of the activity samples."""
    samples: dict[str, list[str]] = {"memory": [], "activity": []}
    for line in text.split("\n"):
        head, _, rest = line.partition(" ")
        if head in samples:
            samples[head].append(rest)
    return fields(text), samples["memory"], samples["activity"]


def _peak_mib(before_text: str, used_mib: Sequence[int]) -> int:
    """The most memory used above what was used before."""
    before = parse_int(before_text)
    if before is None:
        raise ProvisionError(
            "nvidia-smi reports no memory use of this GPU",
            where="the container",
            why="it printed no figures for memory.used",
            fix="invoke mps.doctor",
        )
    peak = max(used_mib, default=before) - before
    if peak <= 0:
        raise ProvisionError(
            "the program did not use the GPU",
            where="the container",
            why=f"{len(used_mib)} samples, one each {SAMPLE_MS / 1000:g} s, none above the "
            f"{before} MiB that were in use before",
            fix="invoke dev.exec -- nvidia-smi",
        )
    return peak


def _activity(counted: str, utilisation: Sequence[float]) -> tuple[ActivityKind, list[float]]:
    """The busy samples in percent: the GPU's own where enough, else the time utilisation."""
    name, values = nvidia_smi.read_activity(counted)
    busy = _busy(values) if name == "smutil" else []
    if len(busy) >= LEAST_BUSY_SAMPLES:
        return "sm", busy
    busy = _busy(utilisation)
    return ("time", busy) if busy else ("", [])


def _busy(values: Sequence[float]) -> list[float]:
    """The samples from the first above zero to the last, none above 100 %."""
    capped = [min(100.0, value) for value in values]
    busy = [index for index, value in enumerate(capped) if value > 0]
    return capped[busy[0] : busy[-1] + 1] if busy else []


def _cores(times: str, seconds: float) -> float | None:
    """The cores kept busy, from user and system time of the children (`0m1.23s 0m0.04s`)."""
    spent = [_seconds(word) for word in times.split()]
    if seconds < 1.0 or len(spent) != 2 or None in spent:
        return None
    return round(sum(value or 0.0 for value in spent) / seconds, 2) or None


def _seconds(word: str) -> float | None:
    """The seconds of `1m2.50s`, as the shell's `times` prints them; None for anything else."""
    minutes, _, rest = word.removesuffix("s").partition("m")
    whole, part = parse_decimal(minutes), parse_decimal(rest)
    return None if whole is None or part is None else whole * 60 + part
