# shellcheck shell=sh
# The worker containers that run. Uses sibling_containers.

# worker_containers NAME: prints NAME and the names of its running siblings, one a line, sorted.
worker_containers() {
    echo "$1"
    sibling_containers "$1" | sort
}

# containers_key NAMES: prints a number that changes when one of the containers is made or started.
containers_key() {
    printf '%s\n' "$1" | xargs docker container inspect -f '{{.Id}}{{.State.StartedAt}}' 2>/dev/null |
        cksum | tr -d ' \n'
}
