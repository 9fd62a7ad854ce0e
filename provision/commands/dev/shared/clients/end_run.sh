# shellcheck shell=sh
# Runs on the host: ends the clients of a run that was interrupted.
: "${name:?}" "${token:?}" "${dir:?}" "${end:?}"

end_clients "$(worker_containers "$name")"
