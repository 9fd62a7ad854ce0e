"""One emulated instance: its resource, what the API shows of its guest, and when its time is up."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from provision.testing.compute.errors import Json
from provision.testing.compute.instance_resource import Place

SERIAL_RING_BYTES = 1024 * 1024
"""What `getSerialPortOutput` keeps (Compute Engine API, instances.getSerialPortOutput: "the last 1
MB")."""
OFF = ("TERMINATED", "STOPPED", "SUSPENDED")
"""States in which an instance runs nothing and uses no quota of processors and GPUs."""

WAITING = "PENDING"
"""State of a flex-start VM that has no capacity yet."""


@dataclass
class Machine:
    """One instance. `stops_at` is when its run time is over, in seconds since the epoch.

    One that waits for capacity (PENDING) gets it at `granted_at` (None: never), and is gone at
    `expires_at`.
    """

    place: Place
    resource: Json
    guest: dict[str, str] = field(default_factory=dict)
    serial: bytes = b""
    serial_start: int = 0
    stops_at: float | None = None
    granted_at: float | None = None
    expires_at: float | None = None

    @property
    def waits_until(self) -> float | None:
        """When its wait for capacity ends, one way or the other; None while it waits for none."""
        moments = [at for at in (self.granted_at, self.expires_at) if at is not None]
        return min(moments, default=None) if self.status == WAITING else None

    @property
    def status(self) -> str:
        """The instance's status word."""
        return str(self.resource["status"])

    @status.setter
    def status(self, word: str) -> None:
        self.resource["status"] = word

    @property
    def scheduling(self) -> Json:
        """The instance's scheduling options."""
        scheduling: Json = self.resource["scheduling"]
        return scheduling

    def prints(self, text: str) -> None:
        """Add to the serial port's ring."""
        self.serial += text.encode()
        lost = max(0, len(self.serial) - SERIAL_RING_BYTES)
        self.serial, self.serial_start = self.serial[lost:], self.serial_start + lost

    def printed(self, start: int) -> tuple[str, int, int]:
        """(contents, first byte returned, byte to go on from) of the serial port, from byte `start` or what is left of it."""
        first = max(start, self.serial_start)
        contents = self.serial[first - self.serial_start :]
        return contents.decode(errors="replace"), first, first + len(contents)

    def as_json(self) -> Json:
        """The instance as plain JSON, to be written down."""
        serial = base64.b64encode(self.serial).decode()
        place = [self.place.project, self.place.zone, self.place.name]
        plain = {"place": place, "resource": self.resource, "guest": self.guest, "serial": serial}
        times = {
            "stops_at": self.stops_at,
            "granted_at": self.granted_at,
            "expires_at": self.expires_at,
        }
        return deepcopy({**plain, "serial_start": self.serial_start, **times})

    @classmethod
    def from_json(cls, entry: Mapping[str, object]) -> Machine:
        """The instance that `as_json` wrote."""
        fields: Json = deepcopy(dict(entry))
        return cls(
            **{
                **fields,
                "place": Place(*fields["place"]),
                "serial": base64.b64decode(fields["serial"]),
            }
        )
