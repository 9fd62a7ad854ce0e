# shellcheck shell=sh
# One cell of a benchmark: starts the clients together, with an MPS daemon of its own or none, and
# prints what happened. The output format is that of cell.py.
#
# folder      is created here and removed at the end
# clients     the number of clients
# percentage  the default active thread percentage; empty: no MPS
# barrier     program: the program waits at the barrier when it is ready; start: client.sh waits
# ready_s     how long clients may take to be ready
# gpu         UUID of the GPU; empty where the machine has one
# core_sets   one word for each client, - for any core
# client      text of client.sh; empty: the reader of this output starts the clients at `start`
# Further arguments are passed to client.sh behind number and cores.
folder=$1 clients=$2 percentage=$3 barrier=$4 ready_s=$5 gpu=$6 core_sets=$7 client=$8
shift 8
set -u
umask 022

# On the mock the stand-ins of the driver look below the root of the host.
root=${PROVISION_MOCK_ROOT-}
other_pipes="${CUDA_MPS_PIPE_DIRECTORY-} /tmp/nvidia-mps"
export CUDA_MPS_PIPE_DIRECTORY="$folder/pipe" CUDA_MPS_LOG_DIRECTORY="$folder/log"
unset CUDA_VISIBLE_DEVICES CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PINNED_DEVICE_MEM_LIMIT

ask() { echo "$1" | timeout 10 nvidia-cuda-mps-control 2>&1 || true; }
is_number() { case $1 in '' | *[!0-9.]*) return 1 ;; esac; }
numbers() { for word in $(ask "$1"); do case $word in *[!0-9]*) ;; *) echo "$word" ;; esac; done; }
daemon_answers() { is_number "$(ask get_default_active_thread_percentage)"; }
memory_used() { nvidia-smi ${gpu:+-i "$gpu"} --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | head -n 1; }
environment_of() { { tr '\0' '\n' <"/proc/$1/environ"; } 2>/dev/null; }

# Kills every process with a variable in its environment. A program that hangs need not be a child
# of this shell, and neither is a client in another container.
kill_marked() {
    for process in /proc/[0-9]*; do
        environment_of "${process#/proc/}" | grep -qxF "$1" || continue
        kill -KILL "${process#/proc/}" 2>/dev/null
    done
}

sampler='' pids='' clients_started=''
# Ends clients and daemon before their folder goes: a daemon without it could not be reached.
finish() {
    test -z "$sampler" || kill "$sampler" 2>/dev/null
    test -z "$clients_started" || kill_marked "PROVISION_BENCH=$folder"
    if test -n "$percentage"; then
        ask 'quit -t 5' >/dev/null
        tries=0
        while daemon_answers && test "$tries" -lt 50; do
            tries=$((tries + 1))
            sleep 0.1
        done
        test ! -e "$root$folder/pipe/nvidia-cuda-mps-control.pid" ||
            kill_marked "CUDA_MPS_PIPE_DIRECTORY=$folder/pipe"
    fi
    rm -rf "$folder" "$root$folder"
}
trap 'finish; exit 143' TERM HUP INT
fail() {
    echo "failed $1"
    finish
    exit 0
}

# --- daemon -------------------------------------------------------------------

rm -rf "$folder"
mkdir -p "$folder" "$root$folder/pipe" "$root$folder/log"
echo "idle $(memory_used)"
if test -n "$percentage"; then
    # With MPS the daemon alone gets the GPU: clients see the devices that it offers. Without MPS
    # client.sh sets it.
    test -z "$gpu" || export CUDA_VISIBLE_DEVICES="$gpu"
    nvidia-cuda-mps-control -d </dev/null >"$folder/daemon" 2>&1 ||
        fail "the daemon did not start: $(tail -n 1 "$folder/daemon")"
    unset CUDA_VISIBLE_DEVICES
    tries=0
    until daemon_answers; do
        test "$tries" -lt 100 || fail "the daemon does not answer"
        tries=$((tries + 1))
        sleep 0.1
    done
    test "$percentage" = 100 || ask "set_default_active_thread_percentage $percentage" >/dev/null
    ask "start_server -uid $(id -u)" >/dev/null
    tries=0 state=''
    until test "$state" = ACTIVE; do
        test "$tries" -lt 300 || fail "the server is not ACTIVE: $state"
        tries=$((tries + 1))
        sleep 0.1
        for server in $(numbers get_server_list); do state=$(ask "get_server_status $server" | head -n 1); done
    done
fi

# --- clients ------------------------------------------------------------------

mkfifo "$folder/go"
clients_started=yes
if test -n "$client"; then
    number=0
    for cores in $core_sets; do
        PROVISION_BENCH="$folder" sh -c "$client" provision "$number" "$cores" "$@" &
        pids="$pids $!"
        number=$((number + 1))
    done
else
    echo start
fi

count_ready() { find "$folder" -maxdepth 1 \( -name 'ready.*' -o -name 'end.*' \) | sed 's/.*[.]//' | sort -u | wc -l; }
fail_late() {
    number=0
    while test "$number" -lt "$clients"; do
        if ! test -e "$folder/ready.$number" && ! test -e "$folder/end.$number"; then
            lines=$(tr '\r' '\n' <"$folder/out.$number" | grep . | tail -n 3) 2>/dev/null
            printf '%s\n' "${lines:-it printed nothing}" | sed "s/^/late $number /"
        fi
        number=$((number + 1))
    done
    fail "not every client was ready within $ready_s s"
}
deadline=$(($(date +%s) + ready_s))
until test "$(count_ready)" -ge "$clients"; do
    test "$(date +%s)" -lt "$deadline" || fail_late
    sleep 0.05
done
nvidia-smi ${gpu:+-i "$gpu"} --query-gpu=memory.used --format=csv,noheader,nounits -lms 500 >"$folder/memory" 2>/dev/null &
sampler=$!

# --- attachment ---------------------------------------------------------------

# With MPS every client has to be in the list of the cell's own daemon. Without it a client may be in
# no list, and a program may connect to another daemon than its own: those are asked, too.
pipes=$folder/pipe pause=0.2
if test -z "$percentage"; then
    pause=1
    for other in $other_pipes; do
        ! (CUDA_MPS_PIPE_DIRECTORY=$other && daemon_answers) || pipes="$pipes $other"
    done
fi
# Prints the numbers of the clients that a daemon lists. Their processes carry the number in their
# environment.
list_attached() {
    for CUDA_MPS_PIPE_DIRECTORY in $pipes; do
        for server in $(numbers get_server_list); do
            for pid in $(numbers "get_client_list $server"); do
                environment_of "$pid" | grep -qxF "PROVISION_BENCH=$folder" || continue
                environment_of "$pid" | sed -n 's/^PROVISION_BENCH_CLIENT=//p'
            done
        done
    done | sort -un
}
# A client that was listed once counts: short programs end while others still start.
attached=
# shellcheck disable=SC2086 # the numbers are words
record_attached() {
    listed=$(list_attached)
    attached=$(printf '%s\n' $attached $listed | sort -un | tr '\n' ' ')
}
all_attached() { test -n "$percentage" && test "$(echo "$attached" | wc -w)" -ge "$clients"; }
all_ended() {
    set -- "$folder"/end.*
    test -e "$1" && test "$#" -ge "$clients"
}

# --- run ----------------------------------------------------------------------

test "$barrier" = start || record_attached
sleep 0.1
date '+go %s.%N'
# A read-write open of the barrier never blocks, also when no client is left to wait at it.
exec 8<>"$folder/go"
# A client with a core of its own should not share it with this shell: the lists are read no longer
# than needed.
until test "$barrier" = program || all_attached; do
    all_ended && break
    record_attached
    test -n "$percentage" || test "$pipes" != "$folder/pipe" || break
    sleep "$pause"
done
# shellcheck disable=SC2086 # the process ids are words
if test -n "$client"; then wait $pids; else until all_ended; do sleep 0.2; done; fi
exec 8>&-

echo "attached $attached"
kill "$sampler" 2>/dev/null
echo "peak $(sort -n "$folder/memory" | tail -n 1)"
cat "$folder"/end.*
number=0
while test "$number" -lt "$clients"; do
    printf 'printed %s %s\n' "$number" "$(tail -n 1 "$folder/out.$number" | tr '\r' '\n' | tail -n 1)"
    number=$((number + 1))
done
clients_started=''
finish
echo "done"
