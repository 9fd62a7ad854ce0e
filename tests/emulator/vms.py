"""Many VMs at once in the emulator: copies of one that was made."""

from __future__ import annotations

import json
from collections.abc import Sequence

from provision.testing.compute import ComputeEmulator


def multiply(emulator: ComputeEmulator, count: int, zones: Sequence[str]) -> None:
    """Make `count` VMs of the one there is, spread over `zones`, with names and ids of their own."""
    saved = emulator.snapshot()
    (one,) = saved["instances"]
    text = json.dumps(one)
    own_zone, name = one["place"][1], one["place"][2]
    copies = []
    for number in range(1, count):
        copy = json.loads(text.replace(own_zone, zones[number % len(zones)]).replace(f'"{name}"', f'"{name}-{number}"'))
        copy["resource"]["id"] = str(int(one["resource"]["id"]) + number)
        copies.append(copy)
    emulator.restore({**saved, "items": [], "instances": copies})
