"""Scripted faults: which calls they hit, and what Google's client reports."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.cloud import compute_v1

from provision.cloud.api.gce import GceCloud
from provision.testing.compute import METHODS, ComputeEmulator, SimulatedClock
from provision.testing.compute.fault_scripts import FAULTS, read
from tests.emulator.google_client import PROJECT, ZONE, Google, error_of, get, gpu_vm

Row = Mapping[str, Any]
STOCK_OUT = "ZONE_RESOURCE_POOL_EXHAUSTED"


def names(emulator: ComputeEmulator) -> list[str]:
    return [vm["name"] for vm in emulator.instances(PROJECT)]


# --- operations that end badly --------------------------------------------------------------------


OPERATIONS: dict[str, tuple[Row, tuple[int, str]]] = {
    "stock-out with details": ({"fault": "stock_out"}, (503, f"{STOCK_OUT}_WITH_DETAILS")),
    "stock-out": ({"fault": "stock_out", "with_details": False}, (503, STOCK_OUT)),
    "stock-out without HTTP code": (
        {"fault": "stock_out", "with_details": False, "silent": True},
        (0, STOCK_OUT),
    ),
    "quota": ({"fault": "quota"}, (403, "QUOTA_EXCEEDED")),
    "quota without HTTP code": ({"fault": "quota", "silent": True}, (0, "QUOTA_EXCEEDED")),
    "anything": (
        {"fault": "operation", "code": "UNSUPPORTED_OPERATION", "http_status": 400},
        (400, "UNSUPPORTED_OPERATION"),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_fault_fails_operation(
    google: Google, emulator: ComputeEmulator, name: str
) -> None:
    row, error = OPERATIONS[name]
    emulator.script(row)
    assert error_of(google.insert()) == error
    assert names(emulator) == []


def test_stock_out_lists_available_zones(google: Google, emulator: ComputeEmulator) -> None:
    emulator.script(
        {"zone": "us-*", "fault": "stock_out", "available": ["us-west1-b", "us-east1-c"]}
    )
    error = google.insert().error.errors[0]
    assert f"The zone '{ZONE}' does not have enough resources" in error.message
    metadata = error.error_details[0].error_info.metadatas
    assert (metadata["zone"], metadata["vmType"], metadata["zonesAvailable"]) == (
        ZONE,
        "n1-standard-8",
        "us-west1-b,us-east1-c",
    )


def test_stock_out_without_details_lists_no_zones(
    google: Google, emulator: ComputeEmulator
) -> None:
    emulator.script({"fault": "stock_out"})
    assert (
        google.insert().error.errors[0].error_details[0].error_info.metadatas["zonesAvailable"]
        == ""
    )


def test_quota_fault_names_region(google: Google, emulator: ComputeEmulator) -> None:
    emulator.script(
        [
            {"fault": "quota", "metric": "NVIDIA_T4_GPUS", "nth": 1},
            {"fault": "quota", "metric": "GPUS_ALL_REGIONS"},
        ]
    )
    regional, everywhere = (google.insert().error.errors[0] for _ in range(2))
    assert regional.error_details[0].quota_info.dimensions == {"region": "us-central1"}
    assert (regional.message[-22:], everywhere.message[-9:]) == (
        "in region us-central1.",
        "Globally.",
    )


@pytest.mark.parametrize(("word", "left"), [("leaves_vm", ["dev"]), ("leaves_disk", [])])
def test_failed_insert_can_leave_vm_or_disk(
    google: Google, emulator: ComputeEmulator, word: str, left: list[str]
) -> None:
    emulator.script({"fault": "stock_out", word: True})
    google.insert()
    assert names(emulator) == left
    assert [disk["name"] for disk in emulator.disks(PROJECT)] == ["dev"]


# --- operations that take long --------------------------------------------------------------------


def test_slow_fault_delays_operation(
    google: Google, emulator: ComputeEmulator, clock: SimulatedClock
) -> None:
    emulator.script({"fault": "slow", "seconds": 90})
    began = clock.now()
    google.insert()
    assert clock.now() - began == pytest.approx(90)


def test_never_fault_keeps_operation_running(
    google: Google, emulator: ComputeEmulator, clock: SimulatedClock
) -> None:
    emulator.script({"fault": "never"})
    operation = google.client("Instances").insert_unary(
        project=PROJECT,
        zone=ZONE,
        instance_resource=compute_v1.Instance.from_json(json.dumps(gpu_vm())),
    )
    clock.advance(1e6)
    found = google.client("ZoneOperations").get(
        project=PROJECT, zone=ZONE, operation=operation.name
    )
    assert found.status == compute_v1.Operation.Status.RUNNING
    assert google.status() == "STAGING"


# --- answers that go wrong ------------------------------------------------------------------------

LOST = requests.exceptions.ConnectionError
ANSWERS: dict[str, tuple[Row, type[Exception], list[str]]] = {
    "rate limit": ({"fault": "rate_limit"}, exceptions.Forbidden, []),
    "rate limit 429": ({"fault": "rate_limit", "http_status": 429}, exceptions.TooManyRequests, []),
    "503": ({"fault": "http", "http_status": 503}, exceptions.ServiceUnavailable, []),
    "500": ({"fault": "http", "http_status": 500}, exceptions.InternalServerError, []),
    "HTML 502": ({"fault": "html_502"}, exceptions.BadGateway, []),
    "reset before": ({"fault": "reset_before"}, LOST, []),
    "reset after": ({"fault": "reset_after"}, LOST, ["dev"]),
    "no answer, no effect": ({"fault": "mute_before"}, requests.exceptions.ReadTimeout, []),
    "no answer": ({"fault": "mute_after"}, requests.exceptions.ReadTimeout, ["dev"]),
    "malformed": ({"fault": "malformed"}, Exception, ["dev"]),
    "malformed, no effect": ({"fault": "malformed", "before": True}, Exception, []),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_reply_fault_breaks_reply(google: Google, emulator: ComputeEmulator, name: str) -> None:
    row, error, left = ANSWERS[name]
    emulator.script({**row, "nth": 1})
    resource = compute_v1.Instance.from_json(json.dumps(gpu_vm()))
    with pytest.raises(error):
        google.client("Instances").insert_unary(
            project=PROJECT, zone=ZONE, instance_resource=resource, timeout=0.5
        )
    assert names(emulator) == left


def test_stale_fault_is_412(google: Google, emulator: ComputeEmulator) -> None:
    google.insert()
    emulator.script({"call": "instances.setLabels", "fault": "stale"})
    change = compute_v1.InstancesSetLabelsRequest(label_fingerprint=google.vm().label_fingerprint)
    with pytest.raises(exceptions.PreconditionFailed, match="fingerprint"):
        google.call("set_labels", instances_set_labels_request_resource=change)


def test_stop_ends_mute_connections(google: Google, free_emulator: ComputeEmulator) -> None:
    """`stop` does not wait for clients that wait for a reply."""
    free_emulator.script({"call": "zones.list", "fault": "mute_before"})
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.get(f"{free_emulator.endpoint}/compute/v1/projects/{PROJECT}/zones", timeout=0.2)


# --- the API of tomorrow --------------------------------------------------------------------------


def test_future_fault_adds_unknown_fields(
    google: Google, emulator: ComputeEmulator, cloud: GceCloud
) -> None:
    """Google's client and this one accept the fields and values of a later API."""
    google.insert()
    emulator.script(
        {"call": "instances.get", "fault": "future", "fields": {"status": "HIBERNATING"}}
    )
    emulator.script({"call": "*List", "fault": "future"})
    assert get(emulator, f"projects/{PROJECT}/zones/{ZONE}/instances/dev")["disks"][0][
        "fieldOfTomorrow"
    ] == {"value": 1}
    assert google.status() == "HIBERNATING"
    found = cloud.get("dev", ZONE)
    assert found is not None
    assert (found.status, [vm.name for vm in cloud.list({})]) == ("HIBERNATING", ["dev"])


# --- lists ----------------------------------------------------------------------------------------


def test_unreachable_zone_is_missing_in_aggregated_list(
    google: Google, emulator: ComputeEmulator
) -> None:
    for zone in (ZONE, "us-central1-b"):
        google.insert(gpu_vm(zone=zone), zone)
    emulator.script({"zone": "us-central1-a", "fault": "unreachable", "nth": 1})
    pager = google.client("Instances").aggregated_list(project=PROJECT)
    scopes = dict(pager)
    assert [vm.name for vm in scopes["zones/us-central1-b"].instances] == ["dev"]
    assert (scopes[f"zones/{ZONE}"].warning.code, list(scopes[f"zones/{ZONE}"].instances)) == (
        "UNREACHABLE",
        [],
    )
    assert list(pager.unreachables) == [f"zones/{ZONE}"]
    assert [
        vm["name"]
        for vm in get(emulator, f"projects/{PROJECT}/aggregated/instances")["items"][
            f"zones/{ZONE}"
        ]["instances"]
    ] == ["dev"]


# --- where and when -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nth", "hit"),
    [(None, [1, 2, 3, 4, 5]), (1, [1]), (3, [3]), ("2", [2]), ("2-4", [2, 3, 4]), ("4+", [4, 5])],
)
def test_nth_selects_calls(free_emulator: ComputeEmulator, nth: Any, hit: list[int]) -> None:
    row = {"call": "zones.list", "fault": "http", "http_status": 503}
    free_emulator.script({**row, "nth": nth} if nth else row)
    path = f"{free_emulator.endpoint}/compute/v1/projects/{PROJECT}/zones"
    assert [
        number for number in range(1, 6) if requests.get(path, timeout=10).status_code == 503
    ] == hit


def test_each_rule_counts_its_matching_calls(free_emulator: ComputeEmulator) -> None:
    rule = {"call": "zones.list", "fault": "http"}
    free_emulator.script(
        [{**rule, "nth": n, "http_status": status} for n, status in ((3, 500), (1, 503), (2, 429))]
    )
    path = f"{free_emulator.endpoint}/compute/v1/projects/{PROJECT}/zones"
    assert [requests.get(path, timeout=10).status_code for _ in range(4)] == [503, 429, 500, 200]


def test_fault_matches_zone_call_and_name(google: Google, emulator: ComputeEmulator) -> None:
    emulator.script(
        {"zone": "us-central1-*", "call": "instances.insert", "name": "dev-?", "fault": "stock_out"}
    )
    results = [
        error_of(google.insert(gpu_vm(name, zone), zone))[0]
        for name, zone in (("dev-1", ZONE), ("dev", ZONE), ("dev-1", "us-east1-c"))
    ]
    assert results == [503, 0, 0]


WRONG: dict[str, tuple[Any, str]] = {
    "no fault": ({}, "unknown fault: 'None'"),
    "unknown fault": ({"fault": "earthquake"}, "known: stock_out, quota"),
    "unknown call": (
        {"fault": "never", "call": "instances.insrt"},
        "unknown method: 'instances.insrt'",
    ),
    "unknown word": (
        {"fault": "never", "colour": "red"},
        "fault 'never' with colour: its keys are fault, zone, call, name, nth",
    ),
    "missing word": (
        {"fault": "slow"},
        "fault 'slow' with no keys of its own: its keys are fault, zone, call, name, nth, seconds",
    ),
    "not nth": ({"fault": "never", "nth": "0"}, "nth is a number"),
    "backwards": ({"fault": "never", "nth": "3-2"}, "nth is a number"),
    "no mapping": (["never"], "a fault is a mapping, not 'never'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_fault_row_is_refused(free_emulator: ComputeEmulator, name: str) -> None:
    row, words = WRONG[name]
    with pytest.raises(ValueError, match=r"\w") as caught:
        free_emulator.script(row)
    assert words in str(caught.value)
    answer = requests.post(
        f"{free_emulator.endpoint}/emulator/faults", json=row or [{}], timeout=10
    )
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (400, True)
    assert free_emulator.faults.armed() == []


def test_every_fault_is_tested() -> None:
    rows = [row for row, _ in OPERATIONS.values()] + [row for row, _, _ in ANSWERS.values()]
    elsewhere = {"slow", "never", "stale", "unreachable", "hang", "future"}
    assert {str(row["fault"]) for row in rows} | elsewhere == set(FAULTS)
    assert read({"fault": "hang", "seconds": 5})[0].seconds == 5


def test_every_fault_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "mock.md").read_text(encoding="utf-8")
    words = {word for make in FAULTS.values() for word in inspect.signature(make).parameters}
    assert sorted(word for word in {*FAULTS, *words} if f"`{word}`" not in page) == []
    assert sorted(method for method in METHODS if f"`{method.partition('.')[0]}`" not in page) == []


# --- the control API ------------------------------------------------------------------------------


def door(emulator: ComputeEmulator, verb: str, path: str, body: Any = None) -> requests.Response:
    return requests.request(verb, f"{emulator.endpoint}/emulator/{path}", json=body, timeout=10)


def test_control_api_adds_and_clears_faults(google: Google, emulator: ComputeEmulator) -> None:
    row = {"zone": ZONE, "call": "instances.insert", "nth": 1, "fault": "stock_out"}
    assert door(emulator, "POST", "faults", row).status_code == 200
    assert error_of(google.insert())[0] == 503
    (shown,) = door(emulator, "GET", "faults").json()["faults"]
    assert shown == {**row, "seen": 1, "hits": 1}
    assert error_of(google.insert())[0] == 0
    assert door(emulator, "DELETE", "faults").json() == {"faults": []}
    assert {call.path.partition("/compute/v1/")[1] for call in emulator.calls} == {
        "/compute/v1/"
    }, "a control request is not a call of the API"


def test_control_api_sets_time_quotas_metadata_and_events(
    google: Google, emulator: ComputeEmulator
) -> None:
    limited = {"maxRunDuration": {"seconds": "3600"}, "instanceTerminationAction": "STOP"}
    google.insert(gpu_vm(scheduling={**gpu_vm()["scheduling"], **limited}))
    assert (
        door(emulator, "POST", "clock", {"advance_s": 3600}).json()["now"] == emulator.clock.now()
    )
    assert google.status() == "TERMINATED"
    door(
        emulator,
        "POST",
        "quotas",
        {"metric": "NVIDIA_T4_GPUS", "limit": 0, "region": "us-central1"},
    )
    assert error_of(google.call("start")) == (403, "QUOTA_EXCEEDED")
    door(emulator, "POST", "quotas", {"metric": "NVIDIA_T4_GPUS", "limit": 1})
    google.call("start")
    door(emulator, "POST", "events", {"event": "guest_stopped", "zone": ZONE, "name": "dev"})
    assert google.status() == "TERMINATED"
    door(emulator, "POST", "metadata", {"enable-oslogin": "TRUE"})
    assert emulator.project_metadata == {"enable-oslogin": "TRUE"}
    calls = door(emulator, "GET", "calls").json()["calls"]
    assert [call["api"] for call in calls] == emulator.call_ids()


@pytest.mark.parametrize(
    ("verb", "path", "body", "status"),
    [
        ("GET", "nothing", None, 404),
        ("POST", "clock", {"advance_s": -1}, 400),
        ("POST", "clock", {}, 400),
        ("POST", "clock", None, 400),
        ("POST", "quotas", {"metric": "CPUS", "limit": "many"}, 400),
        ("POST", "events", {"event": "flood", "zone": ZONE, "name": "dev"}, 400),
        ("POST", "events", {"event": "preempt", "zone": ZONE, "name": "dev"}, 400),
    ],
)
def test_control_api_refuses_bad_requests(
    free_emulator: ComputeEmulator, verb: str, path: str, body: Any, status: int
) -> None:
    answer = door(free_emulator, verb, path, body)
    assert (answer.status_code, bool(answer.json()["error"]["message"])) == (status, True)
