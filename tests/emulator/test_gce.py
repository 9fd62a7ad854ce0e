"""GceCloud over real HTTP: its requests, its retries, and the traps of the client library."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from uuid import uuid4

import pytest

from provision.cloud.api import client as client_module
from provision.cloud.api.gce import GceCloud
from provision.cloud.api.protocol import SerialOutput
from provision.cloud.lifecycle.vm_times import ttl_left_s
from provision.cloud.refusal import CONNECTION_LOST, TIMED_OUT, CloudRefused, QuotaRefused
from provision.core.errors import CloudAuthError, CloudError, CloudNotFound, SettingsError
from provision.core.model import Vm, VmSpec
from provision.testing.compute import (
    ComputeEmulator,
    Fault,
    FaultKind,
    NullBackend,
    SimulatedClock,
    html_502,
    http_error,
    quota,
    silent,
    stock_out,
)

ZONE = "us-central1-a"
MakeSpec = Callable[..., VmSpec]


def create(cloud: GceCloud, spec: VmSpec, zone: str = ZONE) -> Vm:
    return cloud.create(spec, zone, request_id=str(uuid4()))


# --- the way of a VM ------------------------------------------------------------------------------


def test_create_get_list_delete(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec, hosts: NullBackend
) -> None:
    vm = create(cloud, make_spec())
    assert (vm.name, vm.zone, vm.status, vm.machine_type, vm.gpu, vm.gpu_count) == (
        "dev",
        ZONE,
        "RUNNING",
        "n1-standard-8",
        "nvidia-tesla-t4",
        1,
    )
    assert vm.address == "127.0.0.1"
    assert vm.instance_id.isdigit()
    assert vm.image == "cos-125-19216-655-28"
    assert cloud.get("dev", ZONE) == vm
    assert cloud.list({"provision-owner": "me"}) == [vm]
    assert cloud.list({"provision-owner": "someone-else"}) == []
    assert cloud.delete("dev", ZONE, request_id=str(uuid4()))
    assert cloud.get("dev", ZONE) is None
    assert hosts.events == [("boot", "dev", ZONE), ("destroy", "dev", ZONE)]
    assert emulator.instances("demo") == []


def test_create_sends_four_requests_and_one_more_for_a_family(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    create(cloud, make_spec())
    assert emulator.call_ids() == [
        "images.getFromFamily",
        "instances.insert",
        "zoneOperations.wait",
        "instances.get",
    ]
    emulator.calls.clear()
    create(cloud, make_spec(name="other"))
    assert emulator.call_ids() == ["instances.insert", "zoneOperations.wait", "instances.get"]


def test_clock_difference_is_read_from_replies(
    emulator: ComputeEmulator,
    cloud: GceCloud,
    make_spec: MakeSpec,
    clock: SimulatedClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create(cloud, make_spec(ttl_s=8 * 3600))
    clock.sleep(3600)
    emulator.calls.clear()
    read = [cloud.get("dev", ZONE), *cloud.list({})]
    assert emulator.call_ids() == ["instances.get", "instances.aggregatedList"]
    for vm in read:
        assert vm is not None
        assert vm.ahead_s == pytest.approx(clock.now() - time.time(), abs=5)
        assert ttl_left_s(vm) == pytest.approx(7 * 3600, abs=5)
    monkeypatch.setattr(client_module, "time", SimpleNamespace(time=lambda: clock.now() + 2))
    assert [vm.ahead_s for vm in cloud.list({})] == [0.0], (
        "the duration of a request does not count as clock skew"
    )


def test_delete_of_missing_vm_returns_false(emulator: ComputeEmulator, cloud: GceCloud) -> None:
    assert not cloud.delete("dev", ZONE, request_id=str(uuid4()))
    assert emulator.call_ids() == ["instances.delete"]


def test_stop_and_start(cloud: GceCloud, make_spec: MakeSpec, hosts: NullBackend) -> None:
    before = create(cloud, make_spec())
    stopped = cloud.stop("dev", ZONE, request_id=str(uuid4()))
    assert (stopped.status, stopped.address) == ("TERMINATED", None)
    started = cloud.start("dev", ZONE, request_id=str(uuid4()))
    assert (started.status, started.instance_id) == ("RUNNING", before.instance_id)
    assert [event for event, _, _ in hosts.events] == ["boot", "halt", "boot"]


def test_list_returns_all_pages(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    for number in range(3):
        create(
            cloud,
            make_spec(name=f"dev-{number}"),
            zone=["us-central1-a", "us-east1-c", "europe-west4-a"][number],
        )
    emulator.calls.clear()
    vms = cloud.list({})
    assert [vm.name for vm in vms] == ["dev-2", "dev-0", "dev-1"]
    assert emulator.call_ids() == ["instances.aggregatedList"]


# --- what is sent ---------------------------------------------------------------------------------


def sent(emulator: ComputeEmulator) -> dict[str, object]:
    body = next(call.body for call in emulator.calls if call.api == "instances.insert")
    assert body is not None
    return body


def test_insert_body_of_an_n1_gpu_vm(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    create(cloud, make_spec(ttl_s=3600, gpu="t4", gpu_count=2, machine_type="n1-standard-16"))
    body = sent(emulator)
    assert body["machineType"] == f"zones/{ZONE}/machineTypes/n1-standard-16"
    assert body["guestAccelerators"] == [
        {"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 2}
    ]
    assert body["scheduling"] == {
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": True,
        "provisioningModel": "STANDARD",
        "maxRunDuration": {"seconds": "3600"},
        "instanceTerminationAction": "STOP",
    }
    labels = {"provision-owner": "me"}
    assert body["disks"] == [
        {
            "boot": True,
            "autoDelete": True,
            "initializeParams": {
                "sourceImage": "projects/cos-cloud/global/images/cos-125-19216-655-28",
                "diskSizeGb": "200",
                "diskType": f"zones/{ZONE}/diskTypes/pd-balanced",
                "labels": labels,
            },
        }
    ]
    assert body["labels"] == {**labels, "provision-image": "cos-125-19216-655-28"}
    assert body["serviceAccounts"] == [
        {"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
    ]
    assert body["networkInterfaces"] == [
        {
            "network": "global/networks/default",
            "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
        }
    ]


def test_bundled_gpu_has_no_accelerator_and_its_disk_type(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    vm = create(
        cloud,
        make_spec(gpu="rtx-pro-6000", machine_type="g4-standard-48", external_ip=False, ttl_s=None),
        zone="us-central1-b",
    )
    body = sent(emulator)
    assert "guestAccelerators" not in body
    assert f"{body['disks']}".count("diskTypes/hyperdisk-balanced") == 1
    assert body["networkInterfaces"] == [{"network": "global/networks/default"}]
    assert body["scheduling"] == {
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": True,
        "provisioningModel": "STANDARD",
    }
    assert (vm.gpu, vm.gpu_count, vm.address) == ("nvidia-rtx-pro-6000", 1, None)


def test_metadata_reaches_the_host(
    cloud: GceCloud, make_spec: MakeSpec, hosts: NullBackend
) -> None:
    metadata = {
        "ssh-keys": "dev:ssh-ed25519 AAAA dev",
        "user-data": "#cloud-config\n# ünï\n",
        "enable-guest-attributes": "TRUE",
    }
    vm = create(cloud, make_spec(metadata=metadata))
    assert hosts.boots == [(metadata, "nvidia-tesla-t4", 1)]
    assert vm.metadata == metadata


def test_invalid_shape_sends_no_request(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    with pytest.raises(SettingsError, match="too small"):
        create(cloud, make_spec(disk_gb=49))
    assert emulator.call_ids() == []


# --- images ---------------------------------------------------------------------------------------


def test_deprecated_image_works_by_name(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    assert create(cloud, make_spec(image="cos-125-19216-651-2")).image == "cos-125-19216-651-2"
    assert "images.getFromFamily" not in emulator.call_ids()


@pytest.mark.parametrize("family", ["cos-117-lts", "cos-300-lts"])
def test_family_without_active_images_is_not_found(
    cloud: GceCloud, make_spec: MakeSpec, family: str
) -> None:
    with pytest.raises(CloudNotFound, match="family"):
        create(cloud, make_spec(image=family))


# --- traps of the client library ------------------------------------------------------------------


def test_operations_are_polled_at_the_given_endpoint(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    """`InstancesClient.insert()` would poll compute.googleapis.com, which a test may not reach."""
    create(cloud, make_spec())
    assert "zoneOperations.wait" in emulator.call_ids()


def test_operation_error_without_http_code_is_raised(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec, hosts: NullBackend
) -> None:
    """`ExtendedOperation.result()` returns quietly here."""
    emulator.faults.add(silent(stock_out(ZONE)))
    with pytest.raises(CloudRefused) as caught:
        create(cloud, make_spec())
    assert caught.value.refusal.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert caught.value.refusal.http_status == 0
    assert [event for event, _, _ in hosts.events] == ["destroy"]


def test_details_of_an_operation_error_are_parsed(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    emulator.faults.add(
        stock_out(ZONE, available=["us-west1-b", "us-west1-a"]),
        quota("us-east1-c", metric="NVIDIA_T4_GPUS", region="us-east1"),
    )
    with pytest.raises(CloudRefused) as stock:
        create(cloud, make_spec())
    assert stock.value.refusal.zones_available == ("us-west1-b", "us-west1-a")
    with pytest.raises(QuotaRefused) as used:
        create(cloud, make_spec(), zone="us-east1-c")
    assert used.value.refusal.quota["limitName"] == "NVIDIA-T4-GPUS-per-project-region"
    assert "quotas?project=demo" in used.value.fix


PASSING = {
    "reset before": Fault(kind=FaultKind.RESET_BEFORE, times=2),
    "reset after": Fault(kind=FaultKind.RESET_AFTER, times=2),
    "500": http_error(500, "backendError", "Backend Error", times=2),
    "502 html": html_502(times=2),
    "503": http_error(503, "backendError", "Service unavailable", times=2),
    "429": http_error(429, "rateLimitExceeded", "Too many requests", times=2),
    "403 rate": http_error(403, "rateLimitExceeded", "Rate Limit Exceeded", times=2),
    "garbage after": Fault(kind=FaultKind.BODY_AFTER, text="{not json", times=2),
    "no operation after": Fault(kind=FaultKind.BODY_AFTER, text="{}", times=2),
    "half an operation after": Fault(
        kind=FaultKind.BODY_AFTER, text='{"kind": "compute#operation"}', times=2
    ),
}


@pytest.mark.parametrize("name", PASSING)
def test_temporary_errors_are_retried_under_one_request_id(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec, name: str
) -> None:
    """The client library retries no insert at all."""
    emulator.faults.add(PASSING[name])
    vm = create(cloud, make_spec())
    ids = [call.query["requestId"] for call in emulator.calls if call.api == "instances.insert"]
    assert (len(ids), len(set(ids))) == (3, 1)
    assert [instance["id"] for instance in emulator.instances("demo")] == [vm.instance_id]


@pytest.mark.parametrize("api", ["instances.get", "zoneOperations.wait", "images.getFromFamily"])
@pytest.mark.parametrize("name", ["reset before", "500", "502 html", "429", "no operation after"])
def test_reads_and_waits_are_retried(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec, api: str, name: str
) -> None:
    """The client library raises 429, 500 and 502 of a read at once, and every error of a wait."""
    fault = PASSING[name]
    emulator.faults.add(
        Fault(
            kind=fault.kind,
            call=api,
            times=2,
            http_status=fault.http_status,
            code=fault.code,
            message="",
            text=fault.text,
        )
    )
    assert create(cloud, make_spec()).status == "RUNNING"
    assert emulator.call_ids().count(api) == 3


@pytest.mark.parametrize("text", ["{}", "[]", '{"message": "hello"}'])
def test_empty_reply_is_not_an_empty_list(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec, text: str
) -> None:
    """Compute Engine's lists have their `kind`, empty ones too; the answer of a proxy has not."""
    create(cloud, make_spec())
    emulator.faults.add(
        Fault(kind=FaultKind.BODY, call="instances.aggregatedList", text=text, times=1)
    )
    assert [vm.name for vm in cloud.list({})] == ["dev"]
    emulator.faults.add(
        Fault(kind=FaultKind.BODY, call="instances.aggregatedList", text=text, times=None)
    )
    with pytest.raises(CloudRefused, match="not a Compute Engine reply"):
        cloud.list({})


def test_lasting_error_is_raised_after_the_last_attempt(
    emulator: ComputeEmulator, make_spec: MakeSpec
) -> None:
    emulator.faults.add(http_error(503, "backendError", "Backend Error", times=None))
    slept: list[float] = []
    cloud = GceCloud("demo", emulator.endpoint, sleep=slept.append, attempts=4)
    with pytest.raises(CloudError, match="was not created") as caught:
        create(cloud, make_spec())
    cloud.close()
    assert caught.value.why == "backendError: Backend Error"
    assert emulator.call_ids().count("instances.insert") == 4
    assert len(slept) == 3
    assert sorted(slept) == slept


def test_permanent_error_is_not_retried(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    emulator.faults.add(
        http_error(403, "forbidden", "Required 'compute.instances.create' permission", times=None)
    )
    with pytest.raises(CloudAuthError, match="permission"):
        create(cloud, make_spec())
    assert emulator.call_ids().count("instances.insert") == 1


def test_closed_port_raises_cloud_error(clock: SimulatedClock) -> None:
    """The client library lets `requests.ConnectionError` through."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        cloud = GceCloud("demo", f"http://127.0.0.1:{taken.getsockname()[1]}", sleep=clock.sleep)
        with pytest.raises(CloudRefused) as caught:
            cloud.get("dev", ZONE)
        cloud.close()
    assert caught.value.refusal.code == CONNECTION_LOST


def test_loopback_requests_bypass_proxies(
    emulator: ComputeEmulator, monkeypatch: pytest.MonkeyPatch, clock: SimulatedClock
) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    cloud = GceCloud("demo", emulator.endpoint, sleep=clock.sleep)
    assert cloud.get("dev", ZONE) is None
    cloud.close()


def test_missing_credentials_error_has_the_login_command() -> None:
    with pytest.raises(CloudAuthError) as caught:
        GceCloud("demo").get("dev", ZONE)
    assert caught.value.fix == "gcloud auth application-default login"


# --- time -----------------------------------------------------------------------------------------


def test_slow_operation_is_waited_for(clock: SimulatedClock, make_spec: MakeSpec) -> None:
    with ComputeEmulator(NullBackend(), clock=clock, operation_s={"insert": 300}) as emulator:
        cloud = GceCloud("demo", emulator.endpoint, now=clock.now, sleep=clock.sleep)
        began = clock.now()
        assert create(cloud, make_spec()).status == "RUNNING"
        cloud.close()
        assert 300 <= clock.now() - began < 301
        assert emulator.call_ids().count("zoneOperations.wait") == 3


def test_endless_operation_times_out(
    emulator: ComputeEmulator, clock: SimulatedClock, make_spec: MakeSpec
) -> None:
    emulator.faults.add(Fault(kind=FaultKind.NEVER))
    cloud = GceCloud(
        "demo", emulator.endpoint, now=clock.now, sleep=clock.sleep, operation_timeout_s=600
    )
    with pytest.raises(CloudRefused) as caught:
        create(cloud, make_spec())
    cloud.close()
    assert caught.value.refusal.code == TIMED_OUT
    assert "RUNNING after 600 s" in caught.value.why


def test_cloud_stops_the_vm_at_its_time_limit(
    cloud: GceCloud, clock: SimulatedClock, make_spec: MakeSpec, hosts: NullBackend
) -> None:
    create(cloud, make_spec(ttl_s=3600))
    assert [vm.ttl_s for vm in cloud.list({})] == [3600]
    clock.advance(3599)
    assert [vm.status for vm in cloud.list({})] == ["RUNNING"]
    clock.advance(1)
    assert [vm.status for vm in cloud.list({})] == ["TERMINATED"]
    assert hosts.events[-1] == ("halt", "dev", ZONE)


# --- names that are taken -------------------------------------------------------------------------


def test_create_returns_existing_vm_of_the_same_owner(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    first = create(cloud, make_spec())
    assert create(cloud, make_spec()) == first
    assert len(emulator.instances("demo")) == 1


def test_create_refuses_existing_vm_of_another_owner(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    first = create(cloud, make_spec(labels={"provision-owner": "you"}))
    with pytest.raises(CloudRefused, match="has another owner"):
        create(cloud, make_spec())
    assert cloud.get("dev", ZONE) == first


def test_create_waits_for_a_vm_that_is_being_made(
    clock: SimulatedClock, make_spec: MakeSpec
) -> None:
    with ComputeEmulator(NullBackend(), clock=clock, operation_s={"insert": 30}) as emulator:
        impatient = GceCloud(
            "demo", emulator.endpoint, now=clock.now, sleep=clock.sleep, operation_timeout_s=0
        )
        with pytest.raises(CloudRefused):
            create(impatient, make_spec())
        cloud = GceCloud("demo", emulator.endpoint, now=clock.now, sleep=clock.sleep)
        assert create(cloud, make_spec()).status == "RUNNING"
        impatient.close()
        cloud.close()


# --- looking into a VM ----------------------------------------------------------------------------


def test_serial_output_continues_from_the_last_byte(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    create(cloud, make_spec())
    emulator.print_serial("dev", ZONE, "booting\n")
    first = cloud.serial_output("dev", ZONE)
    assert first.text == "booting\n"
    emulator.print_serial("dev", ZONE, "ready\n")
    assert cloud.serial_output("dev", ZONE, start=first.next) == SerialOutput(
        "ready\n", first.next + 6
    )
    emulator.print_serial("dev", ZONE, 2**20 * "x")
    assert cloud.serial_output("dev", ZONE, start=first.next) == SerialOutput(
        2**20 * "x", first.next + 6 + 2**20, lost=6
    )


def test_guest_attributes_are_empty_until_published(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    create(cloud, make_spec())
    assert cloud.guest_attributes("dev", ZONE, "hostkeys/") == {}
    emulator.publish("dev", ZONE, "hostkeys/ssh-ed25519", "AAAAC3")
    assert cloud.guest_attributes("dev", ZONE, "hostkeys/") == {"ssh-ed25519": "AAAAC3"}


def test_guest_attributes_of_a_missing_vm_raise(cloud: GceCloud) -> None:
    with pytest.raises(CloudNotFound):
        cloud.guest_attributes("dev", ZONE, "hostkeys/")


def test_disabled_guest_attributes_raise(cloud: GceCloud, make_spec: MakeSpec) -> None:
    create(cloud, make_spec(metadata={}))
    with pytest.raises(CloudAuthError, match="disabled"):
        cloud.guest_attributes("dev", ZONE, "hostkeys/")


def test_ssh_port_is_that_of_the_mock_host(cloud: GceCloud, make_spec: MakeSpec) -> None:
    assert cloud.ssh_port(create(cloud, make_spec())) == 2222


def test_ssh_port_of_the_real_cloud_sends_no_request() -> None:
    vm = Vm(name="dev", zone=ZONE, status="RUNNING", machine_type="n1-standard-8")
    assert GceCloud("demo").ssh_port(vm) == 22


# --- what changes a VM that is there --------------------------------------------------------------


def test_reset_reboots_the_host_at_the_same_address(
    cloud: GceCloud, make_spec: MakeSpec, hosts: NullBackend
) -> None:
    before = create(cloud, make_spec())
    after = cloud.reset("dev", ZONE, request_id=str(uuid4()))
    assert (after.status, after.address, after.instance_id) == (
        "RUNNING",
        before.address,
        before.instance_id,
    )
    assert [event for event, _, _ in hosts.events] == ["boot", "halt", "boot"]


def test_set_labels_merges_labels(cloud: GceCloud, make_spec: MakeSpec) -> None:
    before = create(cloud, make_spec(labels={"provision-owner": "me", "run": "1", "old": "x"}))
    after = cloud.set_labels(
        "dev", ZONE, {"run": "2", "team": "ml"}, ["old", "never-there"], request_id=str(uuid4())
    )
    kept = {key: value for key, value in before.labels.items() if key not in {"run", "old"}}
    assert after.labels == {**kept, "run": "2", "team": "ml"}


def test_labels_changed_meanwhile_are_read_again(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    create(cloud, make_spec())
    emulator.calls.clear()
    emulator.faults.add(
        http_error(
            412, "conditionNotMet", "Labels fingerprint either invalid", call="instances.setLabels"
        )
    )
    after = cloud.set_labels("dev", ZONE, {"team": "ml"}, request_id=str(uuid4()))
    assert after.labels["team"] == "ml"
    assert emulator.call_ids() == [
        "instances.get", "instances.setLabels", "instances.get", "instances.setLabels",
        "zoneOperations.wait", "instances.get",
    ]  # fmt: skip
    ids = [call.query["requestId"] for call in emulator.calls if call.api == "instances.setLabels"]
    assert len(set(ids)) == 2


def test_set_labels_gives_up_when_labels_keep_changing(
    emulator: ComputeEmulator, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    create(cloud, make_spec())
    emulator.faults.add(
        http_error(412, "conditionNotMet", "changed", call="instances.setLabels", times=None)
    )
    with pytest.raises(CloudRefused, match="the labels were not set"):
        cloud.set_labels("dev", ZONE, {"team": "ml"}, request_id=str(uuid4()))
