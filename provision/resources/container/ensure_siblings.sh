# shellcheck shell=sh
# Makes workers 2 to $count of worker container $name run, and removes those beyond.
# "$@" are the options of `docker run`.
# Uses sibling_containers, inspect_image, start_or_create.
: "${name:?}" "${count:?}" "${image?}" "${spec:?}" "${devices?}" "${folder?}" "${joins?}"
for box in $(sibling_containers "$name" --all); do
    number=${box#"$name-"}
    case $number in '' | *[!0-9]*) continue ;; esac
    test "$number" -le "$count" || docker rm --force "$box"
done
test "$count" -gt 1 || exit 0
inspect_image
number=2
while test "$number" -le "$count"; do
    start_or_create "$name-$number" --label "provision.sibling=$name" "$@"
    number=$((number + 1))
done
