# shellcheck shell=sh
# The functions of a job: `run` runs one section of it, `finish` prints its last mark.
# Uses end_group.
#
# Every section is a process group of its own, so that what it leaves behind when its time is up is
# ended too: `timeout` of busybox ends one process alone, GNU's is content when its child has ended.
# GNU's makes the group itself. A leader that writes into a closed connection ends by SIGPIPE (141)
# and leaves its group to this shell. A single quote costs 13 bytes here, for the text of a job is
# quoted three times.
: "${nonce:?}" "${grace_s:?}"
halted= running=
case $(timeout --version 2>/dev/null) in *GNU*) group= ;; *) group=setsid ;; esac

on_signal() {
    trap "" TERM HUP INT
    test -z "$running" || end_group "$!"
    exit 143
}
trap on_signal TERM HUP INT

finish() { printf "%s done\n" "$nonce"; }

# run KEY TIMEOUT GATE MERGE BODY STDIN: GATE, MERGE and STDIN are flags, empty for no.
# A gate is skipped once a gate has failed. MERGE sends standard error where standard output goes.
# STDIN hands the body over on standard input, for it is too long or too secret for an argument.
run() {
    test -z "$3" || test -z "$halted" || return 0
    printf "%s begin %s\n" "$nonce" "$1"
    if test -n "$4"; then exec 4>&1; else exec 4>&2; fi
    running=1
    if test -n "$6"; then
        printf %s "$5" | $group timeout -k "$grace_s" "$2" sh -s 2>&4 4>&- &
    else
        $group timeout -k "$grace_s" "$2" sh -c "$5" </dev/null 2>&4 4>&- &
    fi
    wait "$!"
    status=$?
    case $status in 124 | 137 | 141 | 143) end_group "$!" ;; esac
    running=
    test -z "$3" || test "$status" = 0 || halted=1
    printf "%s end %s %s\n" "$nonce" "$1" "$status"
}
