# shellcheck shell=sh
# Prints the permissions of file $path, and either its text in base64 (a regular file of at most
# $limit bytes) or its digest; with an empty $limit always the digest. Never both: each program that
# is started takes a millisecond on the host.
: "${path:?}" "${limit?}"
test -f "$path" || exit 0
found=$(stat -c '%a %s' "$path")
echo "mode=${found% *}"
if test -n "$limit" && test "${found#* }" -le "$limit" && test ! -L "$path"; then
    echo "content="
    base64 <"$path"
else
    digest=$(sha256sum <"$path")
    echo "sha256=${digest%% *}"
fi
