# shellcheck shell=sh
# is_running CONTAINER: true when the container exists and runs.
is_running() {
    test "$(docker container inspect -f '{{.State.Running}}' "$1" 2>/dev/null)" = true
}
