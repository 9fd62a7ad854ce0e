"""The protocol of a cloud that VMs are made in, and the records that its methods return. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from provision.cloud.market.quota import Quotas
from provision.core.errors import CloudError
from provision.core.model import Vm, VmSpec

MOCK_PORT_ATTRIBUTE = "provision/ssh-port"
"""Guest attribute in which the emulator publishes a mock host's SSH port; the real API is never
asked for it."""


@dataclass(frozen=True)
class OperationResult:
    """The result of an operation that is done; `refusal` is its error, None where it succeeded."""

    refusal: CloudError | None = None


@dataclass(frozen=True, kw_only=True)
class Login:
    """A key in a login profile: OS Login lets it in as `user` until `expires_s` (epoch seconds).

    `key` is its name in the API (`users/ACCOUNT/sshPublicKeys/FINGERPRINT`).
    """

    account: str
    user: str
    key: str
    expires_s: int


@dataclass(frozen=True)
class SerialOutput:
    """Output of a VM's serial port, the byte to continue from, and the number of bytes lost before.

    The cloud keeps the last 1 MB; what is asked for before that is lost (Compute Engine API,
    instances.getSerialPortOutput: `start`).
    """

    text: str
    next: int
    lost: int = 0


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A disk as the cloud describes it; `users` are the VMs that it is attached to."""

    name: str
    zone: str
    size_gb: int
    created: str = ""
    users: tuple[str, ...] = ()
    labels: Mapping[str, str]


@dataclass(frozen=True)
class ZoneFailure:
    """A zone whose VMs are missing in a listing, and the verbatim reason."""

    zone: str
    why: str


@dataclass(frozen=True)
class Listing:
    """VMs by zone and name, and the zones that could not be listed."""

    vms: Sequence[Vm]
    failures: Sequence[ZoneFailure] = ()


class ComputeCloud(Protocol):
    """A cloud that makes VMs. Every method asks the cloud; errors are `CloudError`s.

    Changes take a `request_id`: the cloud acts once on all requests that carry the same one.
    """

    def create(self, spec: VmSpec, zone: str, *, request_id: str) -> Vm:
        """Insert the VM and wait until it runs, or waits for capacity (status PENDING)."""
        ...

    def get(self, name: str, zone: str) -> Vm | None:
        """Return the VM, or None when `zone` has none of this name."""
        ...

    def list(self, labels: Mapping[str, str]) -> Sequence[Vm]:
        """Return all VMs of the project that carry `labels`, over all zones."""
        ...

    def list_with_failures(self, labels: Mapping[str, str]) -> Listing:
        """Return what `list` returns, and the zones that could not be listed."""
        ...

    def delete(self, name: str, zone: str, *, request_id: str) -> bool:
        """Delete the VM and wait until it is gone; False when there was none."""
        ...

    def start(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Start a stopped VM and wait until it runs."""
        ...

    def stop(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Stop the VM, keep its disk, and wait until it is stopped."""
        ...

    def reset(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Reset the VM without a clean shutdown; its disk and its addresses stay."""
        ...

    def set_labels(
        self,
        name: str,
        zone: str,
        put: Mapping[str, str],
        remove: Collection[str] = (),
        *,
        request_id: str,
    ) -> Vm:
        """Add or change the labels `put` and remove others; the rest stays."""
        ...

    def set_ttl(self, name: str, zone: str, ttl_s: int, *, request_id: str) -> Vm:
        """Set the VM's time limit, in seconds from its start; its other scheduling stays."""
        ...

    def serial_output(self, name: str, zone: str, *, start: int = 0) -> SerialOutput:
        """Return the output of serial port 1 from byte `start` on."""
        ...

    def guest_attributes(self, name: str, zone: str, namespace: str) -> Mapping[str, str]:
        """Return the guest attributes below `namespace` ("hostkeys/"); empty without any."""
        ...

    def project_metadata(self) -> Mapping[str, str]:
        """Return the project's metadata, which applies to an instance that has none of its own."""
        ...

    def add_login_key(self, public_key: str, expires_s: int) -> Login:
        """Add a key to the login profile of the credentials' account, until `expires_s` (epoch)."""
        ...

    def remove_login_key(self, key: str) -> bool:
        """Remove a key, by its name, from its login profile; False when it was not there."""
        ...

    def ssh_port(self, vm: Vm) -> int:
        """Return the port of the VM's SSH server."""
        ...

    @property
    def project(self) -> str:
        """The Google Cloud project, which pays."""
        ...

    def current_time(self) -> datetime:
        """Return the cloud's time, to compare its timestamps with; the local clock may be wrong."""
        ...

    def quotas(self, regions: Sequence[str], *, regional: bool = False) -> Quotas:
        """Return the quotas of the project and `regions`; with `regional`, of the latter only."""
        ...

    def zones_offering(self, gpu: str | None) -> Sequence[str]:
        """Return the zones that list the accelerator type, by name; every zone for None."""
        ...

    def operation_result(self, zone: str, request_id: str) -> OperationResult | None:
        """Wait for the operation that `request_id` began in `zone`; None when it began none."""
        ...

    def list_disks(self, labels: Mapping[str, str]) -> Sequence[Disk]:
        """Return all disks of the project that carry `labels`, by zone and name."""
        ...

    def delete_disk(self, name: str, zone: str, *, request_id: str) -> bool:
        """Delete the disk and wait until it is gone; False when there was none."""
        ...
