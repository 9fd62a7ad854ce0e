# shellcheck shell=sh
# Ends with 0 where a daemon runs. It is not asked: a question takes longer, and fills its log.
daemon_pid >/dev/null
