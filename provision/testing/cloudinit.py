"""The part of cloud-init that Container-Optimized OS applies at every boot: write_files and runcmd."""

from __future__ import annotations

from typing import Protocol


class BootingHost(Protocol):
    """A host that applies user-data."""

    def put(self, path: str, text: str, mode: str = "644") -> None:
        """Write a file."""
        ...

    def run_as_root(self, argv: list[str], *, stdin: bytes = b"", timeout_s: float = 900) -> tuple[int, str]:
        """Run a program."""
        ...


def apply(text: str, host: BootingHost) -> None:
    """Apply user-data to `host`."""
    raise NotImplementedError
