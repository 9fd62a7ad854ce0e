# shellcheck shell=sh
# Reads an archive of the project's files on standard input and puts them into the container.
#
# The workspace is a volume, so `docker cp` unpacks the archive whether or not the image has tar.
# The files belong to root, so root places them, whichever user the image has.
# Where the host has `flock`, one archive is received at a time. Each has a staging folder of its
# own, so that two never read each other's lists.
: "${name:?}" "${dir:?}" "${stage:?}" "${place:?}" "${lock:?}"
if command -v flock >/dev/null 2>&1 && (: >>"$lock") 2>/dev/null; then
    exec 9>>"$lock"
    flock 9
fi
docker cp - "$name:$dir" 9>&-
docker exec --user 0 --workdir "$dir" "$name" sh -c "$place" provision "$stage" 9>&-
