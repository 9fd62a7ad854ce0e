"""The hosts behind emulated instances: what boots, halts and destroys them."""

from __future__ import annotations

from typing import Protocol


class HostBackend(Protocol):
    """Boots and ends the hosts of emulated instances.

    The emulator calls it from its request threads, one call at a time. An exception from `boot`
    fails the operation with INTERNAL_ERROR, as a real host failure does.
    """

    def boot(
        self, name: str, zone: str, metadata: dict[str, str], gpu: str | None, gpu_count: int
    ) -> tuple[str, int]:
        """Start the host, also after `halt`; return address and port of its SSH server."""
        ...

    def halt(self, name: str, zone: str) -> None:
        """Stop the host and keep its disk."""
        ...

    def destroy(self, name: str, zone: str) -> None:
        """Remove the host and its disk; also called for a host that never booted."""
        ...


class NullBackend:
    """Records calls and starts nothing; for tests of the API alone."""

    def __init__(self, address: str = "127.0.0.1", port: int = 22) -> None:
        self._at = (address, port)
        self.events: list[tuple[str, str, str]] = []
        """(event, name, zone) in order."""
        self.boots: list[tuple[dict[str, str], str | None, int]] = []
        """(metadata, gpu, gpu_count) of each boot."""

    def boot(
        self, name: str, zone: str, metadata: dict[str, str], gpu: str | None, gpu_count: int
    ) -> tuple[str, int]:
        """Record the boot."""
        self.boots.append((metadata, gpu, gpu_count))
        self.events.append(("boot", name, zone))
        return self._at

    def halt(self, name: str, zone: str) -> None:
        """Record the halt."""
        self.events.append(("halt", name, zone))

    def destroy(self, name: str, zone: str) -> None:
        """Record the removal."""
        self.events.append(("destroy", name, zone))
