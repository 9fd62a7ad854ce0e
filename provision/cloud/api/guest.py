"""Requests about the inside of a VM: the output of its serial port, and its guest attributes."""

from __future__ import annotations

from collections.abc import Mapping

from provision.cloud.api.client import ComputeClient
from provision.cloud.api.protocol import SerialOutput
from provision.cloud.api.resources import items_to_dict
from provision.core.errors import CloudNotFound


def serial_output(client: ComputeClient, name: str, zone: str, *, start: int) -> SerialOutput:
    """Return the output of serial port 1 from byte `start` on."""
    output = client.read(
        "InstancesClient",
        "get_serial_port_output",
        "the serial port could not be read",
        f"{zone}/{name}",
        zone=zone,
        instance=name,
        port=1,
        start=start,
    )
    lost = max(0, int(output.get("start", start)) - start)
    return SerialOutput(output.get("contents", ""), int(output.get("next", 0)), lost)


def guest_attributes(
    client: ComputeClient, name: str, zone: str, namespace: str
) -> Mapping[str, str]:
    """Return the guest attributes below `namespace` ("hostkeys/"); empty without any.

    Raises `CloudNotFound` when the VM does not exist, and `CloudError`.
    """
    try:
        reply = client.read(
            "InstancesClient",
            "get_guest_attributes",
            "guest attributes could not be read",
            f"{zone}/{name}",
            zone=zone,
            instance=name,
            query_path=namespace,
        )
    except CloudNotFound as error:
        if "guest attribute" in error.why.lower():
            return {}
        raise
    return items_to_dict(reply.get("queryValue", {}))
