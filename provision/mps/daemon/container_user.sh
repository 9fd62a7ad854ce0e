# shellcheck shell=sh
# A function for a host: true where root is the user of the container $1. Another user, which an
# image may have, cannot create folders in /run.
runs_as_root() {
    docker container inspect -f '{{.Config.User}}' "$1" | grep -qxE '(0|root)?(:.*)?'
}
