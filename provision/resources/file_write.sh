# shellcheck shell=sh
# Writes $data (base64 of $size bytes) to file $path with permissions $mode.
# Uses stage_file.
: "${path:?}" "${data?}" "${size:?}" "${mode:?}"
if test -d "$path"; then
    echo "the path is a directory, a file is wanted"
    exit 1
fi
new=$path.provision.$$
stage_file "$new" "$mode" "$data"
test "$(wc -c <"$new")" -eq "$size"
mv -f "$new" "$path"
