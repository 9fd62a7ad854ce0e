"""One cell of a benchmark as a script for the worker container, and what it printed as values. Pure.

A cell is n copies of one program that start together, with a daemon of its own or with none. Protocol (facts/mps.md §3.5):
warm-up before a barrier, fixed core sets, a fresh daemon, attachment read from the daemon's own list and its absence shown
in the other arm, every client's end reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.errors import ProvisionError
from provision.mps import parse
from provision.shell import Script, payload, script

# Runs in the container. $1 folder, $2 clients, $3 thread percentage (empty: no MPS), $4 steps, $5 who waits at the barrier
# (program: it does so itself when it is ready; start: its start does), $6 threads per client, $7 core sets (one word each,
# - for any), $8 how long clients may take to be ready, $9 UUID of the GPU (empty: the machine has one), then the program.
# With MPS the daemon alone is told which GPU, as clients see what it offers; without MPS each client is. Clients are told
# apart by a variable that their children inherit, so that the daemon's list can be matched with them. A read-write open of
# the barrier never blocks, also when no client is left to wait at it.
_CELL = r"""
set -u
folder=$1 clients=$2 percentage=$3 steps=$4 barrier=$5 threads=$6 sets=$7 ready_s=$8 gpu=$9
shift 9
umask 022
export CUDA_MPS_PIPE_DIRECTORY="$folder/pipe" CUDA_MPS_LOG_DIRECTORY="$folder/log"
unset CUDA_VISIBLE_DEVICES CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
ask() { echo "$1" | timeout 10 nvidia-cuda-mps-control 2>&1 || true; }
numeric() { case $1 in '' | *[!0-9.]*) return 1 ;; esac; }
numbers() { for word in $(ask "$1"); do case $word in *[!0-9]*) ;; *) echo "$word" ;; esac; done; }
memory() { nvidia-smi ${gpu:+-i "$gpu"} --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | head -n 1; }
sampler= pids=
# A program that hangs is no child of this shell: what its client's processes inherit finds it.
stop() {
    kill -KILL $pids 2>/dev/null
    for process in /proc/[0-9]*; do
        { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -qxF "PROVISION_BENCH=$folder" || continue
        kill -KILL "${process#/proc/}" 2>/dev/null
    done
}
finish() {
    test -z "$sampler" || kill "$sampler" 2>/dev/null
    test -z "$pids" || stop
    if test -n "$percentage"; then
        ask 'quit -t 5' >/dev/null
        tries=0
        while numeric "$(ask get_default_active_thread_percentage)" && test "$tries" -lt 100; do
            tries=$((tries + 1))
            sleep 0.1
        done
    fi
    rm -rf "$folder"
}
trap 'finish; exit 143' TERM HUP INT
fail() {
    echo "failed $1"
    finish
    exit 0
}

rm -rf "$folder"
mkdir -p "$folder/pipe" "$folder/log"
echo "idle $(memory)"
if test -n "$percentage"; then
    test -z "$gpu" || export CUDA_VISIBLE_DEVICES="$gpu"
    nvidia-cuda-mps-control -d </dev/null >"$folder/daemon" 2>&1 || fail "the daemon did not start: $(tail -n 1 "$folder/daemon")"
    unset CUDA_VISIBLE_DEVICES
    tries=0
    until numeric "$(ask get_default_active_thread_percentage)"; do
        test "$tries" -lt 100 || fail "the daemon does not answer"
        tries=$((tries + 1))
        sleep 0.1
    done
    test "$percentage" = 100 || ask "set_default_active_thread_percentage $percentage" >/dev/null
    ask "start_server -uid $(id -u)" >/dev/null
    tries=0 state=
    until test "$state" = ACTIVE; do
        test "$tries" -lt 300 || fail "the server is not ACTIVE: $state"
        tries=$((tries + 1))
        sleep 0.1
        for server in $(numbers get_server_list); do state=$(ask "get_server_status $server" | head -n 1); done
    done
fi

mkfifo "$folder/go"
test -n "$percentage" || test -z "$gpu" || export CUDA_VISIBLE_DEVICES="$gpu"
client=0
for cores in $sets; do
    (
        exec >"$folder/out.$client" 2>&1 </dev/null
        export PROVISION_BENCH="$folder" PROVISION_BENCH_CLIENT="$client" PROVISION_BENCH_STEPS="$steps"
        export PROVISION_BENCH_READY="$folder/ready.$client" PROVISION_BENCH_GO="$folder/go" PROVISION_BENCH_TIMES="$folder/times.$client"
        export OMP_NUM_THREADS="$threads" MKL_NUM_THREADS="$threads" OPENBLAS_NUM_THREADS="$threads"
        if test "$barrier" = start; then
            : >"$PROVISION_BENCH_READY"
            : <"$PROVISION_BENCH_GO"
        fi
        began=$(date +%s.%N)
        case $cores in
            -) "$@" ;;
            *) taskset -c "$cores" "$@" ;;
        esac
        status=$?
        ended=$(date +%s.%N)
        test -s "$folder/times.$client" && read -r began ended <"$folder/times.$client"
        echo "client $client $began $ended $status" >"$folder/end.$client"
    ) &
    pids="$pids $!"
    client=$((client + 1))
done

ready() { find "$folder" -maxdepth 1 \( -name 'ready.*' -o -name 'end.*' \) | sed 's/.*[.]//' | sort -u | wc -l; }
late() {
    client=0
    while test "$client" -lt "$clients"; do
        if ! test -e "$folder/ready.$client" && ! test -e "$folder/end.$client"; then
            said=$(tr '\r' '\n' <"$folder/out.$client" | grep . | tail -n 3)
            printf '%s\n' "${said:-it printed nothing}" | sed "s/^/late $client /"
        fi
        client=$((client + 1))
    done
    fail "not every client was ready within $ready_s s"
}
deadline=$(($(date +%s) + ready_s))
until test "$(ready)" -ge "$clients"; do
    test "$(date +%s)" -lt "$deadline" || late
    sleep 0.05
done
nvidia-smi ${gpu:+-i "$gpu"} --query-gpu=memory.used --format=csv,noheader,nounits -lms 500 >"$folder/memory" 2>/dev/null &
sampler=$!

# Which clients the daemon lists: their processes carry the client's number in their environment.
attached() {
    for server in $(numbers get_server_list); do
        for pid in $(numbers "get_client_list $server"); do
            tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qxF "PROVISION_BENCH=$folder" || continue
            tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | sed -n 's/^PROVISION_BENCH_CLIENT=//p'
        done
    done | sort -un
}
# Whoever was listed once counts: short programs come and go while others still start.
seen=
look() {
    if test -n "$percentage"; then
        found=$(attached | tr '\n' ' ')
        seen=$(printf '%s\n' $seen $found | sort -un | tr '\n' ' ')
    else
        seen=$(ask get_server_list | tr '\n' ' ')
    fi
}
test "$barrier" = start || look
sleep 0.1
date '+go %s.%N'
exec 8<>"$folder/go"
whole() { test -n "$percentage" && test "$(echo "$seen" | wc -w)" -ge "$clients"; }
# Whoever has a core of its own is not to share it with this shell: it looks no longer than it must, then waits.
until test "$barrier" = program || whole; do
    test "$(find "$folder" -maxdepth 1 -name 'end.*' | wc -l)" -lt "$clients" || break
    look
    test -n "$percentage" || break
    sleep 0.2
done
wait $pids
exec 8>&-
echo "seen $seen"
kill "$sampler" 2>/dev/null
echo "peak $(sort -n "$folder/memory" | tail -n 1)"
cat "$folder"/end.*
client=0
while test "$client" -lt "$clients"; do
    printf 'said %s %s\n' "$client" "$(tail -n 1 "$folder/out.$client" | tr '\r' '\n' | tail -n 1)"
    client=$((client + 1))
done
pids=
finish
echo done
"""

READY_S = 300
"""How long a built-in program may take to stand at the barrier: importing a framework from a cold disk, N times at once, takes a minute."""

_INTO = """
docker exec "$name" sh -eu -c "$body" provision "$folder" "$program"
"""
_PLACE = """
mkdir -p "$1"
printf '%s' "$2" | base64 -d >"$1/workload.py"
"""


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
    """Clients that the daemon of this cell listed."""
    daemon_seen: bool
    """A daemon answered on the clients' pipe directory."""

    @property
    def seconds(self) -> tuple[float, ...]:
        """How long each client took."""
        return tuple(end.ended_s - end.began_s for end in self.ends)


class CellFailed(ProvisionError):
    """The cell gave no figure: a client failed, was not attached, or the daemon did not come up."""


def in_container(cell: Cell, folder: str) -> list[str]:
    """The words to run in the container. `folder` is absolute, at most 80 bytes (AF_UNIX), and made and removed by them."""
    percentage = "" if cell.percentage is None else str(cell.percentage)
    barrier = "program" if cell.waits else "start"
    numbers = (
        folder,
        str(cell.clients),
        percentage,
        str(cell.steps),
        barrier,
        str(cell.threads),
        " ".join(cell.cores),
        str(cell.ready_s),
        cell.gpu,
    )
    return ["sh", "-c", _CELL, "provision", *numbers, *cell.words]


def place_workload(container: str, folder: str, source: bytes) -> Script:
    """Write the workload into `folder` of the container, as workload.py."""
    return script(_INTO, name=container, folder=folder, program=payload(source), body=_PLACE)


def read_cell(text: str, cell: Cell, where: str) -> Sample:
    """The sample in what the cell printed. Raises `CellFailed` for anything that makes its figure worthless."""
    said = [line.split(None, 1) for line in text.split("\n") if line.strip()]
    first = {words[0]: words[1] if len(words) > 1 else "" for words in said}
    if "failed" in first:
        raise CellFailed("the cell could not run", where=where, why="\n".join([first["failed"], *_late(said)]))
    ends = _ends([words[1] for words in said if words[0] == "client" and len(words) > 1], _last_lines(said))
    go = _number(first.get("go", ""))
    if "done" not in first or go is None or [end.client for end in ends] != list(range(cell.clients)):
        raise CellFailed("the cell did not reach its end", where=where, why=text[-500:].strip() or "it printed nothing")
    bad = [end for end in ends if end.status != 0]
    if bad:
        why = "\n".join(f"client {end.client}: status {end.status}  {end.said}" for end in bad[:4])
        raise CellFailed(f"{len(bad)} of {cell.clients} clients failed", where=where, why=why)
    _check_times(ends, go, where)
    numbers = frozenset(parse.pids("\n".join(first.get("seen", "").split())))
    attached = numbers if cell.percentage is not None else frozenset()
    sample = Sample(
        makespan_s=max(end.ended_s for end in ends) - go,
        ends=ends,
        peak_memory_mib=_difference(first.get("idle", ""), first.get("peak", "")),
        attached=attached,
        daemon_seen=bool(numbers),
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
    """Attachment of every client with MPS, and no daemon without it: a silent fall-back would be measured otherwise."""
    if cell.percentage is None and sample.daemon_seen:
        raise CellFailed("a daemon answered in a cell without MPS", where=where, why="the clients may have used it")
    missing = sorted(set(range(cell.clients)) - sample.attached)
    if cell.percentage is not None and missing:
        names = ", ".join(map(str, missing))
        raise CellFailed("not every client was attached to MPS", where=where, why=f"the daemon never listed client {names}")


def _ends(lines: Sequence[str], said: dict[int, str]) -> tuple[ClientEnd, ...]:
    ends = []
    for line in lines:
        match line.split():
            case [client_text, began_text, ended_text, status_text]:
                client, status = parse.whole(client_text), parse.whole(status_text)
                began_s, ended_s = _number(began_text), _number(ended_text)
                if client is not None and status is not None and began_s is not None and ended_s is not None:
                    ends.append(ClientEnd(client, began_s, ended_s, status, said.get(client, "")))
    return tuple(sorted(ends, key=lambda end: end.client))


def _late(said: Sequence[Sequence[str]]) -> list[str]:
    """The last lines of the clients that were not ready, each with its client's number; of four of them at most."""
    lines = [words[1].split(None, 1) for words in said if words[0] == "late" and len(words) > 1]
    numbers = list(dict.fromkeys(line[0] for line in lines))
    shown = [f"client {line[0]}: {line[1] if len(line) > 1 else ''}" for line in lines if line[0] in numbers[:4]]
    return [*shown, f"and {len(numbers) - 4} more"] if len(numbers) > 4 else shown


def _last_lines(said: Sequence[Sequence[str]]) -> dict[int, str]:
    lines = [words[1].split(None, 1) for words in said if words[0] == "said" and len(words) > 1]
    return {client: words[1] for words in lines if len(words) == 2 and (client := parse.whole(words[0])) is not None}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < 1e12 else None


def _difference(before: str, after: str) -> int | None:
    least, most = parse.whole(before), parse.whole(after)
    return None if least is None or most is None else most - least
