# shellcheck shell=sh
# Prints the state of container $name. Uses print_state.
: "${name:?}" "${image?}" "${folder?}" "${joins?}"
print_state "$name"
