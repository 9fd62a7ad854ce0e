# shellcheck shell=sh
# Prints the state of all siblings of container $name. Uses sibling_containers, print_state.
: "${name:?}" "${image?}" "${folder?}" "${joins?}"
siblings=$(sibling_containers "$name" --all 2>/dev/null || true)
test -n "$siblings" || exit 0
# shellcheck disable=SC2086 # one word for each container: their names hold no blanks
print_state $siblings
