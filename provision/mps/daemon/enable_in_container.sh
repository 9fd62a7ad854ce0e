# shellcheck shell=sh disable=SC2154
# Starts daemon and server in this container as planned, unless they run so already.
#
# has_gpu: empty where the host has no GPU, so no server starts. percentage, memory, cpus, device:
# the plan, empty for none. drain_s: seconds for clients to end. ready_s: seconds for a server to
# be ACTIVE. Order: folders, daemon, defaults (they hold for the next server alone), server.
# A daemon is restarted, once its clients have ended, when it does not answer, is not as planned,
# belongs to another user (it cannot start a server for this user), or has a server in FAULT. Reads $busy
# of drain_clients.
has_gpu=$1 percentage=$2 memory=$3 cpus=$4 device=$5 drain_s=$6 ready_s=$7

# The GPU as a UUID: an index may mean another GPU once the daemon has remapped them.
resolve_device() {
    case $device in
        '') return 0 ;;
        GPU-*)
            listed=$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2>&1 || true)
            if printf '%s\n' "$listed" | grep -qxF "$device"; then return 0; fi
            ;;
        *)
            listed=$(nvidia-smi -i "$device" --query-gpu=uuid --format=csv,noheader 2>&1 | head -n 1 || true)
            case $listed in GPU-*) device=$listed && return 0 ;; esac
            ;;
    esac
    echo "there is no such GPU: $device ($listed)"
    exit 1
}
check_cpus() {
    test -n "$cpus" || return 0
    command -v taskset >/dev/null || {
        echo 'the image has no taskset, which mps.cpus needs'
        exit 1
    }
    pinned=$(taskset -c "$cpus" sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status 2>&1 || true)
    test "$pinned" = "$cpus" || {
        echo "there are no such CPUs: $cpus ($pinned)"
        exit 1
    }
}
same_percentage() { is_number "$1" && test "$(printf '%.1f' "$1")" = "$(printf '%.1f' "$2")"; }
mebibytes() {
    case $1 in
        *[!0-9]*[GM] | [GM]) ;;
        *G) echo "$((${1%G} * 1024))" ;;
        *M) echo "${1%M}" ;;
    esac
}
# The tool shows limits of a gigabyte and more in whole gigabytes.
same_memory_limit() {
    test -n "$memory" || {
        case $1 in [0-9]*) return 1 ;; *) return 0 ;; esac
    }
    wanted=$(mebibytes "$memory")
    test "$wanted" -lt 1024 || wanted=$((wanted / 1024 * 1024))
    test "$(mebibytes "$1")" = "$wanted"
}
is_as_planned() {
    pid=$(daemon_pid) || return 1
    test "$(uid_of "$pid")" = "$(uid_of self)" || return 1
    answer=$(ask_defaults)
    share=$(printf '%s\n' "$answer" | head -n 1)
    limit=$(lines_of limit "$answer")
    for server in $(lines_of pid "$answer"); do
        answer=$(ask_server "$server")
        test "$(lines_of state "$answer")" != FAULT || return 1
        share=$(lines_of share "$answer")
        limit=$(lines_of limit "$answer")
    done
    same_percentage "$share" "$percentage" || return 1
    same_memory_limit "$limit" || return 1
    test "$(variable_of "$pid" PROVISION_MPS_MEMORY)" = "$memory" || return 1
    test "$(variable_of "$pid" CUDA_VISIBLE_DEVICES)" = "$device" || return 1
    test "$(affinity_of "$pid")" = "${cpus:-$(affinity_of self)}"
}
give_up() {
    echo "$1"
    tail -n 5 "$R$CUDA_MPS_LOG_DIRECTORY/control.log" 2>/dev/null || true
    exit 1
}
start_daemon() {
    set -- nvidia-cuda-mps-control -d
    test -z "$cpus" || set -- taskset -c "$cpus" "$@"
    if test -n "$device"; then
        export CUDA_VISIBLE_DEVICES="$device"
    else
        unset CUDA_VISIBLE_DEVICES
    fi
    PROVISION_MPS_MEMORY=$memory "$@" </dev/null
    tries=0
    until daemon_answers; do
        test "$tries" -lt 50 || give_up "the control daemon does not answer: $(ask_one get_server_list)"
        tries=$((tries + 1))
        sleep 0.2
    done
}
set_defaults() {
    ask "set_default_active_thread_percentage $percentage" >/dev/null
    same_percentage "$(ask_one get_default_active_thread_percentage)" "$percentage" ||
        give_up 'the control daemon refuses the thread percentage'
    test -n "$memory" || return 0
    count=1
    test -n "$device" || count=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
    ordinal=0
    while test "$ordinal" -lt "$count"; do
        ask "set_default_device_pinned_mem_limit $ordinal $memory" >/dev/null
        ordinal=$((ordinal + 1))
    done
    is_number "$(ask_one 'get_default_device_pinned_mem_limit 0' | tr -d 'GM')" ||
        give_up 'the control daemon refuses the memory limit'
}
start_server() {
    test -n "$(servers)" || ask "start_server -uid $(id -u)"
    tries=0
    while :; do
        state=
        for server in $(servers); do state=$(ask_one "get_server_status $server"); done
        test "$state" != ACTIVE || return 0
        test "$tries" -lt "$((5 * ready_s))" || break
        tries=$((tries + 1))
        sleep 0.2
    done
    give_up "the MPS server is not ACTIVE: ${state:-no server}"
}

take_lock
resolve_device
check_cpus
if ! daemon_answers || ! is_as_planned; then
    if daemon_answers; then
        drain_clients "$drain_s" || {
            echo "processes are still attached after $drain_s s: $(describe_processes "$busy")"
            exit 1
        }
    fi
    stop_daemon
    create_directories
    chmod 0777 "$R$CUDA_MPS_PIPE_DIRECTORY" 2>/dev/null || true
    start_daemon
    set_defaults
fi
test -z "$has_gpu" || start_server
