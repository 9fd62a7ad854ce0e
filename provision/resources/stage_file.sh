# shellcheck shell=sh
# stage_file NEW MODE BASE64: writes file NEW, which is called PATH.provision.$$, with permissions
# MODE. `mv -f NEW PATH` then puts it in place, so that a reader never sees half a file and a full
# disk leaves the old one. No other user can read NEW before its permissions are set. NEW is removed
# when the script ends. What a killed run left is removed, too: its name ends with the number of a
# process that no longer runs.
stage_file() {
    test -d "${1%/*}/" || mkdir -p "${1%/*}"
    for old in "${1%.*}".[0-9]*; do
        test ! -e "$old" || kill -0 "${old##*.}" 2>/dev/null || rm -f "$old"
    done
    staged=$1
    trap 'rm -f "$staged"' EXIT
    trap 'exit 143' TERM HUP INT
    (umask 077 && printf '%s' "$3" | base64 -d >"$1")
    chmod "$2" "$1"
}
