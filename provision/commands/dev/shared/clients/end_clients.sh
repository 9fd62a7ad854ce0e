# shellcheck shell=sh disable=SC2154
# They read $name, $dir, $token and $end.

# end_clients CONTAINERS: ends the clients of a run in its containers, and removes their barrier.
end_clients() {
    for container in $1; do docker exec "$container" sh -c "$end" provision "$token" & done
    wait
    remove_barrier
}
# remove_barrier: removes the folder in which the clients wait for one another.
remove_barrier() {
    docker exec "$name" sh -c 'rm -rf "${PROVISION_MOCK_ROOT-}$1"' provision "$dir/.provision-$token"
}
