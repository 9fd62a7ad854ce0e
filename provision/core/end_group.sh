# shellcheck shell=sh disable=SC2154
# end_group LEADER: asks a process group to end and kills what is left of it after $grace_s
# seconds. Reads $grace_s.
#
# A leader that was started a moment ago has no group yet, and the signal may reach it before it
# runs its own program. So it is asked again until the group exists.
end_group() {
    i=0
    until kill -TERM -"$1"; do
        kill -TERM "$1" && test "$i" -lt "$grace_s" || return 0
        sleep 1
        i=$((i + 1))
    done
    while test "$i" -lt "$grace_s" && kill -0 -"$1"; do
        sleep 1
        i=$((i + 1))
    done
    kill -KILL -"$1"
} 2>/dev/null
