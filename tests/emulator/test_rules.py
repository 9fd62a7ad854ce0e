"""The emulator refuses what Compute Engine refuses, with the same status, reason and message."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
import requests

from provision.testing.compute import ComputeEmulator

ZONE = "us-central1-a"
Body = dict[str, Any]


def good_body() -> Body:
    return {
        "name": "dev",
        "machineType": f"zones/{ZONE}/machineTypes/n1-standard-8",
        "guestAccelerators": [
            {
                "acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4",
                "acceleratorCount": 1,
            }
        ],
        "disks": [
            {
                "boot": True,
                "initializeParams": {
                    "sourceImage": "projects/cos-cloud/global/images/family/cos-125-lts",
                    "diskSizeGb": "50",
                    "diskType": f"zones/{ZONE}/diskTypes/pd-balanced",
                },
            }
        ],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "scheduling": {"onHostMaintenance": "TERMINATE", "automaticRestart": True},
    }


def machine(name: str, gpu: str | None = None, count: int = 1) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        body["machineType"] = f"zones/{ZONE}/machineTypes/{name}"
        accelerator = {
            "acceleratorType": f"zones/{ZONE}/acceleratorTypes/{gpu}",
            "acceleratorCount": count,
        }
        body["guestAccelerators"] = [accelerator] if gpu else []

    return change


def scheduling(**words: Any) -> Callable[[Body], None]:
    return lambda body: body["scheduling"].update(words)


def disk(**words: Any) -> Callable[[Body], None]:
    return lambda body: body["disks"][0]["initializeParams"].update(words)


def put(**words: Any) -> Callable[[Body], None]:
    return lambda body: body.update(words)


def metadata(*items: Mapping[str, str]) -> Callable[[Body], None]:
    return put(metadata={"items": [dict(item) for item in items]})


BAD: dict[str, tuple[Callable[[Body], None], int, str]] = {
    "no name": (put(name=""), 400, "Must be a match of regex"),
    "upper case name": (put(name="Dev"), 400, "Must be a match of regex"),
    "no machine type": (put(machineType=""), 400, "Machine type must be specified"),
    "unknown machine type": (
        machine("n9-standard-8"),
        400,
        "Machine type with name 'n9-standard-8' does not exist in zone 'us-central1-a'",
    ),
    "machine type of another zone": (
        put(machineType="zones/us-east1-c/machineTypes/n1-standard-8"),
        400,
        "must be in zone",
    ),
    "machine type absent in zone": (machine("g4-standard-48"), 400, "does not exist in zone"),
    "accelerator absent in zone": (
        machine("n1-standard-8", "nvidia-tesla-p100"),
        404,
        "acceleratorTypes/nvidia-tesla-p100' was not found",
    ),
    "count not offered": (
        machine("n1-standard-8", "nvidia-tesla-t4", 3),
        400,
        "does not support 3 cards",
    ),
    "machine too large": (machine("n1-standard-64", "nvidia-tesla-t4"), 400, "exceeds"),
    "accelerator on a bundled family": (
        machine("g2-standard-8", "nvidia-l4"),
        400,
        "features are not compatible",
    ),
    "accelerator on E2": (
        machine("e2-standard-8", "nvidia-tesla-t4"),
        400,
        "features are not compatible",
    ),
    "accelerator on a shared core": (
        machine("f1-micro", "nvidia-tesla-t4"),
        400,
        "features are not compatible",
    ),
    "GPU that migrates": (
        scheduling(onHostMaintenance="MIGRATE"),
        400,
        "do not support live migration",
    ),
    "GPU without a maintenance policy": (
        lambda body: body.pop("scheduling"),
        400,
        "do not support live migration",
    ),
    "spot that restarts": (
        scheduling(provisioningModel="SPOT"),
        400,
        "automaticRestart must be false",
    ),
    "action without a limit": (
        scheduling(instanceTerminationAction="STOP"),
        400,
        "only for Spot VMs or VMs with a limited run time",
    ),
    "limit without an action": (
        scheduling(maxRunDuration={"seconds": "3600"}),
        400,
        "instanceTerminationAction must be specified",
    ),
    "limit too short": (
        scheduling(maxRunDuration={"seconds": "29"}, instanceTerminationAction="STOP"),
        400,
        "between 30 seconds and 120 days",
    ),
    "standard model of a scarce type": (
        machine("a3-highgpu-1g"),
        400,
        "requires one of the provisioning models SPOT",
    ),
    "no boot disk": (put(disks=[]), 400, "A boot disk must be specified"),
    "disk smaller than the image": (
        disk(diskSizeGb="9"),
        400,
        "cannot be smaller than the image size",
    ),
    "unknown image": (
        disk(sourceImage="projects/cos-cloud/global/images/cos-1-1-1-1"),
        400,
        "image resource cannot be found",
    ),
    "retired family": (
        disk(sourceImage="projects/cos-cloud/global/images/family/cos-117-lts"),
        400,
        "image resource cannot be found",
    ),
    "hyperdisk on N1": (
        disk(diskType=f"zones/{ZONE}/diskTypes/hyperdisk-balanced"),
        400,
        "features are not compatible",
    ),
    "unknown disk type": (
        disk(diskType=f"zones/{ZONE}/diskTypes/pd-fast"),
        400,
        "disk type does not exist",
    ),
    "no network": (put(networkInterfaces=[]), 400, "At least one network interface"),
    "label in upper case": (put(labels={"Owner": "me"}), 400, "Label keys"),
    "too many labels": (
        put(labels={f"k{number}": "" for number in range(65)}),
        400,
        "at most 64 labels",
    ),
    "metadata twice": (
        metadata({"key": "a", "value": "1"}, {"key": "a", "value": "2"}),
        400,
        "duplicate keys",
    ),
    "metadata key": (metadata({"key": "a b", "value": "1"}), 400, "Must be a match of regex"),
    "metadata too long": (metadata({"key": "a", "value": "x" * 262_145}), 400, "262144"),
    "metadata too much": (
        metadata(*({"key": key, "value": "x" * 200_000} for key in "abc")),
        400,
        "524288",
    ),
}


def insert(
    emulator: ComputeEmulator, body: Body, zone: str = ZONE, **query: str
) -> requests.Response:
    url = f"{emulator.endpoint}/compute/v1/projects/demo/zones/{zone}/instances"
    return requests.post(url, json=body, params=query, timeout=10)


def test_valid_insert_is_accepted(free_emulator: ComputeEmulator) -> None:
    assert insert(free_emulator, good_body()).json()["status"] == "PENDING"


@pytest.mark.parametrize("name", BAD)
def test_invalid_insert_is_refused(free_emulator: ComputeEmulator, name: str) -> None:
    change, status, words = BAD[name]
    body = deepcopy(good_body())
    change(body)
    answer = insert(free_emulator, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, status)
    assert words in error["message"]
    assert error["errors"] == [
        {
            "message": error["message"],
            "domain": "global",
            "reason": "notFound" if status == 404 else "invalid",
        }
    ]
    assert free_emulator.instances("demo") == []


@pytest.mark.parametrize(
    ("zone", "path"),
    [
        ("us-central9-z", "instances"),
        (ZONE, "instances/none"),
        (ZONE, "operations/none"),
        (ZONE, "machineTypes/none"),
    ],
)
def test_unknown_resource_is_404(free_emulator: ComputeEmulator, zone: str, path: str) -> None:
    answer = requests.get(
        f"{free_emulator.endpoint}/compute/v1/projects/demo/zones/{zone}/{path}", timeout=10
    )
    assert answer.status_code == 404
    assert answer.json()["error"]["errors"][0]["reason"] == "notFound"


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_unemulated_method_is_404(free_emulator: ComputeEmulator, method: str) -> None:
    answer = requests.request(
        method,
        f"{free_emulator.endpoint}/compute/v1/projects/demo/zones/{ZONE}/instances/dev",
        timeout=10,
    )
    assert answer.status_code == 405
    assert method in answer.json()["error"]["message"]


@pytest.mark.parametrize("text", ["{", "[]", '"x"'])
def test_body_without_object_is_parse_error(free_emulator: ComputeEmulator, text: str) -> None:
    url = f"{free_emulator.endpoint}/compute/v1/projects/demo/zones/{ZONE}/instances"
    answer = requests.post(url, data=text, timeout=10)
    assert answer.json()["error"]["errors"][0]["reason"] == "parseError"


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://example.com"}, {"Host": "rebound.example.com:80"}]
)
def test_browser_request_is_refused(
    free_emulator: ComputeEmulator, headers: dict[str, str]
) -> None:
    """User-data runs on this machine, so a web page must not be able to insert an instance."""
    for path in ("compute/v1/projects/demo/zones", "emulator/faults"):
        assert (
            requests.get(
                f"{free_emulator.endpoint}/{path}", headers=headers, timeout=10
            ).status_code
            == 403
        )
    assert (
        requests.get(
            free_emulator.endpoint.replace("127.0.0.1", "localhost") + "/emulator/faults",
            timeout=10,
        ).status_code
        == 200
    )


def test_partial_request_has_no_effect(free_emulator: ComputeEmulator) -> None:
    """A client that is killed while it sends changes nothing and is not recorded."""
    address, _, port = free_emulator.endpoint.removeprefix("http://").partition(":")
    path = f"/compute/v1/projects/demo/zones/{ZONE}/instances"
    with socket.create_connection((address, int(port)), timeout=10) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: {address}:{port}\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(f"{head}{{".encode())
        connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert (list(free_emulator.calls), free_emulator.instances("demo")) == ([], [])


# --- requestId ------------------------------------------------------------------------------------

REQUEST_ID = "11111111-2222-4333-8444-555555555555"


def test_repeated_request_id_returns_same_operation(free_emulator: ComputeEmulator) -> None:
    first = insert(free_emulator, good_body(), requestId=REQUEST_ID).json()
    again = insert(free_emulator, good_body(), requestId=REQUEST_ID).json()
    assert first["name"] == again["name"]
    assert first["clientOperationId"] == REQUEST_ID
    assert len(free_emulator.instances("demo")) == 1


def test_second_insert_of_name_is_409(free_emulator: ComputeEmulator) -> None:
    insert(free_emulator, good_body(), requestId=REQUEST_ID)
    answer = insert(free_emulator, good_body())
    assert answer.status_code == 409
    assert answer.json()["error"]["errors"][0]["reason"] == "alreadyExists"


@pytest.mark.parametrize("request_id", ["x", "00000000-0000-0000-0000-000000000000"])
def test_malformed_request_id_is_refused(free_emulator: ComputeEmulator, request_id: str) -> None:
    assert insert(free_emulator, good_body(), requestId=request_id).status_code == 400


def test_request_id_of_other_request_is_refused(free_emulator: ComputeEmulator) -> None:
    insert(free_emulator, good_body(), requestId=REQUEST_ID)
    answer = insert(free_emulator, {**good_body(), "name": "other"}, requestId=REQUEST_ID)
    assert (answer.status_code, answer.json()["error"]["errors"][0]["reason"]) == (400, "invalid")
