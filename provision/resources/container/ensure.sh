# shellcheck shell=sh
# Makes container $name run. "$@" are the options of `docker run`.
# Uses inspect_image, start_or_create.
: "${name:?}" "${image:?}" "${spec:?}" "${devices?}" "${folder?}" "${joins?}"
inspect_image
start_or_create "$name" "$@"
