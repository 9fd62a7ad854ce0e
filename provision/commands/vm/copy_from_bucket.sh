# shellcheck shell=sh
# Copies a bucket's path into a folder of this host. COS has toolbox, which contains gsutil and sees
# the host's root below /media/root; other hosts run the Google Cloud CLI's image.
: "${bucket:?}" "${dir:?}" "${plain:?}" "${image:?}"

mkdir -p "$dir"
if command -v toolbox >/dev/null 2>&1; then
    toolbox /google-cloud-sdk/bin/gsutil -m cp -r "$bucket" "/media/root$plain/"
else
    docker run --rm --volume "$dir:$plain" --env HOME=/tmp "$image" gsutil -m cp -r "$bucket" "$plain/"
fi
