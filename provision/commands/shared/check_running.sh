# shellcheck shell=sh
# Ends with status 0 where the container `name` runs.
: "${name:?}"

is_running "$name"
