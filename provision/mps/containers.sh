# shellcheck shell=sh disable=SC2154
# Functions for a host: the containers whose programs use one MPS daemon. They read $name, the
# daemon's container, and $worker, the first worker container where that is another one.
worker_containers() {
    test -n "$worker" || { echo "$name"; return; }
    echo "$worker"
    docker ps --filter "label=provision.sibling=$worker" --format '{{.Names}}' | sort
}
# Changes whenever one of the containers $1 is created or started again.
containers_key() {
    printf '%s\n' "$1" | xargs docker container inspect -f '{{.Id}}{{.State.StartedAt}}' 2>/dev/null |
        cksum | tr -d ' \n'
}
