# shellcheck shell=sh disable=SC2154
# print_state CONTAINER…: prints the record of each that exists, then what it would be made from
# now; nothing where there is none. Reads $image and $joins. Uses container_records, driver_stamp.
print_state() {
    records=$(container_records "$@")
    test -n "$records" || return 0
    echo "$records"
    echo "image=$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null)"
    echo "driver=$(driver_stamp)"
    test -z "$joins" || echo "owner=$(docker container inspect -f '{{.Id}}' "$joins" 2>/dev/null)"
}
