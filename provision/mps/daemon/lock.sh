# shellcheck shell=sh disable=SC2154
# Functions: one enable or disable at a time in a container, and a record of what enabling creates.
# They read $R, $notes and the directories of MPS.
#
# Two runs at once would each take the other's half-started daemon for one that does not answer. The
# lock names its holder by PID and start time, since PIDs begin anew with the container. A lock whose
# holder has died is removed by the run that creates the token with the holder's name, so that no
# run removes the lock of a live one.
lock=$notes/lock

start_time_of() { cut -d ' ' -f 22 "/proc/$1/stat" 2>/dev/null || true; }
release_lock() {
    rm -f "$lock"
    rmdir "$notes" 2>/dev/null || true
}
take_lock() {
    tries=0
    until mkdir -p "$notes" 2>/dev/null && ln -s "$$:$(start_time_of "$$")" "$lock" 2>/dev/null; do
        test -w "$notes" || test -w "$R/run" || {
            echo "user $(id -u) of the container may not write to ${notes#"$R"}"
            exit 1
        }
        holder=$(readlink "$lock" || true)
        if test -n "$holder" && test "$(start_time_of "${holder%:*}")" != "${holder#*:}" &&
            ln -s "$$" "$lock.$holder" 2>/dev/null; then
            test "$(readlink "$lock" || true)" != "$holder" || rm -f "$lock"
            rm -f "$lock.$holder"
            continue
        fi
        test "$tries" -lt 600 || {
            echo "another mps.enable or mps.disable is under way: process ${holder%:*}"
            exit 1
        }
        tries=$((tries + 1))
        sleep 0.2
    done
    trap release_lock EXIT
    trap 'exit 143' TERM HUP INT
}
# The record is written before anything is created: what an interrupted run leaves behind is not
# taken for a folder that was there before.
record_paths() {
    test ! -e "$notes/made" || return 0
    for path in "$R$CUDA_MPS_PIPE_DIRECTORY" "$R$CUDA_MPS_LOG_DIRECTORY"; do
        test -d "$path" || {
            echo "$path"
            continue
        }
        for file in control control_lock control_privileged log nvidia-cuda-mps-control.pid \
            control.log server.log; do
            test -e "$path/$file" || echo "$path/$file"
        done
    done >"$notes/made.$$"
    mv -f "$notes/made.$$" "$notes/made"
}
create_directories() {
    record_paths
    mkdir -p "$R$CUDA_MPS_PIPE_DIRECTORY" "$R$CUDA_MPS_LOG_DIRECTORY"
}
