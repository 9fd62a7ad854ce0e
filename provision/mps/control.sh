# shellcheck shell=sh
# Functions for scripts inside the daemon's container: questions to nvidia-cuda-mps-control.
#
# The tool exits 0 for unknown commands, missing servers and refused privileges, so only what it
# prints counts. One session takes several questions. Their answers differ in form, which is how
# they are distinguished: a share has a point, a limit a unit, a PID digits alone, a state capitals.
ask() { printf '%s\n' "$@" | timeout 10 nvidia-cuda-mps-control 2>&1 || true; }
ask_one() { ask "$1" | head -n 1; }
ask_defaults() {
    ask get_default_active_thread_percentage 'get_default_device_pinned_mem_limit 0' get_server_list
}
ask_server() {
    ask "get_server_status $1" "get_active_thread_percentage $1" \
        "get_device_pinned_mem_limit $1 0" "get_client_list $1"
}
# The lines of an answer that have the form of a pid, a limit, a share or a state.
lines_of() {
    case $1 in
        pid) form='[0-9][0-9]*' ;;
        limit) form='[0-9][0-9]*[KMG]' ;;
        share) form='[0-9][0-9]*\.[0-9]*' ;;
        state) form='[A-Z][A-Z]*' ;;
    esac
    printf '%s\n' "$2" | sed -n "/^$form\$/p"
}
is_number() { case $1 in '' | *[!0-9.]*) return 1 ;; esac; }
daemon_answers() { is_number "$(ask get_default_active_thread_percentage)"; }
# A daemon of MPS v3 knows other commands and answers in CSV.
v3_servers() { ask 'server list --format=csv' | sed -n '/^name,uid,pid,status,/,$p' | grep ,; }
servers() { lines_of pid "$(ask get_server_list)"; }
# A line `SERVER CLIENT` for each client.
clients() {
    for server in $(servers); do
        lines_of pid "$(ask "get_client_list $server")" | sed "s/^/$server /"
    done
}
# PID and start time of the last server: what a proof of attachment holds for.
server_stamp() {
    for server in ${1-$(servers)}; do
        echo "$server:$(cut -d ' ' -f 22 "/proc/$server/stat" 2>/dev/null)"
    done | tail -n 1
}
