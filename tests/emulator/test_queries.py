"""Read-only requests about the project: paging, filters on the server, quotas, images, network."""

from __future__ import annotations

import pytest

from provision.cloud.api import queries
from provision.cloud.api.client import ComputeClient
from provision.cloud.api.gce import GceCloud
from provision.cloud.api.images import image_ref
from provision.core.errors import CloudError, CloudNotFound
from provision.testing.compute import ComputeEmulator
from provision.testing.compute.catalogue import Catalogue


@pytest.fixture
def client(cloud: GceCloud) -> ComputeClient:
    return cloud.client


def asked(emulator: ComputeEmulator) -> list[str]:
    return [call.api for call in emulator.calls]


def test_accelerators_are_listed_by_zone(client: ComputeClient, emulator: ComputeEmulator) -> None:
    found = queries.list_accelerators(client)
    catalogue = Catalogue()
    named = {
        zone: frozenset(gpu.accelerator for gpu in catalogue.accelerators_in(zone))
        for zone in catalogue.zone_names
    }
    assert found == {zone: gpus for zone, gpus in named.items() if gpus}
    assert len(found) < len(named), (
        "a zone without GPUs is in the reply, with a warning, and not in the result"
    )
    assert asked(emulator) == ["acceleratorTypes.aggregatedList"]


def test_machine_types_are_filtered_by_the_server(
    client: ComputeClient, emulator: ComputeEmulator
) -> None:
    found = queries.list_machine_types(client, ["g2-.*", "n1-standard-8"])
    assert {each.machine.name for each in found if each.gpu is None} == {"n1-standard-8"}
    assert {each.machine.name for each in found if each.gpu} == {
        f"g2-standard-{size}" for size in (4, 8, 12, 16, 24, 32, 48, 96)
    }
    two = next(each for each in found if each.machine.name == "g2-standard-24")
    assert (two.gpu, two.machine.gpu_count, two.machine.vcpus, two.machine.memory_gb) == (
        "nvidia-l4",
        2,
        24,
        96,
    )
    assert [call.query["filter"] for call in emulator.calls] == ['name eq "(g2-.*|n1-standard-8)"']


def test_paged_list_is_read_to_its_end(client: ComputeClient, emulator: ComputeEmulator) -> None:
    everything = queries.list_machine_types(client, [".*"])
    assert len(everything) > 500
    assert len({(each.zone, each.machine.name) for each in everything}) == len(everything)
    assert len(asked(emulator)) == -(-len(everything) // 500)


def test_no_patterns_send_no_request(client: ComputeClient, emulator: ComputeEmulator) -> None:
    assert queries.list_machine_types(client, []) == []
    assert asked(emulator) == []


@pytest.mark.parametrize("regions", [["us-central1"], ["us-central1", "us-east1"], None])
def test_quotas_cost_two_requests_for_any_number_of_regions(
    client: ComputeClient, emulator: ComputeEmulator, regions: list[str] | None
) -> None:
    found = queries.fetch_quotas(client, regions)
    assert len(emulator.calls) == 2
    assert found.project["GPUS_ALL_REGIONS"].limit > 0
    assert set(found.regions) == set(regions or Catalogue().region_names)
    assert found.regions["us-central1"]["NVIDIA_L4_GPUS"].left > 0


def test_image_is_fetched_by_name_and_by_family(client: ComputeClient) -> None:
    newest = queries.fetch_image(client, image_ref("cos-125-lts"))
    assert newest["name"].startswith("cos-125-")
    assert queries.fetch_image(client, image_ref(newest["name"]))["name"] == newest["name"]
    with pytest.raises(CloudNotFound):
        queries.fetch_image(client, image_ref("cos-999-lts"))


def test_missing_reply_raises_cloud_error(clock: object) -> None:
    lost = ComputeClient("demo", "http://127.0.0.1:9", sleep=lambda _seconds: None, attempts=2)
    with pytest.raises(CloudError) as caught:
        queries.list_accelerators(lost)
    assert caught.value.what == "the accelerator types could not be listed"
    lost.close()


def test_network_and_firewall_rules_are_fetched(
    client: ComputeClient, emulator: ComputeEmulator
) -> None:
    assert queries.fetch_network(client, "default")["autoCreateSubnetworks"] is True
    with pytest.raises(CloudNotFound):
        queries.fetch_network(client, "other")
    rules = {rule["name"]: rule for rule in queries.list_firewall_rules(client)}
    assert rules["default-allow-ssh"]["allowed"] == [{"IPProtocol": "tcp", "ports": ["22"]}]
    assert rules["default-allow-ssh"]["sourceRanges"] == ["0.0.0.0/0"]
    emulator.firewalls[:] = [
        {"name": "none", "sourceRanges": ["10.0.0.0/8"], "denied": [{"IPProtocol": "all"}]}
    ]
    assert [rule["name"] for rule in queries.list_firewall_rules(client)] == ["none"]
