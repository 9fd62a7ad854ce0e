# shellcheck shell=sh
# Runs on the host: a shell in the container `name`, on a terminal where standard input is one. Exit
# status 125 where the container does not run. body: the command in the container.
: "${name:?}" "${dir:?}" "${body:?}" "${hidden?}"

is_running "$name" || exit 125
if test -t 0; then set -- --tty; fi
prepare_program
exec docker exec --interactive "$@" ${hidden:+--env "$hidden"} --workdir "$dir" "$name" sh -c "$body"
