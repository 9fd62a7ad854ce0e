# shellcheck shell=sh
# Ends the program of run_reading.sh when the connection ends: this script's input then ends without
# the word `over`. It has a channel of its own, since the program's input may end before the program.
: "${name:?}" "${token:?}" "${end:?}"

trap : TERM HUP INT
echo watching
word=
read -r word || true
# A session of its own: ending this script must not end what ends the program.
test "$word" = over || setsid docker exec "$name" sh -c "$end" provision "$token"
