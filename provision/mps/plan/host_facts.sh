# shellcheck shell=sh
# Prints what a plan needs to know of the host and of the container `name`, as key=value lines;
# nothing where the container is stopped. body: text of container_facts.sh; query, client, gpu: its
# arguments.
: "${name:?}" "${body:?}" "${query:?}" "${client:?}" "${gpu?}"

is_running "$name" || exit 0
echo "running=true"
echo "mock=${R:+yes}"
docker exec -i "$name" sh -c "$body" provision "$query" "$client" "$gpu" </dev/null 2>/dev/null
