# shellcheck shell=sh disable=SC2154
# A function for a host: PIDs of the processes that hold a GPU open. It reads $R.
#
# A CUDA process holds /dev/nvidia-uvm open, attached to MPS or not; tools that only ask the driver
# do not (measured: docs/facts.md). Processes of other users are visible to root alone. One `ls`
# reads all of /proc.
open_files() { ls -l /proc/[0-9]*/fd 2>/dev/null; }
gpu_holders() {
    open_files | awk -v root="$R" '
        /^\/proc\// { split($0, part, "/"); pid = part[3] }
        index($0, " -> " root "/") && /\/dev\/nvidia-uvm$/ { print pid }' | sort -u
}
