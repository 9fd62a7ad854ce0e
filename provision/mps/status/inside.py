"""What is run inside the daemon's container. Text for `sh -c`, whose environment names the pipe and log directories. Pure.

Sources: the NVIDIA MPS guide (control commands, environment, server states);
nvidia-cuda-mps-control(1); measured: docs/facts.md. The control tool exits 0 for unknown commands,
missing servers and refused privileges alike, and neither a socket file nor a pid file proves
anything, so only what it prints counts. One session of it takes several questions, whose answers
differ in form: a share has a point, a limit its unit, a PID is digits alone, a state a word. A
process counts where it bears the name and has this very pipe directory in its environment: a zombie
has none.
"""

from __future__ import annotations

_PRELUDE = """
R=${PROVISION_MOCK_ROOT-}
pipe=$CUDA_MPS_PIPE_DIRECTORY
notes=$R/run/provision-mps
ask() { printf '%s\\n' "$@" | timeout 10 nvidia-cuda-mps-control 2>&1 || true; }
first() { ask "$1" | head -n 1; }
line() {
    case $1 in
        pid) form='[0-9][0-9]*' ;;
        limit) form='[0-9][0-9]*[KMG]' ;;
        share) form='[0-9][0-9]*\\.[0-9]*' ;;
        state) form='[A-Z][A-Z]*' ;;
    esac
    printf '%s\\n' "$2" | sed -n "/^$form\\$/p"
}
defaults() { ask get_default_active_thread_percentage 'get_default_device_pinned_mem_limit 0' get_server_list; }
of_server() { ask "get_server_status $1" "get_active_thread_percentage $1" "get_device_pinned_mem_limit $1 0" "get_client_list $1"; }
numeric() { case $1 in '' | *[!0-9.]*) return 1 ;; esac; }
answers() { numeric "$(ask get_default_active_thread_percentage)"; }
# A daemon of MPS v3 knows other commands and answers in CSV.
named() { ask 'server list --format=csv' | sed -n '/^name,uid,pid,status,/,$p' | grep ,; }
servers() { line pid "$(ask get_server_list)"; }
clients() { for server in $(servers); do line pid "$(ask "get_client_list $server")" | sed "s/^/$server /"; done; }
environment() { { tr '\\0' '\\n' <"/proc/$1/environ"; } 2>/dev/null; }
value() { environment "$1" | sed -n "s/^$2=//p"; }
owner() { sed -n 's/^Uid:[[:space:]]*\\([0-9]*\\).*/\\1/p' "/proc/$1/status" 2>/dev/null || true; }
affinity() { sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/status"; }
ours() {
    { read -r comm <"/proc/$1/comm"; } 2>/dev/null || return 1
    case $comm in nvidia-cuda-mps*) ;; *) return 1 ;; esac
    environment "$1" | grep -qxF "CUDA_MPS_PIPE_DIRECTORY=$pipe" || return 1
    test -z "$R" || environment "$1" | grep -qxF "PROVISION_MOCK_ROOT=$R"
}
live() { for process in /proc/[0-9]*; do ! ours "${process#/proc/}" || echo "${process#/proc/}"; done; }
daemon() {
    pid=$(cat "$R$pipe/nvidia-cuda-mps-control.pid" 2>/dev/null) || return 1
    ours "$pid" && echo "$pid"
}
stamp() { for server in ${1-$(servers)}; do echo "$server:$(cut -d ' ' -f 22 "/proc/$server/stat" 2>/dev/null)"; done | tail -n 1; }
"""

ALIVE = _PRELUDE + "daemon >/dev/null\n"
"""Ends with 0 where a daemon runs. It is not asked: a question takes longer, and fills its log."""

STATUS = (
    _PRELUDE
    + """
told=$(defaults)
said=$(printf '%s\\n' "$told" | head -n 1)
echo "percentage=$said"
numeric "$said" || {
    echo "left=$(live | tr '\\n' ' ')"
    if named=$(named); then
        printf '%s\\n' "$named" | sed 's/^/named|/'
        ask 'client list --format=csv' | sed 's/^/client|/'
    fi
    exit 0
}
if pid=$(daemon); then
    cpus=$(affinity "$pid")
    echo "cpu_list=$cpus"
    test "$cpus" != "$(affinity self)" || cpus=all
    echo "daemon=$pid"
    echo "cpus=$cpus"
    echo "visible=$(value "$pid" CUDA_VISIBLE_DEVICES)"
    echo "planned_memory=$(value "$pid" PROVISION_MPS_MEMORY)"
fi
case $2 in '' | GPU-*) ;; *) echo "indices=$(nvidia-smi --query-gpu=index,uuid --format=csv,noheader | tr -d ' ' | tr '\\n' ' ')" ;; esac
echo "memory=$(line limit "$told")"
servers=$(line pid "$told")
for server in $servers; do
    told=$(of_server "$server")
    echo "server.$server=$(line state "$told")"
    echo "share.$server=$(line share "$told")"
    echo "memory.$server=$(line limit "$told")"
    echo "uid.$server=$(owner "$server")"
    test -n "$3" || continue
    for client in $(line pid "$told"); do
        echo "client.$client=$({ tr '\\0' ' ' <"/proc/$client/cmdline"; } 2>/dev/null || true)"
    done
done
if test -r "$notes/proof" && read -r proven <"$notes/proof" && test "$proven" = "$(stamp "$servers"):$1"; then
    echo "proof=current"
    sed -n '2,$s/^\\([^:]*\\): /proven.\\1=/p' "$notes/proof"
fi
"""
)
"""Arguments: key of the containers, GPU that was chosen, whether to list clients."""

# Two runs at once would each take the other's daemon, half started, for one that does not answer.
# The lock names its holder by PID and start, since PIDs begin anew with the container; one that
# died is passed over by whoever makes the token with its name, so that nobody removes the lock of a
# living one.
_ENDING = """
lock=$notes/lock
began() { cut -d ' ' -f 22 "/proc/$1/stat" 2>/dev/null || true; }
release() { rm -f "$lock"; rmdir "$notes" 2>/dev/null || true; }
alone() {
    waited=0
    until mkdir -p "$notes" 2>/dev/null && ln -s "$$:$(began "$$")" "$lock" 2>/dev/null; do
        test -w "$notes" || test -w "$R/run" || { echo "user $(id -u) of the container may not write to ${notes#"$R"}"; exit 1; }
        holder=$(readlink "$lock" || true)
        if test -n "$holder" && test "$(began "${holder%:*}")" != "${holder#*:}" && ln -s "$$" "$lock.$holder" 2>/dev/null; then
            test "$(readlink "$lock" || true)" != "$holder" || rm -f "$lock"
            rm -f "$lock.$holder"
            continue
        fi
        test "$waited" -lt 600 || { echo "another mps.enable or mps.disable is under way: process ${holder%:*}"; exit 1; }
        waited=$((waited + 1))
        sleep 0.2
    done
    trap release EXIT
    trap 'exit 143' TERM HUP INT
}
# What enabling makes is written down before it is made: a run that is cut in between leaves nothing that is taken for somebody else's.
record() {
    test ! -e "$notes/made" || return 0
    for path in "$R$CUDA_MPS_PIPE_DIRECTORY" "$R$CUDA_MPS_LOG_DIRECTORY"; do
        test -d "$path" || { echo "$path"; continue; }
        for name in control control_lock control_privileged log nvidia-cuda-mps-control.pid control.log server.log; do
            test -e "$path/$name" || echo "$path/$name"
        done
    done >"$notes/made.$$"
    mv -f "$notes/made.$$" "$notes/made"
}
folders() {
    record
    mkdir -p "$R$CUDA_MPS_PIPE_DIRECTORY" "$R$CUDA_MPS_LOG_DIRECTORY"
}
attached() { clients | cut -d ' ' -f 2 | tr '\\n' ' '; }
commands() {
    for pid in $1; do
        test -z "${more-}" || printf '; '
        more=yes
        printf '%s ' "$pid"
        { tr '\\0\\n' '  ' <"/proc/$pid/cmdline"; } 2>/dev/null | cut -c 1-80 | tr -d '\\n' | sed 's/ *$//' || true
    done
}
drain() {
    waited=0
    while busy=$(attached) && test -n "$busy"; do
        test "$waited" -lt "$1" || return 1
        test "$waited" -gt 0 || echo "waiting up to $1 s for processes to end: $(commands "$busy")"
        waited=$((waited + 1))
        sleep 1
    done
}
end() {
    patience=0
    if answers; then
        patience=50
        echo 'quit -t 10' | timeout 30 nvidia-cuda-mps-control || true
    elif named >/dev/null; then
        echo 'the control daemon speaks MPS v3'
        exit 1
    fi
    tries=0
    while left=$(live) && test -n "$left"; do
        case $((tries - patience)) in
            0) for pid in $left; do kill -TERM "$pid" 2>/dev/null || true; done ;;
            20) for pid in $left; do kill -KILL "$pid" 2>/dev/null || true; done ;;
            60) echo "processes of MPS do not end: $left"; exit 1 ;;
        esac
        tries=$((tries + 1))
        sleep 0.1
    done
}
"""

ENABLE = (
    _PRELUDE
    + _ENDING
    + """
gpu=$1 percentage=$2 memory=$3 cpus=$4 device=$5 patience_s=$6 ready_s=$7
alone
case $device in
    '') ;;
    GPU-*)
        found=$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2>&1 || true)
        printf '%s\\n' "$found" | grep -qxF "$device" || { echo "there is no such GPU: $device ($found)"; exit 1; }
        ;;
    *)
        found=$(nvidia-smi -i "$device" --query-gpu=uuid --format=csv,noheader 2>&1 | head -n 1 || true)
        case $found in GPU-*) device=$found ;; *) echo "there is no such GPU: $device ($found)"; exit 1 ;; esac
        ;;
esac
if test -n "$cpus"; then
    command -v taskset >/dev/null || { echo 'the image has no taskset, which mps.cpus needs'; exit 1; }
    found=$(taskset -c "$cpus" sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status 2>&1 || true)
    test "$found" = "$cpus" || { echo "there are no such CPUs: $cpus ($found)"; exit 1; }
fi
same() { numeric "$1" && test "$(printf '%.1f' "$1")" = "$(printf '%.1f' "$2")"; }
mib() { case $1 in *[!0-9]*[GM] | [GM]) ;; *G) echo "$((${1%G} * 1024))" ;; *M) echo "${1%M}" ;; esac; }
# The tool shows whole gigabytes alone above one.
limited() {
    test -n "$memory" || { case $1 in [0-9]*) return 1 ;; *) return 0 ;; esac; }
    wanted=$(mib "$memory")
    test "$wanted" -lt 1024 || wanted=$((wanted / 1024 * 1024))
    test "$(mib "$1")" = "$wanted"
}
as_planned() {
    pid=$(daemon) || return 1
    test "$(owner "$pid")" = "$(owner self)" || return 1
    told=$(defaults)
    granted=$(printf '%s\\n' "$told" | head -n 1)
    allowed=$(line limit "$told")
    for server in $(line pid "$told"); do
        told=$(of_server "$server")
        test "$(line state "$told")" != FAULT || return 1
        granted=$(line share "$told")
        allowed=$(line limit "$told")
    done
    same "$granted" "$percentage" || return 1
    limited "$allowed" || return 1
    test "$(value "$pid" PROVISION_MPS_MEMORY)" = "$memory" || return 1
    test "$(value "$pid" CUDA_VISIBLE_DEVICES)" = "$device" || return 1
    test "$(affinity "$pid")" = "${cpus:-$(affinity self)}"
}
start() {
    set -- nvidia-cuda-mps-control -d
    test -z "$cpus" || set -- taskset -c "$cpus" "$@"
    if test -n "$device"; then export CUDA_VISIBLE_DEVICES="$device"; else unset CUDA_VISIBLE_DEVICES; fi
    PROVISION_MPS_MEMORY=$memory "$@" </dev/null
}
fails() {
    echo "$1"
    tail -n 5 "$R$CUDA_MPS_LOG_DIRECTORY/control.log" 2>/dev/null || true
    exit 1
}
if ! answers || ! as_planned; then
    if answers; then
        drain "$patience_s" || { echo "processes are still attached after $patience_s s: $(commands "$busy")"; exit 1; }
    fi
    end
    folders
    chmod 0777 "$R$CUDA_MPS_PIPE_DIRECTORY" 2>/dev/null || true
    start
    tries=0
    until answers; do
        test "$tries" -lt 50 || fails "the control daemon does not answer: $(first get_server_list)"
        tries=$((tries + 1))
        sleep 0.2
    done
    ask "set_default_active_thread_percentage $percentage" >/dev/null
    same "$(first get_default_active_thread_percentage)" "$percentage" || fails 'the control daemon refuses the thread percentage'
    if test -n "$memory"; then
        count=1
        test -n "$device" || count=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
        ordinal=0
        while test "$ordinal" -lt "$count"; do
            ask "set_default_device_pinned_mem_limit $ordinal $memory" >/dev/null
            ordinal=$((ordinal + 1))
        done
        numeric "$(first 'get_default_device_pinned_mem_limit 0' | tr -d 'GM')" || fails 'the control daemon refuses the memory limit'
    fi
fi
test -n "$gpu" || exit 0
test -n "$(servers)" || ask "start_server -uid $(id -u)"
tries=0
while :; do
    state=
    for server in $(servers); do state=$(first "get_server_status $server"); done
    test "$state" != ACTIVE || exit 0
    test "$tries" -lt "$((5 * ready_s))" || break
    tries=$((tries + 1))
    sleep 0.2
done
fails "the MPS server is not ACTIVE: ${state:-no server}"
"""
)
"""Arguments: whether there is a GPU, thread percentage, memory limit, CPUs, GPU, seconds that
clients have to end and a server to begin.

The order is that of facts: directories, daemon, defaults (they hold for the next server alone),
server, ACTIVE. A daemon that is not as planned, belongs to another user (it could not start a
server of ours), or whose server is in FAULT, is ended once its clients have left; so is one that
does not answer.
"""

NOTE = (
    _PRELUDE
    + _ENDING
    + """
said=$(cat)
alone
served=$(stamp)
test -n "$served" || exit 0
{
    echo "$served:$1"
    test -z "$said" || printf '%s\\n' "$said"
} >"$notes/proof.$$"
mv -f "$notes/proof.$$" "$notes/proof"
"""
)
"""Argument: key of the containers. Standard input: what their clients said.

Nothing is noted where another run has ended the server meanwhile."""

DISABLE = (
    _PRELUDE
    + _ENDING
    + """
force=$1 patience_s=$2
alone
if answers; then
    if test -n "$force"; then
        clients | while read -r server client; do echo "terminating $client: $(first "terminate_client $server $client")"; done
    elif ! drain "$patience_s"; then
        echo "processes are still attached after $patience_s s: $(commands "$busy")"
        exit 1
    fi
fi
end
"""
)
"""Arguments: whether to end clients that run, seconds that they have to end by themselves."""

OPEN = (
    _PRELUDE
    + _ENDING
    + """
alone
folders
chmod 0777 "$notes" "$R$CUDA_MPS_PIPE_DIRECTORY"
if grep -qxF "$R$CUDA_MPS_LOG_DIRECTORY" "$notes/made" || test -z "$(ls -A "$R$CUDA_MPS_LOG_DIRECTORY")"; then
    chmod 0777 "$R$CUDA_MPS_LOG_DIRECTORY"
fi
"""
)
"""As root, for a container whose user is another one: `/run` and new volumes are root's. The daemon
is to have the user of the programs, since a server serves one user id."""

CLEAN = (
    _PRELUDE
    + _ENDING
    + """
alone
! answers || exit 0
if test -r "$notes/made"; then while IFS= read -r path; do rm -rf "$path"; done <"$notes/made"; fi
for path in "$notes"/*; do test "$path" = "$lock" || rm -f "$path"; done
"""
)
"""As root, once no daemon is left: what enabling made is gone."""

PROVE = """
unset CUDA_VISIBLE_DEVICES
for python in python3 python; do
    command -v "$python" >/dev/null 2>&1 || continue
    timeout -k 2 30 "$python" -c "$1" prove
    case $? in 124 | 137) echo 'failed: CUDA gave no answer within 30 s; does a server of another user hold the GPU?' ;; esac
    exit 0
done
echo 'unproven: the image has no Python to try it with'
"""
"""Argument: `CLIENT` of provision.mps.daemon.client. Runs in a worker container, as any program of
it does."""
