"""Measure whole processes and the load of the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

TIMEOUT_S = 300.0
_QUIET_SHARE = 0.15
"""The machine is quiet while less than this share of its processor time is used."""


@dataclass(frozen=True)
class Sample:
    """One measured run: from the first process started to the last one ended.

    `cpu_s` is the processor time of these processes; `strangers_cpu_s` that of all others, hosts
    included, except this process and its relays.
    """

    wall_s: float
    cpu_s: float
    strangers_cpu_s: float
    ok: bool = True
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """The result of a set of processes: statuses, and the output of the first one."""

    sample: Sample
    statuses: tuple[int, ...]
    stdout: str
    stderr: str


def timed(commands: Sequence[Sequence[str]], *, folder: Path, env: Mapping[str, str]) -> Ended:
    """Start all commands at once and wait for the last one."""
    logs = [(folder / f"out-{number}", folder / f"err-{number}") for number in range(len(commands))]
    files = [(out.open("wb"), err.open("wb")) for out, err in logs]
    busy = _busy_s() - time.process_time()
    started = time.perf_counter()
    processes = [
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(env), cwd=folder
        )
        for command, (out, err) in zip(commands, files, strict=True)
    ]
    cpu_s = 0.0
    statuses = []
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        statuses.append(process.returncode)
        cpu_s += usage.ru_utime + usage.ru_stime
    wall_s = time.perf_counter() - started
    other_s = max(0.0, _busy_s() - time.process_time() - busy - cpu_s)
    for pair in files:
        for file in pair:
            file.close()
    out, err = (path.read_text(encoding="utf-8", errors="replace") for path in logs[0])
    sample = Sample(round(wall_s, 4), round(cpu_s, 4), round(other_s, 3), ok=not any(statuses))
    return Ended(sample, tuple(statuses), out, err)


def _busy_s() -> float:
    """Processor seconds used on this machine since its boot, all cores together (proc(5))."""
    user, nice, system, _idle, _iowait, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(limit_s: float, *, interval_s: float = 0.5) -> float:
    """Wait at most `limit_s` until the machine is quiet; return the share of cores in use."""
    deadline = time.monotonic() + limit_s
    while True:
        before = _busy_s()
        time.sleep(interval_s)
        share = (_busy_s() - before) / interval_s / (os.cpu_count() or 1)
        if share < _QUIET_SHARE or time.monotonic() >= deadline:
            return round(share, 2)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {
        "median": round(median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def ratios(ours: Sequence[float], floor: Sequence[float]) -> list[float]:
    """The ratio to the floor, round by round. Raises `ValueError` for different lengths."""
    return [round(value / base, 3) for value, base in zip(ours, floor, strict=True)]


def surroundings(packages: Sequence[str]) -> dict[str, Any]:
    """Date, commit, hardware and versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _output_of("git", "rev-parse", "HEAD"),
        "uncommitted": [
            line[3:]
            for line in _output_of(
                "git", "status", "--porcelain", "--", "provision", "bench"
            ).splitlines()
        ],
        "hardware": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "memory_gib": _memory_gib(),
            "kernel": platform.release(),
        },
        "versions": {
            "python": platform.python_version(),
            "openssh": _output_of("ssh", "-V"),
            **{name: importlib.metadata.version(name) for name in packages},
        },
    }


def load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def document(sample: Sample) -> dict[str, Any]:
    """A sample as JSON."""
    return {key: value for key, value in asdict(sample).items() if value not in ({}, True)}


def _output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return (done.stdout or done.stderr).strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
