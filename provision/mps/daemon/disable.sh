# shellcheck shell=sh
# Ends MPS in the container $name and removes what enabling created.
#
# image: ends nothing before this image is on the host; empty for no condition. force, drain_s: as
# disable_in_container.sh has them. open_directories, body, remove_created: scripts for the container.
: "${name:?}" "${image?}" "${force?}" "${drain_s:?}" "${open_directories:?}" "${body:?}"
: "${remove_created:?}"

test -z "$image" || docker image inspect "$image" >/dev/null
runs_as_root "$name" || docker exec --user 0 "$name" sh -eu -c "$open_directories"
docker exec "$name" sh -eu -c "$body" provision "$force" "$drain_s"
docker exec --user 0 "$name" sh -eu -c "$remove_created"
