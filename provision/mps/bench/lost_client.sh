# shellcheck shell=sh
# Writes the end of a client whose container did not start it or whose shell was killed, so that
# cell.sh does not wait for it. Does nothing where the client has written its end itself.
folder=$1 number=$2 status=$3 output=$4

test -d "$folder" && ! test -e "$folder/end.$number" || exit 0
echo "$output" >>"$folder/out.$number"
echo "client $number 0 0 $status" >"$folder/new-end.$number"
mv "$folder/new-end.$number" "$folder/end.$number"
