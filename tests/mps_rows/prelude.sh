# shellcheck shell=sh disable=SC2154
# What the rows are written in. $R is the root of the host, empty on a real one; $PYTHON, $CLIENT, $UNREAPED and $OTHER are the place's.
P=$R$CUDA_MPS_PIPE_DIRECTORY
L=$R$CUDA_MPS_LOG_DIRECTORY
# say LINE…: feeds the control tool and prints its exit status in brackets; other LINE…: the same as user 1000
say() { printf '%s\n' "$@" | nvidia-cuda-mps-control 2>&1; echo "[$?]"; }
other() { printf '%s\n' "$@" | $OTHER nvidia-cuda-mps-control 2>&1; echo "[$?]"; }
ask() { echo "$1" | nvidia-cuda-mps-control 2>/dev/null; }
# until_so SECONDS COMMAND…: waits until it is so
until_so() {
    tries=$(($1 * 10))
    shift
    until "$@"; do
        test "$tries" -gt 0 || { echo "never: $*"; return 1; }
        tries=$((tries - 1))
        sleep 0.1
    done
}
answers() { echo get_server_list | nvidia-cuda-mps-control >/dev/null 2>&1; }
gone() { ! answers; }
pid() { cat "$P/nvidia-cuda-mps-control.pid"; }
# start [FLAG…]: a daemon that answers
start() { nvidia-cuda-mps-control -d "$@" >/dev/null 2>&1; until_so 10 answers; }
# kill_daemon: SIGKILL, until no daemon answers
kill_daemon() { kill -KILL "$(pid)"; until_so 10 gone; }
is_active() {
    SERVER=$(ask get_server_list | tail -n 1)
    test "$(ask "get_server_status $SERVER")" = ACTIVE
}
# server [UID]: one that is ACTIVE; its PID is $SERVER
server() { ask "start_server -uid ${1:-$(id -u)}"; until_so 20 is_active; }
lives() { { read -r _ _ state _ <"/proc/$1/stat"; } 2>/dev/null && test "$state" != Z; }
dead() { ! lives "$1"; }
# client NAME WORDS…: a CUDA program in the background, by tests/gpu/client.py; its PID is $NAME, its words are in $P.NAME
client() {
    name=$1
    shift
    : >"$P.$name"
    $AS "$PYTHON" "$CLIENT" "$@" >"$P.$name" 2>&1 &
    eval "$name=$!"
}
# sees: the multiprocessors that a new client may use, else its error
sees() { $AS "$PYTHON" "$CLIENT" sms 2>&1 | tail -n 1; }
has_said() { grep -q "$2" "$P.$1"; }
ready() { for name in "$@"; do until_so 30 has_said "$name" ready; done; }
# ended NAME…: waits, and prints the last line and the exit status of each
ended() {
    for name in "$@"; do
        eval "wait \$$name" 2>/dev/null && status=0 || status=$?
        tail -n 1 "$P.$name"
        echo "[$status]"
    done
}
lists() { for each in $(ask get_server_list); do ask "get_client_list $each"; done | grep -qx "$1"; }
# where NAME…: whether a server lists it
where() { for name in "$@"; do eval "lists \$$name" && echo attached || echo outside; done; }
leave() {
    {
        for file in "$P".*; do
            name=${file##*.}
            eval "kill -TERM \$$name"
        done
        wait
        test ! -e "$P/nvidia-cuda-mps-control.pid" || echo 'quit -t 1' | nvidia-cuda-mps-control
        test ! -e "$P/nvidia-cuda-mps-control.pid" || kill -KILL "$(pid)"
        rm -rf "$P" "$L" "$P".*
    } >/dev/null 2>&1
    true
}
AS=
