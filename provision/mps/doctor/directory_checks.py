"""Checks of the pipe directory and the log directory. Pure."""

from __future__ import annotations

import re

from provision.mps.doctor.evidence import Evidence
from provision.mps.doctor.finding import Finding, fail, ok, warn

MAX_PIPE_BYTES = 88
"""A Unix socket's path holds 107 bytes, and MPS appends `/control_privileged`."""
REMOTE = ("nfs", "cifs", "smb2", "fuseblk", "9p", "v9fs", "lustre", "gpfs")
"""File systems that hold no Unix sockets, by the beginning of their names."""
_CLOSED = re.compile(r"[0-7]{2,3}[0246]")
"""A mode that lets other users not pass a folder."""

_ANOTHER_PIPE = "set provision.mps.pipe_dir: /run/mps/pipe, then invoke dev.up"
_RESTART = "invoke mps.disable, then invoke mps.enable"


def pipe_directory(evidence: Evidence) -> Finding:
    """The pipe directory is set, absolute, short enough, local, and open to every user."""
    path, file_system = evidence.value("pipe"), evidence.value("pipe_type")
    if not path:
        return fail(
            "CUDA_MPS_PIPE_DIRECTORY is not set in the container",
            "every CUDA program looks at the default, /tmp/nvidia-mps, those of others included",
            "invoke dev.up",
        )
    size = len(path.encode())
    if not path.startswith("/") or size > MAX_PIPE_BYTES:
        return fail(
            f"{path} cannot hold the daemon's sockets",
            f"a socket's path holds 107 bytes; this directory has {size}, {MAX_PIPE_BYTES} are"
            " possible",
            _ANOTHER_PIPE,
        )
    if file_system.lower().startswith(REMOTE):
        return fail(
            f"{path} is not local",
            f"it lies on {file_system}; sockets need a local file system",
            _ANOTHER_PIPE,
        )
    modes = evidence.directory_modes
    closed = [folder for folder, mode in modes.items() if _CLOSED.fullmatch(mode)]
    if closed:
        return fail(
            f"other users may not pass {', '.join(closed)}",
            "the server is started as the worker's user and has to pass every parent",
            f"chmod 0755 {' '.join(closed)}   (in the container)",
        )
    return ok(path if modes else f"{path}, created when MPS is enabled")


def log_directory(evidence: Evidence) -> Finding:
    """The log directory exists and is writable; otherwise no failure leaves evidence."""
    path, runs = evidence.value("log"), evidence.status.daemon
    if not path:
        return warn(
            "CUDA_MPS_LOG_DIRECTORY is not set in the container",
            "the daemon writes to /var/log/nvidia-mps then",
            "invoke dev.up",
        )
    if not evidence.value("log_dir"):
        if runs:
            return warn(f"there is no {path}", "the daemon runs without logs", _RESTART)
        return ok(f"{path}, created when MPS is enabled")
    if not evidence.value("log_writable"):
        return warn(f"{path} cannot be written", "the daemon runs without logs", _RESTART)
    if runs and not evidence.value("control_log"):
        return warn(
            f"there is no {path}/control.log",
            "a daemon in the foreground (-f) logs to its terminal",
            _RESTART,
        )
    return ok(path)
