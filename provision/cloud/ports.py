"""The calls beyond create, get, list and delete that the life cycle of a VM needs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from provision.model import Cloud, Vm

MOCK_PORT_ATTRIBUTE = "provision/ssh-port"
"""Guest attribute in which the emulator publishes a mock host's SSH port; never asked of the real API."""


class ComputeCloud(Cloud, Protocol):
    """A cloud whose VMs can also be stopped, started and looked into. Errors are `CloudError`s."""

    def start(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Start a stopped VM and wait until it runs."""
        ...

    def stop(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Stop the VM, keep its disk, and wait until it is stopped."""
        ...

    def reset(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Reset the VM as its reset button would: no clean shutdown, the disk and the addresses stay."""
        ...

    def set_labels(self, name: str, zone: str, put: Mapping[str, str], remove: Collection[str] = (), *, request_id: str) -> Vm:
        """Put labels on the VM and take others away; the rest stays as it is."""
        ...

    def set_ttl(self, name: str, zone: str, ttl_s: int, *, request_id: str) -> Vm:
        """Give the VM another time limit, counted from its start; everything else about its scheduling stays."""
        ...

    def serial(self, name: str, zone: str, *, start: int = 0) -> tuple[str, int]:
        """What the VM printed on serial port 1 from byte `start` on, and the byte to go on from."""
        ...

    def guest_attributes(self, name: str, zone: str, namespace: str) -> Mapping[str, str]:
        """The guest attributes below `namespace` ("hostkeys/"); empty while the guest has published none."""
        ...

    def ssh_port(self, vm: Vm) -> int:
        """The port where the VM's SSH server listens."""
        ...
