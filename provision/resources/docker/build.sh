# shellcheck shell=sh
# Builds image $ref from $context (a tar in base64) and labels it with the $digest of the context.
# $config is the folder of Docker's configuration; a host without a credential helper has none, and
# keeps the login that root has there.
#
# Older builds are removed once the new one is there, as each takes gigabytes. Docker refuses to
# remove one that a container uses; layers that the new one shares stay.
: "${config:?}" "${ref:?}" "${context:?}" "${digest:?}"
if test -r "$config/config.json"; then export DOCKER_CONFIG="$config"; fi
printf '%s' "$context" | base64 -d | docker build --tag "$ref" --label "provision.context=$digest" -
docker image ls --format '{{.Repository}}:{{.Tag}}' "${ref%:*}" | while read -r old; do
    test "$old" = "$ref" || ! docker image rm "$old" >/dev/null 2>&1 ||
        echo "removed $old, which no container uses"
done
