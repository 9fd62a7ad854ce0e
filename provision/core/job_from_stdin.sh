# shellcheck shell=sh
# Runs a job whose text is the first bytes of standard input, as long as the connection holds.
# Uses end_group and hold.
: "${size:?}" "${grace_s:?}"
exec 3<&0 </dev/null
job=$(head -c "$size" <&3)
printf "%s\n" "$job" | setsid sh -s 3<&- &
hold "$!"
