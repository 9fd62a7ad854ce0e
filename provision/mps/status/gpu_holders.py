"""Who holds the GPU open, as a piece of shell for a host. Pure.

A CUDA process holds /dev/nvidia-uvm open, attached to MPS or not, and tools that only ask the
driver do not (measured: docs/facts.md). Of other users' processes only root sees it.
"""

from __future__ import annotations

HOLDERS = """
# shellcheck disable=SC2012 # one process for all of /proc; names of descriptors are numbers
ls -l /proc/[0-9]*/fd 2>/dev/null | awk -v root="$1" '
    /^\\/proc\\// { split($0, part, "/"); pid = part[3] }
    index($0, " -> " root "/") && /\\/dev\\/nvidia-uvm$/ { print pid }' | sort -u
"""
"""Prints their PIDs. Argument: the root folder of the host, empty on a real one."""
