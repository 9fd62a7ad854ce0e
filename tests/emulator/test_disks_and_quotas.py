"""What the emulated project has beside instances: disks, reservations, quotas, metadata."""

from __future__ import annotations

import pytest
from google.api_core.exceptions import BadRequest, Conflict, NotFound, PreconditionFailed
from google.cloud import compute_v1

from provision.testing.compute import (
    ComputeEmulator,
    Fault,
    FaultKind,
    NullBackend,
    SimulatedClock,
    stock_out,
)
from tests.emulator.google_client import (
    PROJECT,
    SPOT,
    ZONE,
    Body,
    Google,
    error_of,
    get,
    gpu_vm,
    send,
)

ZONE_PATH = f"projects/{PROJECT}/zones/{ZONE}"


def disks(emulator: ComputeEmulator) -> list[str]:
    return [disk["name"] for disk in emulator.disks(PROJECT)]


# --- disks ----------------------------------------------------------------------------------------


def test_instance_has_a_boot_disk(google: Google) -> None:
    parameters = {**gpu_vm()["disks"][0]["initializeParams"], "labels": {"owner": "me"}}
    google.insert(
        gpu_vm(disks=[{"boot": True, "autoDelete": True, "initializeParams": parameters}])
    )
    disk = google.client("Disks").get(project=PROJECT, zone=ZONE, disk="dev")
    assert (disk.size_gb, disk.type_.rsplit("/")[-1], dict(disk.labels)) == (
        50,
        "pd-balanced",
        {"owner": "me"},
    )
    assert disk.source_image.endswith("global/images/cos-125-19216-655-28")
    assert list(disk.users) == [google.vm().self_link]
    assert google.vm().disks[0].source == disk.self_link


def test_auto_delete_disk_is_deleted_with_its_instance(google: Google) -> None:
    for name, auto_delete in (("gone", True), ("kept", False)):
        google.insert(gpu_vm(name, disks=[{**gpu_vm()["disks"][0], "autoDelete": auto_delete}]))
        google.call("delete", name)
    (orphan,) = google.client("Disks").list(project=PROJECT, zone=ZONE)
    assert (orphan.name, list(orphan.users)) == ("kept", [])
    scopes = dict(google.client("Disks").aggregated_list(project=PROJECT))
    assert [disk.name for disk in scopes[f"zones/{ZONE}"].disks] == ["kept"]
    assert scopes["zones/us-east1-b"].warning.code == "NO_RESULTS_ON_PAGE"
    google.done(google.client("Disks").delete_unary(project=PROJECT, zone=ZONE, disk="kept"))
    with pytest.raises(NotFound, match="disks/kept"):
        google.client("Disks").get(project=PROJECT, zone=ZONE, disk="kept")


def test_disk_in_use_is_not_deleted(google: Google) -> None:
    google.insert()
    with pytest.raises(
        BadRequest, match="already being used by 'projects/demo/zones/us-central1-a/instances/dev'"
    ):
        google.client("Disks").delete_unary(project=PROJECT, zone=ZONE, disk="dev")


def test_orphaned_disk_blocks_its_name_and_can_be_attached(
    google: Google, emulator: ComputeEmulator
) -> None:
    google.insert(gpu_vm(disks=[{**gpu_vm()["disks"][0], "autoDelete": False}]))
    google.call("delete")
    with pytest.raises(Conflict, match="disks/dev' already exists"):
        google.insert()
    google.insert(gpu_vm("heir", disks=[{"boot": True, "source": f"{ZONE_PATH}/disks/dev"}]))
    assert disks(emulator) == ["dev"]
    with pytest.raises(BadRequest, match="already being used"):
        google.insert(gpu_vm("rival", disks=[{"boot": True, "source": f"{ZONE_PATH}/disks/dev"}]))


def test_disk_can_be_created_and_labelled_alone(google: Google) -> None:
    client = google.client("Disks")
    disk = compute_v1.Disk(name="data", size_gb=500, type_=f"{ZONE_PATH}/diskTypes/pd-ssd")
    google.done(client.insert_unary(project=PROJECT, zone=ZONE, disk_resource=disk))
    made = client.get(project=PROJECT, zone=ZONE, disk="data")
    change = compute_v1.ZoneSetLabelsRequest(
        labels={"a": "b"}, label_fingerprint=made.label_fingerprint
    )
    google.done(
        client.set_labels_unary(
            project=PROJECT, zone=ZONE, resource="data", zone_set_labels_request_resource=change
        )
    )
    assert dict(client.get(project=PROJECT, zone=ZONE, disk="data").labels) == {"a": "b"}
    with pytest.raises(PreconditionFailed):
        client.set_labels_unary(
            project=PROJECT, zone=ZONE, resource="data", zone_set_labels_request_resource=change
        )


def test_failed_insert_can_leave_its_disk(google: Google, emulator: ComputeEmulator) -> None:
    fault = stock_out(ZONE)
    emulator.faults.add(
        Fault(kind=FaultKind.OPERATION, code=fault.code, http_status=503, leaves_disk=True, times=1)
    )
    assert error_of(google.insert())[0] == 503
    assert (emulator.instances(PROJECT), disks(emulator)) == ([], ["dev"])


def test_failed_insert_leaves_no_disk_by_default(google: Google, emulator: ComputeEmulator) -> None:
    emulator.faults.add(stock_out(ZONE))
    google.insert()
    assert disks(emulator) == []


# --- quotas ---------------------------------------------------------------------------------------


def limit(
    emulator: ComputeEmulator, metric: str, region: str = "us-central1"
) -> tuple[float, float]:
    """(limit, usage) of a regional metric."""
    found = {
        row["metric"]: (row["limit"], row["usage"])
        for row in get(emulator, f"projects/{PROJECT}/regions/{region}")["quotas"]
    }
    return found[metric]


@pytest.mark.parametrize("metric", ["NVIDIA_T4_GPUS", "GPUS_ALL_REGIONS", "CPUS", "SSD_TOTAL_GB"])
def test_insert_beyond_the_quota_is_refused(
    google: Google, emulator: ComputeEmulator, metric: str
) -> None:
    emulator.quotas.set(metric, 0)
    failed = google.insert()
    assert error_of(failed) == (403, "QUOTA_EXCEEDED")
    assert (
        failed.error.errors[0].error_details[0].quota_info.metric_name
        == f"compute.googleapis.com/{metric.lower()}"
    )
    assert emulator.instances(PROJECT) == []


def test_regional_quota_applies_to_its_region(google: Google, emulator: ComputeEmulator) -> None:
    emulator.quotas.set("NVIDIA_T4_GPUS", 0, "us-central1")
    assert error_of(google.insert()) == (403, "QUOTA_EXCEEDED")
    assert error_of(google.insert(gpu_vm(zone="us-east1-c"), "us-east1-c")) == (0, "")
    assert limit(emulator, "NVIDIA_T4_GPUS") == (0, 0)
    assert limit(emulator, "NVIDIA_T4_GPUS", "us-east1") == (16, 1)


def test_stopped_vm_frees_gpu_quota_but_not_disk_quota(
    google: Google, emulator: ComputeEmulator
) -> None:
    emulator.quotas.set("NVIDIA_T4_GPUS", 1)
    google.insert()
    assert error_of(google.insert(gpu_vm("other"))) == (403, "QUOTA_EXCEEDED")
    google.call("stop")
    assert limit(emulator, "NVIDIA_T4_GPUS") == (1, 0)
    assert limit(emulator, "SSD_TOTAL_GB")[1] == 50
    google.insert(gpu_vm("other"))
    assert error_of(google.call("start")) == (403, "QUOTA_EXCEEDED")
    assert google.status() == "TERMINATED"


def test_emulator_counts_spot_as_preemptible_once_granted(
    google: Google, emulator: ComputeEmulator
) -> None:
    google.insert(gpu_vm(scheduling=SPOT))
    assert (
        limit(emulator, "PREEMPTIBLE_NVIDIA_T4_GPUS")[1],
        limit(emulator, "NVIDIA_T4_GPUS")[1],
    ) == (1, 0)
    emulator.quotas.set("PREEMPTIBLE_NVIDIA_T4_GPUS", 0)
    assert (
        limit(emulator, "PREEMPTIBLE_NVIDIA_T4_GPUS")[1],
        limit(emulator, "NVIDIA_T4_GPUS")[1],
    ) == (0, 1)


def test_newer_gpus_have_no_quota_metric(google: Google, emulator: ComputeEmulator) -> None:
    google.insert(
        gpu_vm(
            machineType=f"zones/{ZONE}/machineTypes/a3-highgpu-1g",
            guestAccelerators=[],
            scheduling=SPOT,
        )
    )
    assert limit(emulator, "PREEMPTIBLE_NVIDIA_H100_GPUS")[1] == 1
    assert "NVIDIA_H100_GPUS" not in {
        row["metric"] for row in get(emulator, f"projects/{PROJECT}/regions/us-central1")["quotas"]
    }


def test_lifted_quotas_are_large_and_unknown_metric_is_refused(emulator: ComputeEmulator) -> None:
    emulator.quotas.lift()
    assert limit(emulator, "NVIDIA_L4_GPUS")[0] == 1e9
    with pytest.raises(ValueError, match="NVIDIA_H100_GPUS"):
        emulator.quotas.set("NVIDIA_H100_GPUS", 1)


def test_hosts_see_project_metadata(
    google: Google, emulator: ComputeEmulator, hosts: NullBackend
) -> None:
    emulator.project_metadata["enable-oslogin"] = "TRUE"
    items = google.client("Projects").get(project=PROJECT).common_instance_metadata.items
    assert {item.key: item.value for item in items} == {"enable-oslogin": "TRUE"}
    google.insert(gpu_vm(metadata={"items": [{"key": "a", "value": "b"}]}))
    assert hosts.boots[-1][0] == {"enable-oslogin": "TRUE", "a": "b"}


# --- reservations ---------------------------------------------------------------------------------


def reserve(
    google: Google, name: str = "mine", count: int = 1, machine_type: str = "n1-standard-8"
) -> None:
    accelerators = [
        compute_v1.AcceleratorConfig(accelerator_type="nvidia-tesla-t4", accelerator_count=1)
    ]
    shape = compute_v1.AllocationSpecificSKUAllocationReservedInstanceProperties(
        machine_type=machine_type, guest_accelerators=accelerators
    )
    specific = compute_v1.AllocationSpecificSKUReservation(count=count, instance_properties=shape)
    resource = compute_v1.Reservation(
        name=name, specific_reservation=specific, specific_reservation_required=True
    )
    google.done(
        google.client("Reservations").insert_unary(
            project=PROJECT, zone=ZONE, reservation_resource=resource
        )
    )


def on_reservation(
    name: str, vm: str = "dev", key: str = "compute.googleapis.com/reservation-name"
) -> Body:
    return gpu_vm(
        vm,
        reservationAffinity={
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": key,
            "values": [name],
        },
    )


def test_reservation_is_consumed_by_instances_that_name_it(google: Google) -> None:
    reserve(google)
    google.insert(gpu_vm("other"))
    google.insert(on_reservation("mine"))
    (found,) = google.client("Reservations").list(project=PROJECT, zone=ZONE)
    one = google.client("Reservations").get(project=PROJECT, zone=ZONE, reservation="mine")
    assert (found.name, one.specific_reservation.count, one.specific_reservation.in_use_count) == (
        "mine",
        1,
        1,
    )
    assert error_of(google.insert(on_reservation("mine", "second"))) == (
        400,
        "RESERVATION_CAPACITY_EXCEEDED",
    )
    google.call("delete")
    assert error_of(google.insert(on_reservation("mine", "second"))) == (0, "")
    google.done(
        google.client("Reservations").delete_unary(project=PROJECT, zone=ZONE, reservation="mine")
    )
    assert not any(
        scope.reservations
        for _, scope in google.client("Reservations").aggregated_list(project=PROJECT)
    )


def test_reservation_of_another_shape_is_refused(google: Google) -> None:
    reserve(google, machine_type="n1-standard-4")
    assert error_of(google.insert(on_reservation("mine"))) == (400, "INVALID_USAGE")


@pytest.mark.parametrize(
    "body", [on_reservation("none"), on_reservation("none", key="name")], ids=["unknown", "key"]
)
def test_unknown_reservation_is_refused(free_emulator: ComputeEmulator, body: Body) -> None:
    answer = send(free_emulator, "POST", f"{ZONE_PATH}/instances", body)
    assert (answer.status_code, answer.json()["error"]["errors"][0]["reason"]) == (400, "invalid")


def test_snapshot_restores_disks_reservations_and_metadata(
    google: Google, emulator: ComputeEmulator, hosts: NullBackend, clock: SimulatedClock
) -> None:
    google.insert(gpu_vm(disks=[{**gpu_vm()["disks"][0], "autoDelete": False}]))
    reserve(google)
    emulator.project_metadata["enable-oslogin"] = "TRUE"
    saved = emulator.snapshot()
    with ComputeEmulator(hosts, clock=clock) as second:
        second.restore(saved)
        assert second.snapshot() == saved
        assert disks(second) == ["dev"]
