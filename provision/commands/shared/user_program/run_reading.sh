# shellcheck shell=sh
# As run.sh, for a program that reads the standard input of this script. watch.sh ends the program.
: "${name:?}" "${token:?}" "${dir:?}" "${hidden?}"

is_running "$name" || { echo "$token not-running" >&2; exit 125; }
prepare_program
exec docker exec --interactive ${hidden:+--env "$hidden"} --env "PROVISION_RUN=$token" --workdir "$dir" "$name" "$@"
