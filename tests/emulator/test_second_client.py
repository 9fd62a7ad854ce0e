"""google-api-python-client works with the emulator; it shares no code with google-cloud-compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from googleapiclient import discovery
from googleapiclient.errors import HttpError

from provision.testing.compute import ComputeEmulator
from tests.emulator.google_client import PROJECT, ZONE, gpu_vm

AT = {"project": PROJECT, "zone": ZONE}
LIMITED = {
    "maxRunDuration": {"seconds": "60"},
    "instanceTerminationAction": "STOP",
    "onHostMaintenance": "TERMINATE",
    "automaticRestart": True,
}


@pytest.fixture
def compute(emulator: ComputeEmulator) -> Iterator[Any]:
    httplib2 = pytest.importorskip("httplib2")
    options = {"api_endpoint": f"{emulator.endpoint}/compute/v1/"}
    client = discovery.build(
        "compute",
        "v1",
        http=httplib2.Http(timeout=10),
        client_options=options,
        static_discovery=True,
    )
    yield client
    client.close()


def done(compute: Any, request: Any) -> Any:
    operation = compute.zoneOperations().wait(**AT, operation=request.execute()["name"]).execute()
    assert operation["status"] == "DONE"
    assert "error" not in operation
    return operation


def reason(request: Any) -> tuple[int, str]:
    with pytest.raises(HttpError) as caught:
        request.execute()
    return caught.value.status_code, caught.value.error_details[0]["reason"]


def test_second_client_creates_stops_and_deletes_an_instance(
    compute: Any, emulator: ComputeEmulator
) -> None:
    vms, dev = compute.instances(), {**AT, "instance": "dev"}
    done(
        compute,
        vms.insert(
            **AT,
            body=gpu_vm(metadata={"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]}),
        ),
    )
    made = vms.get(**dev).execute()
    assert made["status"] == "RUNNING"
    done(
        compute,
        vms.setLabels(
            **dev, body={"labels": {"a": "b"}, "labelFingerprint": made["labelFingerprint"]}
        ),
    )
    items = [*made["metadata"]["items"], {"key": "k", "value": "v"}]
    done(
        compute,
        vms.setMetadata(
            **dev, body={"items": items, "fingerprint": made["metadata"]["fingerprint"]}
        ),
    )
    assert vms.get(**dev).execute()["labels"] == {"a": "b"}
    emulator.print_serial("dev", ZONE, "hello")
    emulator.publish("dev", ZONE, "hostkeys/ssh-ed25519", "AAAA")
    assert vms.getSerialPortOutput(**dev, start=1).execute()["contents"] == "ello"
    found = vms.getGuestAttributes(**dev, queryPath="hostkeys/").execute()
    assert found["queryValue"]["items"] == [
        {"namespace": "hostkeys", "key": "ssh-ed25519", "value": "AAAA"}
    ]
    done(compute, vms.stop(**dev))
    done(compute, vms.setScheduling(**dev, body=LIMITED))
    done(compute, vms.start(**dev))
    done(compute, vms.reset(**dev))
    done(compute, vms.simulateMaintenanceEvent(**dev))
    done(compute, vms.delete(**dev))
    assert compute.disks().list(**AT).execute().get("items", []) == []


def test_second_client_lists_in_pages(compute: Any) -> None:
    for name in ("a", "b", "c"):
        done(compute, compute.instances().insert(**AT, body=gpu_vm(name)))
    for collection, arguments in ((compute.instances(), AT), (compute.disks(), AT)):
        request, names = collection.list(**arguments, maxResults=2), []
        while request is not None:
            reply = request.execute()
            names.append([item["name"] for item in reply.get("items", [])])
            request = collection.list_next(request, reply)
        assert names == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    "collection", ["machineTypes", "acceleratorTypes", "instances", "disks", "reservations"]
)
def test_second_client_reads_aggregated_lists_in_pages(compute: Any, collection: str) -> None:
    service = getattr(compute, collection)()
    request, scopes, pages = service.aggregatedList(project=PROJECT, maxResults=40), set(), 0
    while request is not None and pages < 4:
        reply = request.execute()
        scopes |= set(reply["items"])
        pages += 1
        request = service.aggregatedList_next(request, reply)
    assert f"zones/{ZONE}" in scopes


def test_second_client_reads_predefined_resources(compute: Any) -> None:
    assert len(compute.zones().list(project=PROJECT).execute()["items"]) > 20
    region = compute.regions().get(project=PROJECT, region="us-central1").execute()
    assert {row["metric"] for row in region["quotas"]} >= {
        "NVIDIA_L4_GPUS",
        "PREEMPTIBLE_NVIDIA_L4_GPUS",
        "CPUS",
    }
    image = compute.images().getFromFamily(project="cos-cloud", family="cos-125-lts").execute()
    assert image["status"] == "READY"


def test_second_client_reads_reasons_of_refusals(compute: Any) -> None:
    vms = compute.instances()
    assert reason(vms.get(**AT, instance="none")) == (404, "notFound")
    done(compute, vms.insert(**AT, body=gpu_vm()))
    assert reason(vms.insert(**AT, body=gpu_vm())) == (409, "alreadyExists")
    assert reason(vms.setLabels(**AT, instance="dev", body={"labelFingerprint": "AAAA"})) == (
        412,
        "conditionNotMet",
    )
    assert reason(vms.insert(**AT, body=gpu_vm("other", scheduling={}))) == (400, "invalid")
    assert reason(compute.disks().delete(**AT, disk="dev")) == (
        400,
        "resourceInUseByAnotherResource",
    )
