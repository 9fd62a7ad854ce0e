"""One run of a program in the container, with the GPU looked at meanwhile. Pure: what is sent, and what it printed, read.

SM activity is read where the GPU counts it (`nvidia-smi dmon --gpm-metrics`, Hopper and later),
else the share of time in which any kernel ran. Both are averaged from the first busy sample to the
last, so that imports do not dilute them.
"""

from __future__ import annotations

from dataclasses import dataclass

from provision.core.errors import ProvisionError
from provision.core.parsing import parse_decimal, parse_int
from provision.mps.plan.sizing import ActivityKind, Workload
from provision.resources import nvidia_smi

SAMPLE_MS = 200
"""How often memory and utilisation are read; activity by the GPU's own count comes once a
second."""
LEAST_BUSY_SAMPLES = 3
"""Samples of the GPU's own count below which a figure would be an accident."""

# Runs in the container as `sh -c MEASURE provision COMMAND GPU`; the GPU by index or UUID, empty
# for the first one. What the program prints goes to standard error, what was sampled to standard
# output. `times` tells the processor time of the program and of all that it waited for. The program
# runs outside of MPS (its pipe directory does not exist), else a share in force would shrink its
# context and its activity; but not in EXCLUSIVE_PROCESS, where the server alone is let in. Where
# there is a choice, the program is told the GPU that is looked at; as a client of MPS it is not: it
# sees what the daemon offers.
MEASURE = """
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
gpu=${2:-0}
if test -n "$2" || test "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')" -gt 1; then
    gpu=$(nvidia-smi --query-gpu=uuid --format=csv,noheader -i "$gpu" 2>&1 | head -n 1)
    case $gpu in GPU-*) export CUDA_VISIBLE_DEVICES="$gpu" ;; *) echo "gpu=$gpu"; exit 0 ;; esac
fi
used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i "$gpu" 2>/dev/null; }
echo "before=$(used)"
nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader,nounits -i "$gpu" -lms 200 >"$folder/memory" 2>/dev/null &
first=$!
nvidia-smi dmon -i "$gpu" -s u --gpm-metrics 2 >"$folder/activity" 2>/dev/null &
second=$!
mode=$(nvidia-smi --query-gpu=compute_mode --format=csv,noheader -i "$gpu" 2>/dev/null)
case $mode in Exclusive*) unset CUDA_VISIBLE_DEVICES ;; *) export CUDA_MPS_PIPE_DIRECTORY=/nonexistent ;; esac
read -r start _ </proc/uptime
sh -c "$1" >&2 </dev/null
status=$?
read -r end _ </proc/uptime
times >"$folder/times"
kill "$first" "$second" 2>/dev/null
wait 2>/dev/null
echo "status=$status"
echo "start=$start"
echo "end=$end"
echo "times=$(tail -n 1 "$folder/times")"
sed 's/^/memory /' "$folder/memory"
sed 's/^/activity /' "$folder/activity"
exit "$status"
"""


@dataclass(frozen=True)
class Measured:
    """What one run showed. Memory in MiB above what was in use before; activity and cores None where nothing was told."""

    status: int
    seconds: float
    peak_memory_mib: int | None
    activity: float | None
    activity_kind: ActivityKind
    cores: float | None
    samples: int

    def workload(self, clients: int | None) -> Workload:
        """The run as a plan's workload."""
        return Workload(
            clients, self.peak_memory_mib, self.activity, self.activity_kind, self.cores
        )


def measured(text: str) -> Measured:
    """What `MEASURE` printed. Raises `ProvisionError` where the program never used the GPU, or nothing was told of it."""
    found: dict[str, str] = {}
    memory: list[str] = []
    activity: list[str] = []
    for line in text.split("\n"):
        head, _, rest = line.partition(" ")
        if head == "memory":
            memory.append(rest)
        elif head == "activity":
            activity.append(rest)
        elif "=" in line:
            key, _, value = line.partition("=")
            found[key] = value
    if "gpu" in found:
        fix = "invoke dev.exec -- nvidia-smi -L"
        raise ProvisionError(
            "there is no such GPU", where="provision.mps.gpu", why=found["gpu"].strip(), fix=fix
        )
    before = parse_int(found.get("before", ""))
    rows = [[parse_int(cell) for cell in row.split(",")] for row in memory if row.count(",") == 1]
    used = [row[0] for row in rows if row[0] is not None]
    if before is None:
        why = "it printed no figures for memory.used"
        raise ProvisionError(
            "nvidia-smi tells nothing of this GPU",
            where="the container",
            why=why,
            fix="invoke mps.doctor",
        )
    peak = max(used, default=before) - before
    if peak <= 0:
        why = f"{len(used)} samples, one each {SAMPLE_MS / 1000:g} s, none above the {before} MiB that were in use before"
        raise ProvisionError(
            "the program did not use the GPU",
            where="the container",
            why=why,
            fix="invoke dev.exec -- nvidia-smi",
        )
    kind, busy = _activity(
        "\n".join(activity), [float(row[1]) for row in rows if row[1] is not None]
    )
    seconds = max(
        0.0,
        (parse_decimal(found.get("end", "")) or 0.0)
        - (parse_decimal(found.get("start", "")) or 0.0),
    )
    return Measured(
        status=parse_int(found.get("status", "")) or 0,
        seconds=seconds,
        peak_memory_mib=peak,
        activity=sum(busy) / len(busy) / 100 if busy else None,
        activity_kind=kind,
        cores=_cores(found.get("times", ""), seconds),
        samples=len(busy),
    )


def _activity(counted: str, times: list[float]) -> tuple[ActivityKind, list[float]]:
    """The GPU's own count where it gave enough of it, else in how much of the time any kernel ran; percent."""
    name, values = nvidia_smi.read_activity(counted)
    busy = _busy(values) if name == "smutil" else []
    if len(busy) >= LEAST_BUSY_SAMPLES:
        return "sm", busy
    busy = _busy(times)
    return ("time", busy) if busy else ("", [])


def _busy(values: list[float]) -> list[float]:
    """From the first sample above zero to the last. More than 100 % is no share."""
    values = [min(100.0, value) for value in values]
    at = [number for number, value in enumerate(values) if value > 0]
    return values[at[0] : at[-1] + 1] if at else []


def _cores(times: str, seconds: float) -> float | None:
    """Cores kept busy: the last line of `times` (user and system of the children, `0m1.23s 0m0.04s`) by the run's seconds."""
    spent = [_seconds(word) for word in times.split()]
    if seconds < 1.0 or len(spent) != 2 or None in spent:
        return None
    return round(sum(value or 0.0 for value in spent) / seconds, 2) or None


def _seconds(word: str) -> float | None:
    minutes, _, rest = word.removesuffix("s").partition("m")
    whole, part = parse_decimal(minutes), parse_decimal(rest)
    return None if whole is None or part is None else whole * 60 + part
