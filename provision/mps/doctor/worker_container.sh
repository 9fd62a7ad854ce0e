# shellcheck shell=sh
# Prints the state of the worker container $name, of the driver's folder on the host, and what
# inside_container.sh finds. daemon: the daemon's container where that is another one. watched:
# names of variables.
: "${name:?}" "${daemon?}" "${driver:?}" "${watched:?}" "${body:?}"

echo "running=$(docker container inspect -f '{{.State.Running}}' "$name" 2>/dev/null || true)"
echo "pid_mode=$(docker container inspect -f '{{.HostConfig.PidMode}}' "$name" 2>/dev/null || true)"
test -z "$daemon" || {
    echo "daemon_container=$daemon"
    echo "daemon_running=$(docker container inspect -f '{{.State.Running}}' "$daemon" 2>/dev/null || true)"
}
module=$(loaded_driver)
test -z "$module" || echo "module=$module"
echo "mount=$(findmnt -n -o OPTIONS -T "$driver" 2>/dev/null | tail -n 1)"
docker exec "$name" sh -c "$body" provision "$watched" 2>/dev/null || true
