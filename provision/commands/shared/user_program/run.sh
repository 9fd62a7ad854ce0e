# shellcheck shell=sh
# Runs on the host: a program ("$@") in the container `name`, until it ends or this script is ended.
# hidden: a variable that the program does not see, may be empty; end: text of end.sh.
: "${name:?}" "${token:?}" "${dir:?}" "${end:?}" "${hidden?}"

is_running "$name" || { echo "$token not-running" >&2; exit 125; }
prepare_program
trap 'docker exec "$name" sh -c "$end" provision "$token"; exit 143' TERM HUP INT
docker exec ${hidden:+--env "$hidden"} --env "PROVISION_RUN=$token" --workdir "$dir" "$name" "$@" &
wait "$!"
