# shellcheck shell=sh
# hold LEADER: waits for a process group and exits with the status of its leader.
# Uses end_group.
#
# Descriptor 3 is the channel's standard input. It ends when the connection does, and the group is
# ended with it: OpenSSH without a terminal would let it run on. `read` is a builtin, so no process
# of this function keeps the channel open.
hold() {
    lost=
    trap lost=1 TERM HUP INT
    { while read -r _ <&3; do :; done; kill -TERM $$; } >/dev/null 2>&1 &
    watcher=$!
    exec 3<&-
    wait "$1"
    status=$?
    test -z "$lost" && test "$status" -ne 141 || end_group "$1"
    kill -KILL "$watcher" 2>/dev/null
    exit "$status"
}
