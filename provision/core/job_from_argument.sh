# shellcheck shell=sh
# Runs a job whose text is an argument, in a session of its own, as long as the connection holds.
# Uses end_group and hold.
: "${job:?}" "${grace_s:?}"
exec 3<&0 </dev/null
setsid sh -c "$job" 3<&- &
hold "$!"
