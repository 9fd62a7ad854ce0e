# shellcheck shell=sh
# Functions: wait for the clients of a daemon to end, and end the daemon.
client_pids() { clients | cut -d ' ' -f 2 | tr '\n' ' '; }
# PID and command of each of the processes $1, for people.
describe_processes() {
    for pid in $1; do
        test -z "${described-}" || printf '; '
        described=yes
        printf '%s ' "$pid"
        { tr '\0\n' '  ' <"/proc/$pid/cmdline"; } 2>/dev/null | cut -c 1-80 | tr -d '\n' |
            sed 's/ *$//' || true
    done
}
# Fails when clients are still attached after $1 seconds; $busy holds their PIDs.
drain_clients() {
    waited=0
    while busy=$(client_pids) && test -n "$busy"; do
        test "$waited" -lt "$1" || return 1
        test "$waited" -gt 0 ||
            echo "waiting up to $1 s for processes to end: $(describe_processes "$busy")"
        waited=$((waited + 1))
        sleep 1
    done
}
# Asks a daemon that answers to quit, then sends SIGTERM and SIGKILL to what is left of MPS.
stop_daemon() {
    patience=0
    if daemon_answers; then
        patience=50
        echo 'quit -t 10' | timeout 30 nvidia-cuda-mps-control || true
    elif v3_servers >/dev/null; then
        echo 'the control daemon speaks MPS v3'
        exit 1
    fi
    tries=0
    while left=$(our_processes) && test -n "$left"; do
        case $((tries - patience)) in
            0) for pid in $left; do kill -TERM "$pid" 2>/dev/null || true; done ;;
            20) for pid in $left; do kill -KILL "$pid" 2>/dev/null || true; done ;;
            60)
                echo "processes of MPS do not end: $left"
                exit 1
                ;;
        esac
        tries=$((tries + 1))
        sleep 0.1
    done
}
