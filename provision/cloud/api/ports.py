"""The calls beyond create, get, list and delete that the life cycle of a VM needs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from provision.cloud.market.quota import Quotas
from provision.core.errors import CloudError
from provision.core.model import Cloud, Vm

MOCK_PORT_ATTRIBUTE = "provision/ssh-port"
"""Guest attribute in which the emulator publishes a mock host's SSH port; never asked of the real
API."""


ANY = "*"
"""Value of a label in a listing that stands for any."""


@dataclass(frozen=True)
class Ended:
    """How an operation ended: `refusal` says why it failed, None that it did not."""

    refusal: CloudError | None = None


@dataclass(frozen=True, kw_only=True)
class Login:
    """A key in somebody's login profile: OS Login lets it in as `user` until `expires_s` (seconds since the epoch).

    `key` is its name in the API (`users/ACCOUNT/sshPublicKeys/FINGERPRINT`).
    """

    account: str
    user: str
    key: str
    expires_s: int


@dataclass(frozen=True)
class SerialOutput:
    """What a VM printed on its serial port, the byte to go on from, and how many bytes before it the cloud no longer has.

    The cloud keeps the last 1 MB, and starts where that starts (Compute Engine API,
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
class Silence:
    """A zone whose VMs are missing in a listing, and the verbatim reason."""

    zone: str
    why: str


@dataclass(frozen=True)
class Listing:
    """VMs by zone and name, and the zones that did not answer."""

    vms: Sequence[Vm]
    silent: Sequence[Silence] = ()


class ComputeCloud(Cloud, Protocol):
    """A cloud whose VMs can also be stopped, started and looked into. Errors are `CloudError`s."""

    def listing(self, labels: Mapping[str, str]) -> Listing:
        """What `list` finds, and where it could not look."""
        ...

    def start(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Start a stopped VM and wait until it runs."""
        ...

    def stop(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Stop the VM, keep its disk, and wait until it is stopped."""
        ...

    def reset(self, name: str, zone: str, *, request_id: str) -> Vm:
        """Reset the VM as its reset button would: no clean shutdown, the disk and the addresses stay."""
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
        """Put labels on the VM and take others away; the rest stays as it is."""
        ...

    def set_ttl(self, name: str, zone: str, ttl_s: int, *, request_id: str) -> Vm:
        """Give the VM another time limit, counted from its start; everything else about its scheduling stays."""
        ...

    def serial(self, name: str, zone: str, *, start: int = 0) -> SerialOutput:
        """What the VM printed on serial port 1 from byte `start` on."""
        ...

    def guest_attributes(self, name: str, zone: str, namespace: str) -> Mapping[str, str]:
        """The guest attributes below `namespace` ("hostkeys/"); empty while the guest has published none."""
        ...

    def project_metadata(self) -> Mapping[str, str]:
        """Metadata of the project, which each of its instances sees under its own."""
        ...

    def os_login(self, public_key: str, expires_s: int) -> Login:
        """Let whoever the credentials belong to log in with the key where OS Login is on, until `expires_s` (since the epoch)."""
        ...

    def os_logout(self, key: str) -> bool:
        """Take a key out of its login profile, by its name; False when it was not there."""
        ...

    def ssh_port(self, vm: Vm) -> int:
        """The port where the VM's SSH server listens."""
        ...

    @property
    def project(self) -> str:
        """Who pays."""
        ...

    def clock(self) -> datetime:
        """The cloud's own time: what it has stamped is compared with it, not with a clock of ours that may be wrong."""
        ...

    def quotas(self, regions: Sequence[str], *, regional: bool = False) -> Quotas:
        """The quotas of the project and of `regions`; with `regional` those of the regions alone."""
        ...

    def zones_offering(self, gpu: str | None) -> Sequence[str]:
        """The zones that list the accelerator type, by name; every zone for None."""
        ...

    def ended(self, zone: str, request_id: str) -> Ended | None:
        """How the operation that `request_id` began in `zone` ended, once it has; None when it began none."""
        ...

    def disks(self, labels: Mapping[str, str]) -> Sequence[Disk]:
        """All disks of the project that carry `labels`, over all zones, by zone and name."""
        ...

    def delete_disk(self, name: str, zone: str, *, request_id: str) -> bool:
        """Delete the disk and wait until it is gone; False when there was none."""
        ...
