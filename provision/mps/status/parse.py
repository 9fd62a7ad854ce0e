"""What the MPS control tool, nvidia-smi and the logs print, as data. Pure.

Sources: the NVIDIA MPS guide (commands, states, MPS v3's columns), nvidia-cuda-mps-control(1), and
answers recorded on drivers 550 and 580 (docs/facts.md). The control tool exits 0 for unknown
commands, missing servers and refused privileges alike, so whoever asks has to read the answer.

A scalar that is not there reads None or empty. A table that is not what its tool prints raises
`ProbeUnreadable`; nothing else is ever raised, whatever the text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from provision.core.errors import ProbeUnreadable

SERVER_STATES = ("INITIALIZING", "ACTIVE", "FAULT")
"""States of a server (MPS guide, architecture); MPS v3 says `Ready` for ACTIVE."""
GPU_QUERY = (
    "index,uuid,name,driver_version,memory.total,memory.used,memory.free,compute_cap,compute_mode,mig.mode.current,"
    "utilization.gpu,persistence_mode,pci.bus_id"
)
"""The fields that `gpus` reads, for `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`."""
APPS_QUERY = "pid,process_name,used_memory"
"""The fields that `processes` reads, for `nvidia-smi --query-compute-apps=…
--format=csv,noheader,nounits`."""

_LONGEST_NUMBER = 18
"""Digits that a number of ours may have; more is no PID and no size, and int() refuses thousands of
them."""


def unreadable(what: str, line: str) -> ProbeUnreadable:
    """The error for text that is not what its tool prints."""
    why = f"it printed: {line.strip()[:200]!r}"
    return ProbeUnreadable(
        f"the answer of {what} cannot be read", where=what, why=why, fix="invoke mps.doctor"
    )


def whole(text: str) -> int | None:
    """A number of ASCII digits; None for anything else."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER else None


def decimal(text: str) -> float | None:
    """A plain decimal number; None for anything else, `nan` and `1e3` included."""
    text = text.strip()
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) else None


# --- the control tool, version 2 ------------------------------------------------------------------


def percentage(text: str) -> float | None:
    """The answer of `get_default_active_thread_percentage` and its kin, in (0, 100]; None when it is no such number."""
    value = decimal(text)
    return value if value is not None and 0.0 < value <= 100.0 else None


def pids(text: str) -> tuple[int, ...]:
    """The answer of `get_server_list` and `get_client_list`: a PID a line, 0 for a client of another PID namespace."""
    return tuple(pid for line in text.split("\n") if (pid := whole(line)) is not None)


def server_state(text: str) -> str:
    """The answer of `get_server_status`: INITIALIZING, ACTIVE or FAULT; empty for a refusal. `Ready` of v3 is ACTIVE."""
    word = text.strip().upper()
    return "ACTIVE" if word == "READY" else word if word in SERVER_STATES else ""


def memory_limit_mib(text: str) -> int | None:
    """The answer of `get_default_device_pinned_mem_limit` and its kin (`3G`, `512M`) in MiB; None for no limit.

    Version 2 prints nothing where no limit is set, and whole gigabytes alone above one (`1500M`
    reads back as `1G`).
    """
    found = re.fullmatch(r"(\d{1,9})([KMG]?)B?", text.strip(), re.ASCII)
    if found is None:
        return None
    value = int(found[1])
    return value * 1024 if found[2] == "G" else value // 1024 if found[2] == "K" else value


# --- the control tool, version 3 (CSV) ------------------------------------------------------------


@dataclass(frozen=True)
class Client:
    """A client of a server: `client list --format=csv`."""

    pid: int
    command: str
    server: str
    device: str
    namespace: str


@dataclass(frozen=True)
class NamedServer:
    """A server of MPS v3: `server list --format=csv`."""

    name: str
    uid: int
    pid: int | None
    state: str
    pipe_directory: str


def _csv(what: str, text: str, first: str, least: int) -> list[list[str]]:
    """The rows of a CSV answer, its heading (whose first column is `first`) taken out. Each has `least` columns or more."""
    try:
        rows = [
            [cell.strip() for cell in row]
            for row in csv.reader(io.StringIO(text.replace("\0", "�")))
            if any(map(str.strip, row))
        ]
    except csv.Error as error:
        raise unreadable(what, str(error)) from None
    found = [row for row in rows if row[0].lower() != first]
    for row in found:
        if len(row) < least:
            raise unreadable(what, ",".join(row))
    return found


def named_servers(text: str) -> tuple[NamedServer, ...]:
    """`server list --format=csv[,noheader]`: name, uid, pid, status, pipe-directory, allowed-devices, context-ids."""
    found = []
    for name, uid_text, pid_text, status, pipe, *_ in _csv("server list", text, "name", 5):
        uid = whole(uid_text)
        if uid is None:
            raise unreadable("server list", f"{name},{uid_text}")
        found.append(NamedServer(name, uid, whole(pid_text), server_state(status), pipe))
    return tuple(found)


def named_clients(text: str) -> tuple[Client, ...]:
    """`client list --format=csv[,noheader]`: pid, server, device, namespace, cmd. A command may hold commas of its own."""
    found = []
    for pid_text, server, device, namespace, *command in _csv("client list", text, "pid", 5):
        pid = whole(pid_text)
        if pid is None:
            raise unreadable("client list", f"{pid_text},{server}")
        found.append(Client(pid, ",".join(command), server, device, namespace))
    return tuple(found)


# --- nvidia-smi -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SmiGpu:
    """A GPU as nvidia-smi describes it. What it does not support (`[N/A]`) is None; memory is in MiB."""

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


def gpus(text: str) -> tuple[SmiGpu, ...]:
    """`nvidia-smi --query-gpu=GPU_QUERY --format=csv,noheader,nounits`."""
    return tuple(
        _gpu(line)
        for line in text.split("\n")
        if line.strip() and "No devices were found" not in line
    )


def _gpu(line: str) -> SmiGpu:
    cells = [cell.strip() for cell in line.split(",")]
    index = whole(cells[0])
    if index is None or len(cells) != GPU_QUERY.count(",") + 1:
        raise unreadable("nvidia-smi --query-gpu", line)
    (
        _,
        uuid,
        name,
        driver,
        total,
        used,
        free,
        capability,
        mode,
        mig,
        utilization,
        persistence,
        bus,
    ) = cells
    return SmiGpu(
        index=index,
        uuid=uuid,
        name=name,
        driver=driver,
        memory_total_mib=whole(total),
        memory_used_mib=whole(used),
        memory_free_mib=whole(free),
        compute_capability=version(capability),
        compute_mode=mode,
        mig=mig == "Enabled",
        utilization=whole(utilization),
        persistence={"Enabled": True, "Disabled": False}.get(persistence),
        bus_id=bus,
    )


def version(text: str) -> tuple[int, int] | None:
    """`9.0`, `12.2.1` or `580.126.09` as its first two numbers; None for anything else."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.|\Z)", text.strip(), re.ASCII)
    return (int(found[1]), int(found[2])) if found else None


def cuda_version(text: str) -> tuple[int, int] | None:
    """The newest CUDA version that the driver supports, from the heading of a plain `nvidia-smi`."""
    found = re.search(r"CUDA (?:UMD )?Version\s*: *(\d{1,4})\.(\d{1,4})\b", text, re.ASCII)
    return (int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True)
class GpuProcess:
    """A process that nvidia-smi sees on a GPU; its memory in MiB, None where it may not be told (other PID namespace)."""

    pid: int
    name: str
    memory_mib: int | None


def processes(text: str) -> tuple[GpuProcess, ...]:
    """`nvidia-smi --query-compute-apps=APPS_QUERY --format=csv,noheader,nounits`. A name may hold commas."""
    apart = ((pid, *rest.rpartition(",")) for pid, rest in _apps(text))
    return tuple(GpuProcess(pid, name.strip(), whole(memory)) for pid, name, _, memory in apart)


PLACES_QUERY = "pid,gpu_uuid"
"""The fields that `places` reads, for `nvidia-smi --query-compute-apps=… --format=csv,noheader`."""


def places(text: str) -> dict[int, frozenset[str]]:
    """`nvidia-smi --query-compute-apps=PLACES_QUERY --format=csv,noheader`: UUIDs of the GPUs that each process uses, by PID."""
    found: dict[int, frozenset[str]] = {}
    for pid, uuid in _apps(text):
        found[pid] = found.get(pid, frozenset()) | {uuid.strip()}
    return found


def _apps(text: str) -> Iterator[tuple[int, str]]:
    """The PID of each line of `nvidia-smi --query-compute-apps=pid,…`, and the rest of it."""
    for line in text.split("\n"):
        pid_text, comma, rest = line.partition(",")
        pid = whole(pid_text)
        if not line.strip() or "No running processes" in line:
            continue
        if pid is None or not comma:
            raise unreadable("nvidia-smi --query-compute-apps", line)
        yield pid, rest


def table(text: str) -> tuple[Mapping[str, str], ...]:
    """`nvidia-smi pmon` and `dmon`: each row by the names of its heading (`# gpu pid type …`); what is not told reads `-`."""
    names: Sequence[str] = ()
    rows = []
    for line in text.split("\n"):
        words = line.split()
        if words[:2] == ["#", "gpu"]:
            names = words[1:]
        elif words and words[0] != "#" and names:
            if len(words) < len(names):
                words += ["-"] * (len(names) - len(words))
            rows.append(dict(zip(names, words, strict=False)))
    return tuple(rows)


_PROCESS = re.compile(
    r"^\|\s+\d{1,3}(?:\s+\S+\s+\S+)?\s+(\d{1,9})\s+([MCG+]{1,5})\s", re.ASCII | re.MULTILINE
)


def process_types(text: str) -> dict[int, str]:
    """The table that `nvidia-smi` alone prints: the type of each process, `M+C` for a client of MPS, `C` for others and for the server."""
    return {int(found[1]): found[2] for found in _PROCESS.finditer(text)}


def column(rows: Iterable[Mapping[str, str]], name: str) -> list[float]:
    """The numbers of one column; rows that do not tell it are left out."""
    return [value for row in rows if (value := decimal(row.get(name, ""))) is not None]


SM_COLUMNS = ("smutil", "sm")
"""Columns of `nvidia-smi dmon`: SM activity as the GPU itself counts it (`--gpm-metrics 2`, Hopper
and later), then the share of time in which any kernel ran, which says nothing about how much of the
GPU it used."""


def activity(text: str) -> tuple[str, list[float]]:
    """`nvidia-smi dmon`: the best column that tells anything, and its samples in percent; ("", []) where none does."""
    rows = table(text)
    found = ((name, column(rows, name)) for name in SM_COLUMNS)
    return next(((name, values) for name, values in found if values), ("", []))
