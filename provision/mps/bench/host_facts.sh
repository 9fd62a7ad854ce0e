# shellcheck shell=sh
# Prints what a benchmark needs to know of the host and of the container `name`, as key=value lines.
# daemon: the container of the MPS daemon; body: text of container_facts.sh; gpu: its argument.
: "${name:?}" "${daemon:?}" "${body:?}" "${gpu?}"

echo "mock=${PROVISION_MOCK_ROOT:+yes}"
for container in "$name" "$daemon"; do
    ! is_running "$container" || echo "running $container=true"
done
echo "workers=$(worker_containers "$name" | tr '\n' ' ')"
docker exec "$name" sh -c "$body" provision "$gpu" 2>/dev/null || true
