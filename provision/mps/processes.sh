# shellcheck shell=sh disable=SC2154
# Functions for scripts inside a container: the processes of MPS and their properties. They read $R
# and $pipe.
#
# A process belongs to this daemon when it has the name of an MPS program and this pipe directory in its
# environment. A zombie has no environment and therefore never counts.
uid_of() { sed -n 's/^Uid:[[:space:]]*\([0-9]*\).*/\1/p' "/proc/$1/status" 2>/dev/null || true; }
affinity_of() { sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/status"; }

is_ours() {
    { read -r comm <"/proc/$1/comm"; } 2>/dev/null || return 1
    case $comm in nvidia-cuda-mps*) ;; *) return 1 ;; esac
    environment_of "$1" | grep -qxF "CUDA_MPS_PIPE_DIRECTORY=$pipe" || return 1
    test -z "$R" || environment_of "$1" | grep -qxF "PROVISION_MOCK_ROOT=$R"
}
our_processes() {
    for process in /proc/[0-9]*; do ! is_ours "${process#/proc/}" || echo "${process#/proc/}"; done
}
# The pid file outlives the daemon, so the process of that PID is checked.
daemon_pid() {
    pid=$(cat "$R$pipe/nvidia-cuda-mps-control.pid" 2>/dev/null) || return 1
    is_ours "$pid" && echo "$pid"
}
