"""`vm.offers` on the mock: machines, prices, quotas, and the packaged table without the cloud."""

from __future__ import annotations

import json

import pytest

from provision.commands.vm.offers.offers import vm_offers
from provision.core.errors import SettingsError
from provision.project.project import Project
from tests.mock.emulated_project import EmulatedProject, emulated

__all__ = ["emulated"]


def test_gpu_lists_every_machine_with_price_and_quota(emulated: EmulatedProject) -> None:
    done = vm_offers(emulated.project(), gpu="l4")
    offers = done.document["offers"]
    assert {offer["gpu"] for offer in offers} == {"nvidia-l4"}
    assert {offer["machine_type"] for offer in offers} == {
        f"g2-standard-{size}" for size in (4, 8, 12, 16, 24, 32, 48, 96)
    }
    here = next(
        offer
        for offer in offers
        if (offer["zone"], offer["machine_type"]) == ("us-central1-a", "g2-standard-8")
    )
    assert (here["vcpus"], here["memory_gb"], here["gpu_memory_gb"]) == (8, 32, 24)
    assert (here["usd_per_hour"], here["usd_per_hour_spot"]) == (0.8536, 0.3406)
    assert (here["quota"]["metric"], here["quota"]["room"]) in {
        ("NVIDIA_L4_GPUS", "ok"),
        ("GPUS_ALL_REGIONS", "ok"),
    }
    assert done.document["live"] is True
    assert done.document["prices_as_of"] == "2025-03-06"
    assert f"us-central1-a,b,c    {here['usd_per_hour']:.2f}" in done.text
    assert "estimates in US dollars" in done.text


def test_default_lists_one_machine_for_each_gpu_in_few_requests(emulated: EmulatedProject) -> None:
    offers = vm_offers(emulated.project(), gpu=None).document["offers"]
    assert {"nvidia-l4", "nvidia-tesla-t4", "nvidia-h200-141gb"} <= {
        offer["gpu"] for offer in offers
    }
    assert len({(offer["gpu"], offer["machine_type"]) for offer in offers}) == len(
        {offer["gpu"] for offer in offers}
    )
    apis = [call.api for call in emulated.emulator.calls]
    assert sorted(set(apis)) == [
        "acceleratorTypes.aggregatedList",
        "machineTypes.aggregatedList",
        "projects.get",
        "regions.list",
    ]
    assert len(apis) == 4


def test_region_filters_offers(emulated: EmulatedProject) -> None:
    offers = vm_offers(emulated.project(), gpu="t4", region="europe-west4").document["offers"]
    assert {offer["zone"] for offer in offers} == {
        "europe-west4-a",
        "europe-west4-b",
        "europe-west4-c",
    }
    assert (
        vm_offers(emulated.project(), gpu="t4", region="us-nowhere").text
        == "nothing is offered in zones whose name begins with us-nowhere"
    )


@pytest.mark.parametrize("gpu", [None, "h100", "rtx-pro-6000", "h200"])
def test_offers_table_fits_100_columns(emulated: EmulatedProject, gpu: str | None) -> None:
    lines = vm_offers(emulated.project(), gpu=gpu).text.splitlines()
    assert max(map(len, lines[: lines.index("")])) <= 100


def test_gpu_slices_are_listed_with_refusal_reason(emulated: EmulatedProject) -> None:
    done = vm_offers(emulated.project(), gpu="rtx-pro-6000")
    refused = {
        offer["machine_type"]: offer["refused"]
        for offer in done.document["offers"]
        if offer["refused"]
    }
    assert set(refused) == {"g4-standard-6", "g4-standard-12", "g4-standard-24"}
    assert "not g4-standard-6: it carries 1/8 of a GPU" in done.text


@pytest.mark.parametrize("gpu", ["gb200", "gb300"])
def test_unsupported_gpu_is_listed_with_reason(emulated: EmulatedProject, gpu: str) -> None:
    done = vm_offers(emulated.project(), gpu=gpu)
    assert done.text.splitlines()[0] == "nothing is offered"
    assert f"not nvidia-{gpu}: Arm" in done.text
    assert "Arm" in done.document["refused"][f"nvidia-{gpu}"]


def test_price_list_of_the_settings_is_used(emulated: EmulatedProject) -> None:
    (emulated.folder / "prices.json").write_text(
        json.dumps(
            {"as_of": "2026-10-01", "regions": {"us-central1": {"g2-standard-8": [0.5, 0.25]}}}
        ),
        encoding="utf-8",
    )
    done = vm_offers(emulated.project(prices="prices.json"), gpu="l4")
    priced = {
        (offer["machine_type"], offer["usd_per_hour"])
        for offer in done.document["offers"]
        if offer["usd_per_hour"] is not None
    }
    assert priced == {("g2-standard-8", 0.5)}
    assert done.document["prices_as_of"] == "2026-10-01"
    assert done.document["offers"][0]["machine_type"] == "g2-standard-8"
    with pytest.raises(SettingsError) as caught:
        vm_offers(emulated.project(prices="none.json"), gpu="l4")
    assert "none.json" in caught.value.what


def test_packaged_table_is_shown_and_marked_without_the_cloud(
    emulated: EmulatedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "provision.project.mock.ProjectMock.start", lambda _mock: "http://127.0.0.1:9"
    )
    monkeypatch.setattr(Project, "connect_client", _impatient)
    done = vm_offers(emulated.project(zones=["europe-west4-a"]), gpu="l4")
    assert done.document["live"] is False
    assert "could not be listed" in done.document["why"]
    assert {offer["zone"] for offer in done.document["offers"]} == {"europe-west4-a"}
    assert {offer["quota"] for offer in done.document["offers"]} == {None}
    assert "packaged table" in emulated.notes
    assert {line.split()[-1] for line in done.text.splitlines() if line.startswith("g2-")} == {"?"}


def _impatient(_project: object) -> object:
    from provision.cloud.api.client import ComputeClient

    return ComputeClient("demo", "http://127.0.0.1:9", attempts=1)
