"""One emulated instance: resource, guest attributes, serial port and time limits."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from provision.testing.compute.errors import Json
from provision.testing.compute.instance_resource import ResourceRef

SERIAL_RING_BYTES = 1024 * 1024
"""What `getSerialPortOutput` keeps (Compute Engine API, instances.getSerialPortOutput: "the last 1
MB")."""
OFF = ("TERMINATED", "STOPPED", "SUSPENDED")
"""States in which an instance runs nothing and uses no quota of processors and GPUs."""

WAITING = "PENDING"
"""State of a flex-start VM that has no capacity yet."""


@dataclass
class Instance:
    """One instance. Times are in seconds since the epoch.

    `stops_at` is the end of its run time. An instance that waits for capacity (PENDING) gets it at
    `granted_at` (None: never) and is removed at `expires_at`.
    """

    ref: ResourceRef
    resource: Json
    guest: dict[str, str] = field(default_factory=dict)
    serial: bytes = b""
    serial_start: int = 0
    stops_at: float | None = None
    granted_at: float | None = None
    expires_at: float | None = None

    @property
    def waits_until(self) -> float | None:
        """When its wait for capacity ends, with capacity or without; None when it does not wait."""
        moments = [at for at in (self.granted_at, self.expires_at) if at is not None]
        return min(moments, default=None) if self.status == WAITING else None

    @property
    def status(self) -> str:
        """The status, such as RUNNING."""
        return str(self.resource["status"])

    @status.setter
    def status(self, word: str) -> None:
        self.resource["status"] = word

    @property
    def scheduling(self) -> Json:
        """The instance's scheduling options."""
        scheduling: Json = self.resource["scheduling"]
        return scheduling

    def append_serial(self, text: str) -> None:
        """Append to the serial port's ring buffer."""
        self.serial += text.encode()
        lost = max(0, len(self.serial) - SERIAL_RING_BYTES)
        self.serial, self.serial_start = self.serial[lost:], self.serial_start + lost

    def read_serial(self, start: int) -> tuple[str, int, int]:
        """(contents, first byte returned, byte to go on from) of the serial port.

        Contents begin at byte `start`, or at the oldest byte that is still kept.
        """
        first = max(start, self.serial_start)
        contents = self.serial[first - self.serial_start :]
        return contents.decode(errors="replace"), first, first + len(contents)

    def as_json(self) -> Json:
        """The instance as JSON, for `from_json`."""
        serial = base64.b64encode(self.serial).decode()
        return deepcopy(
            {
                "place": [self.ref.project, self.ref.zone, self.ref.name],
                "resource": self.resource,
                "guest": self.guest,
                "serial": serial,
                "serial_start": self.serial_start,
                "stops_at": self.stops_at,
                "granted_at": self.granted_at,
                "expires_at": self.expires_at,
            }
        )

    @classmethod
    def from_json(cls, entry: Mapping[str, object]) -> Instance:
        """The instance that `as_json` returned."""
        fields: Json = deepcopy(dict(entry))
        ref = ResourceRef(*fields.pop("place"))
        return cls(ref, **{**fields, "serial": base64.b64decode(fields["serial"])})
