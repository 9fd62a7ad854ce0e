# shellcheck shell=sh disable=SC2154
# Records what the probe clients printed (standard input), for the server that runs now and the
# containers of the key $1. Records nothing where no server is left. Reads $notes.
key=$1

answers=$(cat)
take_lock
stamp=$(server_stamp)
test -n "$stamp" || exit 0
{
    echo "$stamp:$key"
    test -z "$answers" || printf '%s\n' "$answers"
} >"$notes/proof.$$"
mv -f "$notes/proof.$$" "$notes/proof"
