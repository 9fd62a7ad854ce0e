"""Faults that a test can set on a mock host, and the counters that it can read."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

STANDIN_FAULTS = frozenset(
    {
        "sudo_password",
        "sudo_denied",
        "mount",
        "toolbox",
        "docker_down",
        "no_credentials",
        "nvidia_smi",
        "installer_docker_timeout",
        "installer_dev_image",
        "installer_no_egress",
        "installer_signature",
        "installer_insmod",
        "installer_verify",
        "installer_lock",
        "installer_fallback",
        "pull_denied",
        "pull_not_found",
        "pull_no_egress",
        "build_fails",
        "mps_daemon_dies",
        "mps_server_fault",
    }
)
"""Faults that the stand-ins simulate; `Faults.set` refuses other names."""


@dataclass
class Faults:
    """The faults of a host: attributes act in the SSH server, `set` in the stand-ins.

    `cut_after_output` and `cut_after_input` drop the connection after so many bytes of commands'
    output or input. They count from when they are set, act once and become None.
    """

    folder: Path
    banner_delay_s: float = 0.0
    refuse_auth: bool = False
    refuse_channels: bool = False
    cut_after_output: int | None = None
    cut_after_input: int | None = None
    login_noise: str = ""
    stderr_flood: int = 0
    disk_full: bool = False

    def set(self, name: str) -> None:
        """Set the fault `name` until `clear`. Raises `ValueError` for an unknown one."""
        self._path(name).touch()

    def clear(self, name: str) -> None:
        """Clear the fault `name`. Raises `ValueError` for an unknown one."""
        self._path(name).unlink(missing_ok=True)

    def reset(self) -> None:
        """Clear every fault."""
        for path in self.folder.iterdir():
            path.unlink()
        fresh = Faults(self.folder)
        self.__dict__.update(fresh.__dict__)

    def _path(self, name: str) -> Path:
        if name not in STANDIN_FAULTS:
            raise ValueError(f"unknown fault {name!r}; known: {', '.join(sorted(STANDIN_FAULTS))}")
        return self.folder / name


@dataclass
class Stats:
    """Counters of a mock host since its start or `reset`. Bytes are of the encrypted stream."""

    connections: int = 0
    auth_attempts: int = 0
    auth_failures: int = 0
    exchanges: int = 0
    shells: int = 0
    sftp_sessions: int = 0
    forwards: int = 0
    refused_channels: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    commands: list[str] = field(default_factory=list)
    """The command line of every exec request, in order."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, name: str, amount: int = 1) -> None:
        """Add `amount` to the counter `name`."""
        with self._lock:
            setattr(self, name, getattr(self, name) + amount)

    def reset(self) -> None:
        """Set all counters to zero."""
        with self._lock:
            for name in _COUNTERS:
                setattr(self, name, 0)
            self.commands.clear()


_COUNTERS = (
    *(
        "connections",
        "auth_attempts",
        "auth_failures",
        "exchanges",
        "shells",
        "sftp_sessions",
        "forwards",
    ),
    *("refused_channels", "bytes_in", "bytes_out"),
)
