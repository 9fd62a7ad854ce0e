"""The requests of a listing of 500 VMs; `bench/listing.py` measures its time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.listing import multiply
from provision.cloud.api.gce import GceCloud
from provision.commands.vm.cost import vm_cost
from provision.commands.vm.list import vm_list
from provision.core.model import VmSpec
from provision.project.project import Project
from provision.settings import Settings
from provision.testing.compute import ComputeEmulator

ZONES = ("us-central1-a", "us-central1-b", "europe-west4-a")


@pytest.fixture
def project(tmp_path: Path, cloud: GceCloud, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(Project, "connect_cloud", lambda _project: cloud)
    return Project(
        Settings.model_validate({"project": "demo-project"}), tmp_path / "state", tmp_path
    )


def test_listing_500_vms_costs_one_request(
    emulator: ComputeEmulator, cloud: GceCloud, project: Project, make_spec: Callable[..., VmSpec]
) -> None:
    owner = {"provision-owner": project.ensure_owner()}
    cloud.create(
        make_spec(name="dev", labels=owner),
        "us-central1-a",
        request_id="6f8c2d8e-5d7e-4a39-9d52-6b8b2f0d8a11",
    )
    multiply(emulator, 500, ZONES)
    emulator.calls.clear()
    done = vm_list(project)
    assert emulator.call_ids() == ["instances.aggregatedList"]
    assert len({vm["name"] for vm in done.document["vms"]}) == 500
    assert len(done.text.splitlines()) == 501
    assert all(
        vm["cost_usd"] is not None and vm["gpu"] == "nvidia-tesla-t4" for vm in done.document["vms"]
    )

    emulator.calls.clear()
    bill = vm_cost(project).document
    assert emulator.call_ids() == ["instances.aggregatedList"]
    assert bill["total"]["usd_per_hour"] == pytest.approx(
        sum(vm["usd_per_hour"] for vm in bill["vms"]), abs=0.1
    )
