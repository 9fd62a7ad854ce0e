# shellcheck shell=sh
# Runs on the host: a program ("$@") `count` times at once, in the worker containers in turn. Every
# stream comes in frames with `mark`, each a piece as it was read, in base64, since a shell can hold
# no NUL. An empty frame ends a stream.
# client: text of client.sh; end: text of end.sh; workers: how many containers there should be, empty
# for one per core; separate: empty where the workers have one container; thread_variables: those to
# be set to each client's share of the cores; more: another variable to set, may be empty.
: "${name:?}" "${token:?}" "${mark:?}" "${count:?}" "${dir:?}" "${client:?}" "${end:?}" "${patience_s:?}"
: "${separate?}" "${workers?}" "${thread_variables?}" "${more?}" "${hidden?}"

is_running "$name" || { echo "$token not-running" >&2; exit 125; }
containers=$(worker_containers "$name")
prepare_program
trap 'end_clients "$containers"; exit 143' TERM HUP INT

# A long write reaches the connection in pieces, so only the holder of the lock writes. The lock is
# a line in a pipe.
lock=$R/tmp/provision-$token
mkfifo -m 600 "$lock" || exit 125
exec 5<>"$lock"
rm -f "$lock"
echo >&5
print_frames() {
    while
        piece=$(dd bs=65536 count=1 2>/dev/null | base64)
        read -r _ <&5
        printf '%s begin %s\n%s\n%s end %s 0\n' "$mark" "$1" "$piece" "$mark" "$1"
        echo >&5
        test -n "$piece"
    do
        # After a small piece more output may gather for a moment: a frame costs three processes.
        test "${#piece}" -gt 5000 || sleep 0.2
    done
}

cores=$(grep -c '^processor' "$R/proc/cpuinfo" 2>/dev/null || nproc)
missing=
number=1
while test -n "$separate" && test "$number" -lt "${workers:-$cores}"; do
    number=$((number + 1))
    printf '%s\n' "$containers" | grep -qxF "$name-$number" || missing="$missing $name-$number"
done
test -z "$missing" || echo "not running:$missing; the programs go to the others (dev.up starts them)" >&2

share=$((cores / count))
test "$share" -ge 1 || share=1
environment=
for variable in $thread_variables; do environment="$environment --env $variable=$share"; done
for variable in $more $hidden; do environment="$environment --env $variable"; done
start_client() {
    container=$1 number=$2
    shift 2
    {
        # shellcheck disable=SC2086 # words without blanks
        docker exec $environment --env "PROVISION_RUN=$token" --workdir "$dir" "$container" sh -c "$client" sh \
            "$mark" "$number" "$count" "$patience_s" "$dir/.provision-$token" "$container" "$@" 2>&3 |
            print_frames "$number.out" >&4 3>&-
    } 3>&1 | print_frames "$number.err"
}
exec 4>&1
number=1
while test "$number" -le "$count"; do
    for container in $containers; do
        test "$number" -le "$count" || break
        start_client "$container" "$number" "$@" &
        number=$((number + 1))
    done
done
wait
remove_barrier
