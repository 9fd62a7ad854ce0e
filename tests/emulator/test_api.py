"""The emulator as others see it: the unmodified clients of Google, time, state, lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from google.api_core.exceptions import NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from provision.cloud.api.request_bodies import insert_body
from provision.core.model import VmSpec
from provision.testing.compute import (
    Catalogue,
    ComputeEmulator,
    Fault,
    FaultKind,
    NullBackend,
    SimulatedClock,
    silent,
    stock_out,
)

ZONE = "us-central1-a"
IMAGE = "projects/cos-cloud/global/images/cos-125-19216-655-28"
MakeSpec = Callable[..., VmSpec]


def client(kind: Any, emulator: ComputeEmulator) -> Any:
    return kind(
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        client_options={"api_endpoint": emulator.endpoint},
    )


@pytest.fixture
def instances(emulator: ComputeEmulator) -> Iterator[Any]:
    made = client(compute_v1.InstancesClient, emulator)
    yield made
    made.transport.close()


@pytest.fixture
def operations(emulator: ComputeEmulator) -> Iterator[Any]:
    made = client(compute_v1.ZoneOperationsClient, emulator)
    yield made
    made.transport.close()


def resource(spec: VmSpec, zone: str = ZONE) -> Any:
    return compute_v1.Instance.from_json(json.dumps(insert_body(spec, zone, source_image=IMAGE)))


def insert(instances: Any, spec: VmSpec, zone: str = ZONE) -> Any:
    return instances.insert_unary(project="demo", zone=zone, instance_resource=resource(spec, zone))


def get_json(emulator: ComputeEmulator, path: str, **query: Any) -> dict[str, Any]:
    answer = requests.get(f"{emulator.endpoint}/compute/v1/{path}", params=query, timeout=10)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


# --- the trap that our adapter avoids, shown ------------------------------------------------------


def test_client_library_polls_public_endpoint(instances: Any, make_spec: MakeSpec) -> None:
    """`insert()` polls the public endpoint instead of the given one, so the client avoids it."""
    operation = instances.insert(project="demo", zone=ZONE, instance_resource=resource(make_spec()))
    with pytest.raises(Exception, match=r"compute\.googleapis\.com|www\.googleapis\.com"):
        operation.result(timeout=5)


def test_client_library_takes_error_without_code_for_success(
    emulator: ComputeEmulator, instances: Any, make_spec: MakeSpec
) -> None:
    """Even with a corrected operations client `result()` raises nothing, so we read the errors."""
    emulator.faults.add(silent(stock_out(ZONE)))
    instances.transport._extended_operations_services["zone_operations"] = client(
        compute_v1.ZoneOperationsClient, emulator
    )
    operation = instances.insert(project="demo", zone=ZONE, instance_resource=resource(make_spec()))
    assert operation.result(timeout=5) is None
    instances.transport._extended_operations_services["zone_operations"].transport.close()
    assert emulator.instances("demo") == []


# --- operations and instances over time -----------------------------------------------------------


def test_operation_is_pending_then_running_then_done(
    clock: SimulatedClock, make_spec: MakeSpec
) -> None:
    with ComputeEmulator(NullBackend(), clock=clock, operation_s=100) as emulator:
        instances, operations = (
            client(compute_v1.InstancesClient, emulator),
            client(compute_v1.ZoneOperationsClient, emulator),
        )
        operation = insert(instances, make_spec())

        def look() -> tuple[str, str]:
            seen = operations.get(project="demo", zone=ZONE, operation=operation.name)
            return seen.status.name, instances.get(project="demo", zone=ZONE, instance="dev").status

        seen = [look()]
        for _ in range(2):
            clock.advance(50)
            seen.append(look())
        assert seen == [("PENDING", "PROVISIONING"), ("RUNNING", "STAGING"), ("DONE", "RUNNING")]
        instances.transport.close()
        operations.transport.close()


def test_operation_wait_returns_after_two_minutes(
    emulator: ComputeEmulator,
    clock: SimulatedClock,
    instances: Any,
    operations: Any,
    make_spec: MakeSpec,
) -> None:
    emulator.faults.add(Fault(kind=FaultKind.NEVER))
    operation = insert(instances, make_spec())
    began = clock.now()
    assert (
        operations.wait(project="demo", zone=ZONE, operation=operation.name).status.name
        == "RUNNING"
    )
    assert clock.now() - began == pytest.approx(120)


def test_failed_boot_fails_insert(clock: SimulatedClock, make_spec: MakeSpec) -> None:
    class Broken(NullBackend):
        def boot(
            self, name: str, zone: str, metadata: dict[str, str], gpu: str | None, gpu_count: int
        ) -> tuple[str, int]:
            raise OSError("no port left")

    with ComputeEmulator(Broken(), clock=clock) as emulator:
        instances, operations = (
            client(compute_v1.InstancesClient, emulator),
            client(compute_v1.ZoneOperationsClient, emulator),
        )
        done = operations.wait(
            project="demo", zone=ZONE, operation=insert(instances, make_spec()).name
        )
        assert (done.error.errors[0].code, done.http_error_status_code) == ("INTERNAL_ERROR", 500)
        assert "no port left" in done.error.errors[0].message
        assert emulator.instances("demo") == []
        instances.transport.close()
        operations.transport.close()


def test_failed_restart_keeps_disk(clock: SimulatedClock, make_spec: MakeSpec) -> None:
    class Once(NullBackend):
        def boot(
            self, name: str, zone: str, metadata: dict[str, str], gpu: str | None, gpu_count: int
        ) -> tuple[str, int]:
            if self.boots:
                raise OSError("no port left")
            return super().boot(name, zone, metadata, gpu, gpu_count)

    with ComputeEmulator(Once(), clock=clock) as emulator:
        instances = client(compute_v1.InstancesClient, emulator)
        insert(instances, make_spec())
        emulator.tick()
        for change in (instances.stop_unary, instances.start_unary):
            change(project="demo", zone=ZONE, instance="dev")
        assert [vm["status"] for vm in emulator.instances("demo")] == ["TERMINATED"]
        instances.transport.close()


def test_reset_reboots_and_keeps_state(
    instances: Any, emulator: ComputeEmulator, hosts: NullBackend, make_spec: MakeSpec
) -> None:
    insert(instances, make_spec())
    before = instances.get(project="demo", zone=ZONE, instance="dev")
    instances.reset_unary(project="demo", zone=ZONE, instance="dev")
    after = instances.get(project="demo", zone=ZONE, instance="dev")
    assert (after.id, after.status) == (before.id, "RUNNING")
    assert [event for event, _, _ in hosts.events] == ["boot", "halt", "boot"]


def test_stop_destroys_hosts(hosts: NullBackend, make_spec: MakeSpec) -> None:
    with ComputeEmulator(hosts) as emulator:
        instances = client(compute_v1.InstancesClient, emulator)
        insert(instances, make_spec())
        emulator.tick()
        instances.transport.close()
    assert hosts.events == [("boot", "dev", ZONE), ("destroy", "dev", ZONE)]


def test_restore_boots_saved_instances(
    clock: SimulatedClock, hosts: NullBackend, make_spec: MakeSpec
) -> None:
    first = ComputeEmulator(hosts, clock=clock).start()
    instances = client(compute_v1.InstancesClient, first)
    for name in ("on", "off"):
        insert(instances, make_spec(name=name, ttl_s=3600))
    first.tick()
    instances.stop_unary(project="demo", zone=ZONE, instance="off")
    first.tick()
    first.print_serial("on", ZONE, "ünï")
    saved = json.loads(json.dumps(first.snapshot()))
    instances.transport.close()
    first.stop(keep=True)
    assert hosts.events[-1] == ("halt", "on", ZONE)
    assert "destroy" not in {event for event, _, _ in hosts.events}

    with ComputeEmulator(hosts, clock=clock) as second:
        second.restore(saved)
        assert {vm["name"]: vm["status"] for vm in second.instances("demo")} == {
            "on": "RUNNING",
            "off": "TERMINATED",
        }
        assert second.snapshot() == saved
        clock.advance(3600)
        assert {vm["status"] for vm in second.instances("demo")} == {"TERMINATED"}


# --- labels, metadata -----------------------------------------------------------------------------


def test_set_labels_needs_current_fingerprint(instances: Any, make_spec: MakeSpec) -> None:
    insert(instances, make_spec())
    vm = instances.get(project="demo", zone=ZONE, instance="dev")
    change = compute_v1.InstancesSetLabelsRequest(
        labels={"a": "b"}, label_fingerprint=vm.label_fingerprint
    )
    instances.set_labels_unary(
        project="demo", zone=ZONE, instance="dev", instances_set_labels_request_resource=change
    )
    assert dict(instances.get(project="demo", zone=ZONE, instance="dev").labels) == {"a": "b"}
    with pytest.raises(PreconditionFailed):
        instances.set_labels_unary(
            project="demo", zone=ZONE, instance="dev", instances_set_labels_request_resource=change
        )


def test_set_metadata_replaces_all_items(instances: Any, make_spec: MakeSpec) -> None:
    insert(instances, make_spec())
    vm = instances.get(project="demo", zone=ZONE, instance="dev")
    stale = compute_v1.Metadata(items=[compute_v1.Items(key="k", value="v")], fingerprint="AAAA")
    with pytest.raises(PreconditionFailed):
        instances.set_metadata_unary(
            project="demo", zone=ZONE, instance="dev", metadata_resource=stale
        )
    change = compute_v1.Metadata(
        items=[compute_v1.Items(key="k", value="v")], fingerprint=vm.metadata.fingerprint
    )
    instances.set_metadata_unary(
        project="demo", zone=ZONE, instance="dev", metadata_resource=change
    )
    after = instances.get(project="demo", zone=ZONE, instance="dev").metadata
    assert [(item.key, item.value) for item in after.items] == [("k", "v")]
    assert after.fingerprint != vm.metadata.fingerprint


def test_serial_port_keeps_last_megabyte(
    instances: Any, emulator: ComputeEmulator, make_spec: MakeSpec
) -> None:
    insert(instances, make_spec())
    emulator.print_serial("dev", ZONE, "x" * 1024 * 1024)
    emulator.print_serial("dev", ZONE, "the end")
    output = instances.get_serial_port_output(project="demo", zone=ZONE, instance="dev")
    assert (output.start, output.next_) == (7, 1024 * 1024 + 7)
    assert output.contents.endswith("xthe end")


def test_guest_attributes_are_read_by_key(
    instances: Any, emulator: ComputeEmulator, make_spec: MakeSpec
) -> None:
    insert(instances, make_spec())
    emulator.tick()
    emulator.publish("dev", ZONE, "hostkeys/ssh-ed25519", "AAAA")
    request = {"project": "demo", "zone": ZONE, "instance": "dev", "query_path": "hostkeys/"}
    found = instances.get_guest_attributes(request=request).query_value.items
    assert [(item.namespace, item.key, item.value) for item in found] == [
        ("hostkeys", "ssh-ed25519", "AAAA")
    ]
    with pytest.raises(NotFound, match="Guest Attribute"):
        instances.get_guest_attributes(request={**request, "query_path": "none/"})


# --- lists ----------------------------------------------------------------------------------------


def test_list_is_paged(instances: Any, emulator: ComputeEmulator, make_spec: MakeSpec) -> None:
    for number in range(5):
        insert(instances, make_spec(name=f"dev-{number}"))
    emulator.calls.clear()
    pager = instances.list(
        request=compute_v1.ListInstancesRequest(project="demo", zone=ZONE, max_results=2)
    )
    assert [vm.name for vm in pager] == [f"dev-{number}" for number in range(5)]
    assert len(emulator.calls) == 3


def test_list_can_be_ordered_by_creation_time(
    instances: Any, emulator: ComputeEmulator, clock: SimulatedClock, make_spec: MakeSpec
) -> None:
    for name in ("b", "c", "a"):
        insert(instances, make_spec(name=name))
        clock.advance(1)
    path = f"projects/demo/zones/{ZONE}/instances"
    orders = [
        get_json(emulator, path, orderBy=order)["items"]
        for order in ("name", "creationTimestamp desc")
    ]
    assert [[vm["name"] for vm in items] for items in orders] == [["a", "b", "c"], ["a", "c", "b"]]


def test_aggregated_list_has_empty_scopes(
    instances: Any, emulator: ComputeEmulator, make_spec: MakeSpec
) -> None:
    insert(instances, make_spec())
    items = get_json(emulator, "projects/demo/aggregated/instances")["items"]
    assert [vm["name"] for vm in items[f"zones/{ZONE}"]["instances"]] == ["dev"]
    assert items["zones/us-east1-b"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", ["a", "b"]),
        ("name=a", ["a"]),
        ('(labels.provision-owner="me") AND (status=RUNNING)', ["a", "b"]),
        ("labels.provision-owner=me name!=a", ["b"]),
        ("name=b*", ["b"]),
        ("labels.none=me", []),
    ],
)
def test_list_filter_selects_resources(
    instances: Any,
    emulator: ComputeEmulator,
    make_spec: MakeSpec,
    expression: str,
    names: list[str],
) -> None:
    for name in ("a", "b"):
        insert(instances, make_spec(name=name))
    found = get_json(emulator, f"projects/demo/zones/{ZONE}/instances", filter=expression)
    assert [vm["name"] for vm in found.get("items", [])] == names


@pytest.mark.parametrize(
    "query",
    [
        {"filter": "name > 3"},
        {"filter": "(name=a"},
        {"maxResults": "501"},
        {"pageToken": "?"},
        {"filter": "a OR b"},
        {"orderBy": "status"},
    ],
)
def test_invalid_list_parameter_is_refused(
    free_emulator: ComputeEmulator, query: dict[str, str]
) -> None:
    path = f"{free_emulator.endpoint}/compute/v1/projects/demo/zones/{ZONE}/instances"
    assert requests.get(path, params=query, timeout=10).status_code == 400


# --- the catalogue --------------------------------------------------------------------------------


def test_catalogue_resources_are_listed_and_found(emulator: ComputeEmulator) -> None:
    """A fixture validates all replies when the test ends."""
    zone = f"projects/demo/zones/{ZONE}"
    for path in (
        f"{zone}/machineTypes",
        f"{zone}/acceleratorTypes",
        "projects/demo/zones",
        "projects/demo/regions",
    ):
        listed = get_json(emulator, path)["items"]
        assert listed
        for item in (listed[0], listed[-1]):
            assert get_json(emulator, f"{path}/{item['name']}") == item
    assert {quota["metric"] for quota in get_json(emulator, "projects/demo")["quotas"]} >= {
        "GPUS_ALL_REGIONS",
        "CPUS_ALL_REGIONS",
    }


def test_machine_type_lists_bundled_gpus(emulator: ComputeEmulator) -> None:
    items = get_json(
        emulator,
        "projects/demo/aggregated/machineTypes",
        maxResults=500,
        filter="name=g2-standard-24",
    )["items"]
    machine = items[f"zones/{ZONE}"]["machineTypes"][0]
    assert machine["accelerators"] == [
        {"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 2}
    ]
    assert items["zones/us-central1-f"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"


def test_accelerator_types_depend_on_zone(emulator: ComputeEmulator) -> None:
    items = get_json(emulator, "projects/demo/aggregated/acceleratorTypes")["items"]
    assert [gpu["name"] for gpu in items["zones/us-west1-c"]["acceleratorTypes"]] == ["nvidia-l4"]


def test_image_is_found_by_name_and_family(emulator: ComputeEmulator) -> None:
    images = "projects/cos-cloud/global/images"
    assert get_json(emulator, f"{images}/family/cos-125-lts")["name"] == "cos-125-19216-655-28"
    assert (
        get_json(emulator, f"{images}/cos-125-19216-651-2")["deprecated"]["state"] == "DEPRECATED"
    )
    assert len(get_json(emulator, images)["items"]) == 6


def test_running_vms_use_quota(
    instances: Any, emulator: ComputeEmulator, make_spec: MakeSpec
) -> None:
    insert(instances, make_spec(gpu_count=2, machine_type="n1-standard-16"))
    region = {
        quota["metric"]: quota["usage"]
        for quota in get_json(emulator, "projects/demo/regions/us-central1")["quotas"]
    }
    assert (region["NVIDIA_T4_GPUS"], region["CPUS"]) == (2.0, 16.0)
    other = {
        quota["metric"]: quota["usage"]
        for quota in get_json(emulator, "projects/demo/regions/us-east1")["quotas"]
    }
    assert other["NVIDIA_T4_GPUS"] == 0.0


def test_emulator_uses_custom_catalogue(hosts: NullBackend) -> None:
    with ComputeEmulator(
        hosts, catalogue=Catalogue(zones={"moon-base1-a": ["nvidia-l4"]})
    ) as emulator:
        assert [zone["name"] for zone in get_json(emulator, "projects/demo/zones")["items"]] == [
            "moon-base1-a"
        ]


# --- time -----------------------------------------------------------------------------------------


def test_hang_fault_delays_reply(emulator: ComputeEmulator, clock: SimulatedClock) -> None:
    emulator.faults.add(Fault(kind=FaultKind.HANG, call="zones.list", seconds=30))
    began = clock.now()
    get_json(emulator, "projects/demo/zones")
    assert clock.now() - began == 30
