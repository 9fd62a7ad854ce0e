"""nvidia-smi: the fields that are queried, and readers of its output. Pure.

nvidia_smi.sh beside this module runs it from the driver's folder of a host. A value that the GPU
does not support (`[N/A]`) reads None. A malformed table raises `ProbeUnreadable`; the
readers raise nothing else for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from provision.core.parsing import parse_decimal, parse_int, parse_version, unreadable_answer

GPU_FIELDS = (
    "index,uuid,name,driver_version,memory.total,memory.used,memory.free,compute_cap,compute_mode,"
    "mig.mode.current,utilization.gpu,persistence_mode,pci.bus_id"
)
"""For `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`, read by `read_gpus`."""
PROCESS_FIELDS = "pid,process_name,used_memory"
"""For `nvidia-smi --query-compute-apps=… --format=csv,noheader,nounits`, for `read_processes`."""
PROCESS_GPU_FIELDS = "pid,gpu_uuid"
"""For `nvidia-smi --query-compute-apps=… --format=csv,noheader`, read by `read_process_gpus`."""
SM_COLUMNS = ("smutil", "sm")
"""Activity columns of `nvidia-smi dmon`, the better one first.

`smutil` (`--gpm-metrics 2`, Hopper and later) is the SM activity that the GPU itself counts. `sm`
is the share of time in which any kernel ran, even on a small part of the GPU.
"""


@dataclass(frozen=True)
class SmiGpu:
    """A GPU as nvidia-smi describes it. Memory is in MiB, utilization in percent."""

    index: int
    uuid: str
    name: str
    driver: str
    memory_total_mib: int | None
    memory_used_mib: int | None
    memory_free_mib: int | None
    compute_capability: tuple[int, int] | None
    compute_mode: str
    mig: bool
    utilization: int | None
    persistence: bool | None
    bus_id: str


@dataclass(frozen=True)
class GpuProcess:
    """A process that nvidia-smi lists on a GPU.

    `memory_mib` is None where nvidia-smi does not report it, as for another PID namespace.
    """

    pid: int
    name: str
    memory_mib: int | None


def read_gpus(text: str) -> tuple[SmiGpu, ...]:
    """The GPUs that `nvidia-smi --query-gpu=GPU_FIELDS --format=csv,noheader,nounits` lists.

    Raises `ProbeUnreadable` for a line that is not a row of that table.
    """
    return tuple(
        _read_gpu(line)
        for line in text.split("\n")
        if line.strip() and "No devices were found" not in line
    )


def _read_gpu(line: str) -> SmiGpu:
    cells = [cell.strip() for cell in line.split(",")]
    index = parse_int(cells[0])
    if index is None or len(cells) != GPU_FIELDS.count(",") + 1:
        raise unreadable_answer("nvidia-smi --query-gpu", line)
    _, uuid, name, driver, total, used, free, capability, mode, mig, busy, persistence, bus = cells
    return SmiGpu(
        index=index,
        uuid=uuid,
        name=name,
        driver=driver,
        memory_total_mib=parse_int(total),
        memory_used_mib=parse_int(used),
        memory_free_mib=parse_int(free),
        compute_capability=parse_version(capability),
        compute_mode=mode,
        mig=mig == "Enabled",
        utilization=parse_int(busy),
        persistence={"Enabled": True, "Disabled": False}.get(persistence),
        bus_id=bus,
    )


def read_cuda_version(text: str) -> tuple[int, int] | None:
    """The newest CUDA version that the driver supports, from the heading of plain `nvidia-smi`."""
    match = re.search(r"CUDA (?:UMD )?Version\s*: *(\d{1,4})\.(\d{1,4})\b", text, re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def read_processes(text: str) -> tuple[GpuProcess, ...]:
    """The processes of `--query-compute-apps=PROCESS_FIELDS --format=csv,noheader,nounits`.

    A process name may hold commas. Raises `ProbeUnreadable` for a line that is not a row.
    """
    rows = ((pid, *rest.rpartition(",")) for pid, rest in _process_rows(text))
    return tuple(GpuProcess(pid, name.strip(), parse_int(memory)) for pid, name, _, memory in rows)


def read_process_gpus(text: str) -> dict[int, frozenset[str]]:
    """UUIDs of the GPUs that each process uses, by PID, from a query of PROCESS_GPU_FIELDS.

    Raises `ProbeUnreadable` for a line that is not a row.
    """
    uuids: dict[int, frozenset[str]] = {}
    for pid, uuid in _process_rows(text):
        uuids[pid] = uuids.get(pid, frozenset()) | {uuid.strip()}
    return uuids


def _process_rows(text: str) -> Iterator[tuple[int, str]]:
    """The PID and the rest of each line of `nvidia-smi --query-compute-apps=pid,…`."""
    for line in text.split("\n"):
        pid_text, comma, rest = line.partition(",")
        pid = parse_int(pid_text)
        if not line.strip() or "No running processes" in line:
            continue
        if pid is None or not comma:
            raise unreadable_answer("nvidia-smi --query-compute-apps", line)
        yield pid, rest


_PROCESS_ROW = re.compile(
    r"^\|\s+\d{1,3}(?:\s+\S+\s+\S+)?\s+(\d{1,9})\s+([MCG+]{1,5})\s", re.ASCII | re.MULTILINE
)


def read_process_types(text: str) -> dict[int, str]:
    """The type of each process, by PID, from the table of plain `nvidia-smi`.

    `M+C` is a client of MPS; `C` is the MPS server or a process that runs CUDA without MPS.
    """
    return {int(match[1]): match[2] for match in _PROCESS_ROW.finditer(text)}


def read_table(text: str) -> tuple[Mapping[str, str], ...]:
    """The rows of `nvidia-smi pmon` or `dmon`, by the names of the heading (`# gpu pid type …`).

    A missing cell reads `-`.
    """
    names: Sequence[str] = ()
    rows = []
    for line in text.split("\n"):
        words = line.split()
        if words[:2] == ["#", "gpu"]:
            names = words[1:]
        elif words and words[0] != "#" and names:
            words += ["-"] * (len(names) - len(words))
            rows.append(dict(zip(names, words, strict=False)))
    return tuple(rows)


def read_activity(text: str) -> tuple[str, list[float]]:
    """The best of SM_COLUMNS that `nvidia-smi dmon` filled, and its samples in percent.

    `("", [])` where no column has a number.
    """
    rows = read_table(text)
    columns = ((name, _numbers(rows, name)) for name in SM_COLUMNS)
    return next(((name, samples) for name, samples in columns if samples), ("", []))


def _numbers(rows: Iterable[Mapping[str, str]], name: str) -> list[float]:
    """The numbers of one column; other cells are left out."""
    return [value for row in rows if (value := parse_decimal(row.get(name, ""))) is not None]
