# shellcheck shell=sh
# Runs in a container: one client, behind its own arguments. It waits until all clients are there,
# then runs the program, and marks begin and end on standard error: seconds since 1970 and since the
# start of the machine, and the exit status. A mark may stand anywhere in a line, since the program's
# last line may have no end.
mark=$1 number=$2 count=$3 patience_s=$4 barrier=${PROVISION_MOCK_ROOT-}$5 container=$6
shift 6

all_there() {
    set -- "$barrier"/*
    test "$#" -ge "$count"
}
uptime() {
    read -r up _ </proc/uptime
    echo "$up"
}
mkdir -p "$barrier"
: >"$barrier/$number"
deadline=$(($(date +%s) + patience_s))
until all_there; do
    test "$(date +%s)" -lt "$deadline" || exit 125
    sleep 0.02
done
echo "$mark begin $(date +%s) $(uptime) $container" >&2
status=0
"$@" </dev/null || status=$?
echo "$mark end $(uptime) $status" >&2
exit "$status"
