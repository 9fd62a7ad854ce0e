"""Google's unmodified client library, pointed at an emulator."""

from __future__ import annotations

import json
from typing import Any

import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from provision.testing.compute import ComputeEmulator

PROJECT = "demo"
ZONE = "us-central1-a"
IMAGE = "projects/cos-cloud/global/images/cos-125-19216-655-28"
Body = dict[str, Any]


def gpu_vm(name: str = "dev", zone: str = ZONE, **changed: Any) -> Body:
    """Return the body of an insert: one T4 on N1, a boot disk of 50 GB, an external address."""
    body: Body = {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/n1-standard-8",
        "guestAccelerators": [
            {
                "acceleratorType": f"zones/{zone}/acceleratorTypes/nvidia-tesla-t4",
                "acceleratorCount": 1,
            }
        ],
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": IMAGE,
                    "diskSizeGb": "50",
                    "diskType": f"zones/{zone}/diskTypes/pd-balanced",
                },
            }
        ],
        "networkInterfaces": [
            {
                "network": "global/networks/default",
                "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
            }
        ],
        "scheduling": {"onHostMaintenance": "TERMINATE", "automaticRestart": True},
    }
    return {**body, **changed}


def scheduling(**words: Any) -> Body:
    """Return the scheduling options of a GPU VM, with changes."""
    return {"onHostMaintenance": "TERMINATE", "automaticRestart": True, **words}


SPOT = scheduling(provisioningModel="SPOT", automaticRestart=False)


class Google:
    """The clients of one project; `close` them."""

    def __init__(self, emulator: ComputeEmulator) -> None:
        self.emulator = emulator
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """`compute_v1.InstancesClient` for "Instances"."""
        if service not in self._clients:
            kind = getattr(compute_v1, f"{service}Client")
            options = {"api_endpoint": self.emulator.endpoint}
            self._clients[service] = kind(
                credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
                client_options=options,
            )
        return self._clients[service]

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.transport.close()

    def insert(self, body: Body | None = None, zone: str = ZONE) -> Any:
        """Insert a VM; return the finished operation."""
        resource = compute_v1.Instance.from_json(json.dumps(body or gpu_vm(zone=zone)))
        return self.done(
            self.client("Instances").insert_unary(
                project=PROJECT, zone=zone, instance_resource=resource
            )
        )

    def call(self, method: str, name: str = "dev", zone: str = ZONE, **words: Any) -> Any:
        """Call a method of an instance (`stop`); return the finished operation."""
        return self.done(
            getattr(self.client("Instances"), f"{method}_unary")(
                project=PROJECT, zone=zone, instance=name, **words
            )
        )

    def done(self, operation: Any) -> Any:
        """Return the operation once it is done."""
        while operation.status != compute_v1.Operation.Status.DONE:
            operation = self.client("ZoneOperations").wait(
                project=PROJECT, zone=operation.zone.rsplit("/")[-1], operation=operation.name
            )
        return operation

    def vm(self, name: str = "dev", zone: str = ZONE) -> Any:
        """Return the instance."""
        return self.client("Instances").get(project=PROJECT, zone=zone, instance=name)

    def status(self, name: str = "dev", zone: str = ZONE) -> str:
        """Return the instance's status."""
        return str(self.vm(name, zone).status)

    def events(self, zone: str = ZONE) -> list[str]:
        """Return the types of the zone's operations, oldest first."""
        return [
            operation.operation_type
            for operation in self.client("ZoneOperations").list(project=PROJECT, zone=zone)
        ]


def error_of(operation: Any) -> tuple[int, str]:
    """Return HTTP status and code of a failed operation; (0, "") of one that succeeded."""
    errors = operation.error.errors
    return operation.http_error_status_code, errors[0].code if errors else ""


def get(emulator: ComputeEmulator, path: str, **query: Any) -> Body:
    """Send a plain GET below /compute/v1/."""
    answer = requests.get(f"{emulator.endpoint}/compute/v1/{path}", params=query, timeout=10)
    answer.raise_for_status()
    found: Body = answer.json()
    return found


def send(
    emulator: ComputeEmulator, verb: str, path: str, body: Any = None, **query: Any
) -> requests.Response:
    """Send a plain request below /compute/v1/."""
    return requests.request(
        verb, f"{emulator.endpoint}/compute/v1/{path}", json=body, params=query, timeout=10
    )
