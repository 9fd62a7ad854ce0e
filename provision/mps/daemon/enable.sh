# shellcheck shell=sh
# Starts MPS in the container $name and tries a client in every container that uses it.
#
# worker: the first worker container where that is another one. has_gpu, percentage, memory, cpus,
# device, drain_s, ready_s: as enable_in_container.sh has them. open_directories, body, prove,
# record_proof: the scripts for the containers. program: the probe client, in Python.
: "${name:?}" "${worker?}" "${has_gpu?}" "${percentage:?}" "${memory?}" "${cpus?}" "${device?}"
: "${drain_s:?}" "${ready_s:?}" "${open_directories:?}" "${body:?}" "${prove:?}"
: "${record_proof:?}" "${program:?}"

runs_as_root "$name" || docker exec --user 0 "$name" sh -eu -c "$open_directories"
docker exec "$name" sh -eu -c "$body" provision "$has_gpu" "$percentage" "$memory" "$cpus" "$device" "$drain_s" "$ready_s"
test -n "$has_gpu" || exit 0

try_client() {
    answer=$(docker exec "$1" sh -c "$prove" provision "$program" 2>&1) || true
    echo "$1: $(printf '%s\n' "$answer" | tail -n 1)"
}
containers=$name
test -z "$worker" || containers=$(worker_containers "$worker")
answers=$(
    count=0
    for container in $containers; do
        try_client "$container" &
        count=$((count + 1))
        test "$((count % 8))" -ne 0 || wait
    done
    wait
)
printf '%s\n' "$answers"
if printf '%s\n' "$answers" | grep -qvE '^[^:]*: (attached|unproven)'; then
    echo 'the probe client is not attached to the server'
    exit 1
fi
printf '%s\n' "$answers" |
    docker exec -i "$name" sh -eu -c "$record_proof" provision "$(containers_key "$containers")"
