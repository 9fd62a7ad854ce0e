"""The shell of one cell of a benchmark: what brings its clients together, and what each of them runs. Pure.

Where the workers have one container, both run in it. Where each has its own, the cell and its
daemon run in the first one, and a client in each: the containers share PID and IPC namespaces, as
MPS wants it, and they meet in a folder of the workspace.
"""

from __future__ import annotations

from collections.abc import Sequence

from provision.core.shell import Script, payload, script
from provision.mps.bench.cell import Cell

# $1 folder, $2 clients, $3 thread percentage (empty: no MPS), $4 who waits at the barrier (program:
# it does so itself when it is ready; start: its start does), $5 how long clients may take to be
# ready, $6 UUID of the GPU (empty: the machine has one), $7 core sets (one word each, - for any),
# $8 the shell of a client (empty: whoever reads our lines starts the clients at the word `start`),
# then what that shell is given after number and cores. With MPS the daemon alone is told which GPU,
# as clients see what it offers; without MPS each client is. Clients are told apart by a variable
# that their children inherit, so that the daemon's list can be matched with them. A read-write open
# of the barrier never blocks, also when no client is left to wait at it.
_CELL = r"""
set -u
folder=$1 clients=$2 percentage=$3 barrier=$4 ready_s=$5 gpu=$6 sets=$7 client=$8
shift 8
umask 022
others="${CUDA_MPS_PIPE_DIRECTORY-} /tmp/nvidia-mps"
export CUDA_MPS_PIPE_DIRECTORY="$folder/pipe" CUDA_MPS_LOG_DIRECTORY="$folder/log"
unset CUDA_VISIBLE_DEVICES CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
ask() { echo "$1" | timeout 10 nvidia-cuda-mps-control 2>&1 || true; }
numeric() { case $1 in '' | *[!0-9.]*) return 1 ;; esac; }
numbers() { for word in $(ask "$1"); do case $word in *[!0-9]*) ;; *) echo "$word" ;; esac; done; }
memory() { nvidia-smi ${gpu:+-i "$gpu"} --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | head -n 1; }
sampler= pids= started=
# A program that hangs is no child of this shell, nor is a client in another container: what all of them inherit finds them.
stop() {
    for process in /proc/[0-9]*; do
        { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -qxF "$1" || continue
        kill -KILL "${process#/proc/}" 2>/dev/null
    done
}
# A daemon whose folder is gone could be reached by nobody.
finish() {
    test -z "$sampler" || kill "$sampler" 2>/dev/null
    test -z "$started" || stop "PROVISION_BENCH=$folder"
    if test -n "$percentage"; then
        ask 'quit -t 5' >/dev/null
        tries=0
        while numeric "$(ask get_default_active_thread_percentage)" && test "$tries" -lt 50; do
            tries=$((tries + 1))
            sleep 0.1
        done
        test ! -e "$folder/pipe/nvidia-cuda-mps-control.pid" || stop "CUDA_MPS_PIPE_DIRECTORY=$folder/pipe"
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
started=yes
if test -n "$client"; then
    number=0
    for cores in $sets; do
        PROVISION_BENCH="$folder" sh -c "$client" provision "$number" "$cores" "$@" &
        pids="$pids $!"
        number=$((number + 1))
    done
else
    echo start
fi

ready() { find "$folder" -maxdepth 1 \( -name 'ready.*' -o -name 'end.*' \) | sed 's/.*[.]//' | sort -u | wc -l; }
late() {
    number=0
    while test "$number" -lt "$clients"; do
        if ! test -e "$folder/ready.$number" && ! test -e "$folder/end.$number"; then
            said=$(tr '\r' '\n' <"$folder/out.$number" | grep . | tail -n 3) 2>/dev/null
            printf '%s\n' "${said:-it printed nothing}" | sed "s/^/late $number /"
        fi
        number=$((number + 1))
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

# Which clients the daemons of some folders list: their processes carry the client's number in their environment. With MPS they are
# to be in the list of their own daemon; without it in none, and a program may look elsewhere for a daemon than it was told.
attached() {
    for CUDA_MPS_PIPE_DIRECTORY in $pipes; do
        for server in $(numbers get_server_list); do
            for pid in $(numbers "get_client_list $server"); do
                tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qxF "PROVISION_BENCH=$folder" || continue
                tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | sed -n 's/^PROVISION_BENCH_CLIENT=//p'
            done
        done
    done | sort -un
}
pipes=$folder/pipe pause=0.2
if test -z "$percentage"; then
    pause=1
    for other in $others; do
        ! numeric "$(CUDA_MPS_PIPE_DIRECTORY=$other; ask get_default_active_thread_percentage)" || pipes="$pipes $other"
    done
fi
# Whoever was listed once counts: short programs come and go while others still start.
seen=
look() {
    found=$(attached | tr '\n' ' ')
    seen=$(printf '%s\n' $seen $found | sort -un | tr '\n' ' ')
}
ended() {
    set -- "$folder"/end.*
    test -e "$1" && test "$#" -ge "$clients"
}
test "$barrier" = start || look
sleep 0.1
date '+go %s.%N'
exec 8<>"$folder/go"
whole() { test -n "$percentage" && test "$(echo "$seen" | wc -w)" -ge "$clients"; }
# Whoever has a core of its own is not to share it with this shell: it looks no longer than it must, then waits.
until test "$barrier" = program || whole; do
    ended && break
    look
    test -n "$percentage" || test "$pipes" != "$folder/pipe" || break
    sleep "$pause"
done
if test -n "$client"; then wait $pids; else until ended; do sleep 0.2; done; fi
exec 8>&-
echo "seen $seen"
kill "$sampler" 2>/dev/null
echo "peak $(sort -n "$folder/memory" | tail -n 1)"
cat "$folder"/end.*
number=0
while test "$number" -lt "$clients"; do
    printf 'said %s %s\n' "$number" "$(tail -n 1 "$folder/out.$number" | tr '\r' '\n' | tail -n 1)"
    number=$((number + 1))
done
started=
finish
echo done
"""

# $1 number, $2 core set, $3 folder, $4 who waits at the barrier, $5 steps, $6 threads, $7 UUID of
# the GPU (empty: whatever there is), then the program. Its last act is a file with its end, which
# is all that tells of it.
_CLIENT = r"""
set -u
number=$1 cores=$2 folder=$3 barrier=$4 steps=$5 threads=$6 gpu=$7
shift 7
umask 022
exec >"$folder/out.$number" 2>&1 </dev/null
export CUDA_MPS_PIPE_DIRECTORY="$folder/pipe" CUDA_MPS_LOG_DIRECTORY="$folder/log"
unset CUDA_VISIBLE_DEVICES CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
test -z "$gpu" || export CUDA_VISIBLE_DEVICES="$gpu"
export PROVISION_BENCH="$folder" PROVISION_BENCH_CLIENT="$number" PROVISION_BENCH_STEPS="$steps"
export PROVISION_BENCH_READY="$folder/ready.$number" PROVISION_BENCH_GO="$folder/go" PROVISION_BENCH_TIMES="$folder/times.$number"
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
test -s "$folder/times.$number" && read -r began ended <"$folder/times.$number"
echo "client $number $began $ended $status" >"$folder/said.$number"
mv "$folder/said.$number" "$folder/end.$number" # whole as soon as it is there: others count them
"""

# Runs on the host: the cell in the container `name`, which gives the word for the clients, one for
# each of `places` (CONTAINER:CORES). A client that its container did not start, or whose shell was
# killed, is told of in its place: nobody is waited for in vain. `end` ends whatever carries the
# token; it sees the processes of all containers, as they share a PID namespace.
_APART = """
running=$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null)
test "$running" = true || { echo "the container $name is not running" >&2; exit 1; }
trap 'docker exec "$name" sh -c "$end" provision "$token"; exit 143' TERM HUP INT
one() {
    number=$1 box=$2 cores=$3
    shift 3
    said=$(
        docker exec --env "PROVISION_RUN=$token" --env "PROVISION_BENCH=$folder" --workdir "$dir" "$box" \\
            sh -c "$client" provision "$number" "$cores" "$folder" "$barrier" "$steps" "$threads" "$visible" "$@" 2>&1
    ) || docker exec "$name" sh -c "$lost" provision "$folder" "$number" "$?" "$said"
}
every() {
    number=0
    for place in $places; do
        one "$number" "${place%%:*}" "${place#*:}" "$@" &
        number=$((number + 1))
    done
    wait
}
{
    docker exec --env "PROVISION_RUN=$token" --workdir "$dir" "$name" sh -c "$cell" provision "$1" "$2" "$3" "$4" "$5" "$6" "$7" ""
    echo "status $?"
} | {
    shift 7
    status=1
    while IFS= read -r line; do
        case $line in
            start) every "$@" & ;;
            'status '*) status=${line#status } ;;
            *) printf '%s\\n' "$line" ;;
        esac
    done
    wait
    exit "$status"
} &
wait "$!"
"""
_LOST = """
test -d "$1" && ! test -e "$1/end.$2" || exit 0
echo "$4" >>"$1/out.$2"
echo "client $2 0 0 $3" >"$1/said.$2"
mv "$1/said.$2" "$1/end.$2"
"""
_INTO = """
docker exec "$name" sh -eu -c "$body" provision "$folder" "$program"
"""
_PLACE = """
mkdir -p "$1"
printf '%s' "$2" | base64 -d >"$1/workload.py"
"""


def in_container(cell: Cell, folder: str) -> list[str]:
    """The words to run in the container, clients and all. `folder` (absolute, 80 bytes at most: AF_UNIX) is made and removed by them."""
    share = (folder, _barrier(cell), str(cell.steps), str(cell.threads), _visible(cell))
    return ["sh", "-c", _CELL, "provision", *_numbers(cell, folder), _CLIENT, *share, *cell.words]


def apart(
    cell: Cell,
    folder: str,
    *,
    container: str,
    workers: Sequence[str],
    directory: str,
    token: str,
    end: str,
) -> Script:
    """The script for the host: the cell in `container`, its clients in the containers `workers`, one after the other.

    `folder` is as for `in_container`, in a volume of all of them; programs start in `directory`.
    `end` is the shell that ends what carries `token`.
    """
    places = [
        f"{workers[number % len(workers)]}:{cores}" for number, cores in enumerate(cell.cores)
    ]
    return script(
        _APART,
        argv=[*_numbers(cell, folder), *cell.words],
        name=container,
        places=" ".join(places),
        dir=directory,
        token=token,
        end=end,
        cell=_CELL,
        client=_CLIENT,
        lost=_LOST,
        folder=folder,
        barrier=_barrier(cell),
        steps=cell.steps,
        threads=cell.threads,
        visible=_visible(cell),
    )


def place_workload(container: str, folder: str, source: bytes) -> Script:
    """Write the workload into `folder` of the container, as workload.py."""
    return script(_INTO, name=container, folder=folder, program=payload(source), body=_PLACE)


def _numbers(cell: Cell, folder: str) -> list[str]:
    """What the shell of a cell reads first."""
    percentage = "" if cell.percentage is None else str(cell.percentage)
    return [
        folder,
        str(cell.clients),
        percentage,
        _barrier(cell),
        str(cell.ready_s),
        cell.gpu,
        " ".join(cell.cores),
    ]


def _barrier(cell: Cell) -> str:
    return "program" if cell.waits else "start"


def _visible(cell: Cell) -> str:
    """The GPU that each client is told of: with MPS the daemon alone is told."""
    return cell.gpu if cell.percentage is None else ""
