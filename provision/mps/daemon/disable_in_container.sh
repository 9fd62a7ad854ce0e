# shellcheck shell=sh disable=SC2154
# Ends daemon and server in this container, once the clients have ended.
#
# Reads $busy of drain_clients. force: let MPS terminate the clients instead of waiting for them. drain_s: seconds to wait.
force=$1 drain_s=$2

take_lock
if daemon_answers; then
    if test -n "$force"; then
        clients | while read -r server client; do
            echo "terminating $client: $(ask_one "terminate_client $server $client")"
        done
    elif ! drain_clients "$drain_s"; then
        echo "processes are still attached after $drain_s s: $(describe_processes "$busy")"
        exit 1
    fi
fi
stop_daemon
