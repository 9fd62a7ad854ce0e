# shellcheck shell=sh
# Runs on the host: cell.sh in the container `name`, and each client in a container of its own.
# Arguments: the first seven of cell.sh, then the program. cell, client, lost, end: texts of cell.sh,
# client.sh, lost_client.sh and of the script that ends the processes with `token`.
# clients: a word CONTAINER:CORES for each client. The containers share one PID namespace.
: "${name:?}" "${clients:?}" "${dir:?}" "${token:?}" "${cell:?}" "${client:?}" "${lost:?}" "${end:?}"
: "${folder:?}" "${barrier:?}" "${steps:?}" "${threads:?}" "${gpu?}"

is_running "$name" || { echo "the container $name is not running" >&2; exit 1; }
trap 'docker exec "$name" sh -c "$end" provision "$token"; exit 143' TERM HUP INT

start_client() {
    number=$1 container=$2 cores=$3
    shift 3
    output=$(
        docker exec --env "PROVISION_RUN=$token" --env "PROVISION_BENCH=$folder" --workdir "$dir" "$container" \
            sh -c "$client" provision "$number" "$cores" "$folder" "$barrier" "$steps" "$threads" "$gpu" "$@" 2>&1
    ) || docker exec "$name" sh -c "$lost" provision "$folder" "$number" "$?" "$output"
}
start_clients() {
    number=0
    for word in $clients; do
        start_client "$number" "${word%%:*}" "${word#*:}" "$@" &
        number=$((number + 1))
    done
    wait
}
{
    docker exec --env "PROVISION_RUN=$token" --workdir "$dir" "$name" sh -c "$cell" provision "$1" "$2" "$3" "$4" "$5" "$6" "$7" ""
    echo "status $?"
} | {
    shift 7
    status=1
    while IFS= read -r line; do
        case $line in
            start) start_clients "$@" & ;;
            'status '*) status=${line#status } ;;
            *) printf '%s\n' "$line" ;;
        esac
    done
    wait
    exit "$status"
} &
wait "$!"
