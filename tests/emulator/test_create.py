"""Creating a VM over real HTTP: zone after zone, and nothing left behind after any failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.cloud.api.gce import GceCloud
from provision.cloud.lifecycle.context import CloudContext
from provision.cloud.lifecycle.create import create_vm, dry_run
from provision.cloud.lifecycle.delete import delete_vm, delete_vms_by_name
from provision.cloud.lifecycle.journal import GONE, INTENT, LEFT_BEHIND, MADE, UNSURE, Journal
from provision.cloud.lifecycle.zone_search import Attempt
from provision.cloud.refusal import CloudRefused, QuotaRefused
from provision.core.errors import (
    CleanupFailed,
    CloudAuthError,
    CloudError,
    NoCapacity,
    SettingsError,
)
from provision.core.model import Event, Note, Vm, VmSpec
from provision.testing.compute import (
    ComputeEmulator,
    Fault,
    FaultKind,
    NullBackend,
    SimulatedClock,
    http_error,
    quota,
    stock_out,
)

MakeSpec = Callable[..., VmSpec]
ZONES = ("us-central1-a", "us-central1-b", "us-east1-c", "us-west1-b", "europe-west4-a")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state" / "journal.jsonl", "demo")


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def context(cloud: GceCloud, journal: Journal, notes: list[str]) -> CloudContext:
    def emit(event: Event) -> None:
        assert isinstance(event, Note)
        notes.append(event.text)

    return CloudContext(cloud=cloud, journal=journal, emit=emit)


def zones_of(emulator: ComputeEmulator) -> list[str]:
    return [instance["zone"].rsplit("/", 1)[-1] for instance in emulator.instances("demo")]


# --- the first zone, and again --------------------------------------------------------------------


def test_create_uses_the_first_zone_with_capacity(
    emulator: ComputeEmulator, context: CloudContext, journal: Journal, make_spec: MakeSpec
) -> None:
    made = create_vm(context, make_spec(), ZONES)
    assert (made.changed, made.vm.zone, made.tried) == (
        True,
        "us-central1-a",
        (Attempt("us-central1-a", "created"),),
    )
    assert [(entry.state, entry.name, entry.zone) for entry in journal.open()] == [
        (MADE, "dev", "us-central1-a")
    ]
    insert = next(call for call in emulator.calls if call.api == "instances.insert")
    assert (
        made.vm.labels["provision-request"]
        == journal.open()[0].request_id
        == insert.query["requestId"]
    )
    assert emulator.call_ids() == [
        "instances.aggregatedList",
        "acceleratorTypes.aggregatedList",
        "projects.get",
        "regions.list",
        "images.getFromFamily",
        "instances.insert",
        "zoneOperations.wait",
        "instances.get",
    ]


def test_create_notes_plan_and_price_before_the_insert(
    context: CloudContext, make_spec: MakeSpec, notes: list[str]
) -> None:
    create_vm(context, make_spec(), ZONES)
    assert notes[:4] == [
        (
            "plan:  dev, n1-standard-8 + 1 x nvidia-tesla-t4, 200 GB pd-balanced, cos-125-lts, "
            "stopped after 8h"
        ),
        "zones: us-central1-a, us-central1-b, us-east1-c, us-west1-b and 1 more",
        "price: about $0.76 an hour, $6.06 in 8h, with its disk (us-central1, list of 2025-03-06)",
        "asking us-central1-a for n1-standard-8 + 1 x nvidia-tesla-t4",
    ]


# --- quotas ---------------------------------------------------------------------------------------


def test_create_skips_region_without_quota(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec, notes: list[str]
) -> None:
    emulator.quotas.set("NVIDIA_T4_GPUS", 0, "us-central1")
    made = create_vm(context, make_spec(), ZONES)
    why = "needs 1 of NVIDIA_T4_GPUS in us-central1, 0 left (limit 0, in use 0)"
    assert made.tried == (
        Attempt("us-central1-a", "quota", why),
        Attempt("us-central1-b", "quota", why),
        Attempt("us-east1-c", "created"),
    )
    assert notes.count(f"us-central1: quota: {why}") == 1
    assert [
        "/zones/us-east1-c/" in call.path
        for call in emulator.calls
        if call.api == "instances.insert"
    ] == [True]


@pytest.mark.parametrize(
    ("metric", "where"),
    [("GPUS_ALL_REGIONS", "over all regions"), ("NVIDIA_T4_GPUS", "in us-west1")],
)
def test_create_without_quota_inserts_nothing(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec, metric: str, where: str
) -> None:
    emulator.quotas.set(metric, 0)
    for attempt in (
        lambda: create_vm(context, make_spec(), ZONES),
        lambda: dry_run(context, [make_spec()], ZONES),
    ):
        with pytest.raises(QuotaRefused) as caught:
            attempt()
        assert (
            f"needs 1 of {metric} {where}, 0 left (limit 0, in use 0)"
            in caught.value.why.splitlines()
        )
        assert "quotas?project=demo" in caught.value.fix
    assert "instances.insert" not in emulator.call_ids()
    assert context.journal.open() == []


# --- several at once ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "limit", "room", "why"),
    [
        (
            "NVIDIA_T4_GPUS",
            2,
            2,
            "needs 4 of NVIDIA_T4_GPUS in us-central1, 2 left (limit 2, in use 0)",
        ),
        ("CPUS", 31, 3, "needs 32 of CPUS in us-central1, 31 left (limit 31, in use 0)"),
        (
            "SSD_TOTAL_GB",
            500,
            2,
            "needs 800 of SSD_TOTAL_GB in us-central1, 500 left (limit 500, in use 0)",
        ),
        (
            "IN_USE_ADDRESSES",
            1,
            1,
            "needs 4 of IN_USE_ADDRESSES in us-central1, 1 left (limit 1, in use 0)",
        ),
        (
            "GPUS_ALL_REGIONS",
            3,
            3,
            "needs 4 of GPUS_ALL_REGIONS over all regions, 3 left (limit 3, in use 0)",
        ),
    ],
)
def test_dry_run_needs_quota_for_all_vms(
    emulator: ComputeEmulator,
    context: CloudContext,
    make_spec: MakeSpec,
    *,
    metric: str,
    limit: int,
    room: int,
    why: str,
) -> None:
    emulator.quotas.set(metric, limit)
    specs = [make_spec(name=f"dev-{number}") for number in range(4)]
    with pytest.raises(QuotaRefused) as caught:
        dry_run(context, specs, ZONES[:2])
    assert (
        caught.value.what
        == "the quota has no room for 4 VMs of n1-standard-8 + 1 x nvidia-tesla-t4"
    )
    assert caught.value.why.splitlines() == [why, f"there is room for {room} of 4"]
    assert dry_run(context, specs[:room], ZONES[:2]).candidates.zones == ZONES[:2]
    assert "instances.insert" not in emulator.call_ids()


def test_dry_run_needs_preemptible_quota_for_all_spot_vms(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.quotas.set("PREEMPTIBLE_NVIDIA_T4_GPUS", 1)
    specs = [make_spec(name=name, provisioning_model="SPOT") for name in ("one", "two")]
    with pytest.raises(QuotaRefused, match="no room for 2 VMs") as caught:
        dry_run(context, specs, ZONES[:1])
    assert (
        "needs 2 of PREEMPTIBLE_NVIDIA_T4_GPUS in us-central1, 1 left (limit 1, in use 0)"
        in caught.value.why
    )


def test_vms_are_spread_over_regions_with_partial_quota(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec, notes: list[str]
) -> None:
    emulator.quotas.set("NVIDIA_T4_GPUS", 2, "us-central1")
    emulator.quotas.set("NVIDIA_T4_GPUS", 0, "us-west1")
    specs = [make_spec(name=f"dev-{number}") for number in range(4)]
    search = dry_run(context, specs, ZONES[:4])
    assert search.candidates.zones == ZONES[:3]
    assert [(attempt.zone, attempt.result) for attempt in search.tried] == [("us-west1-b", "quota")]
    some = "room for 2 of 4: needs 4 of NVIDIA_T4_GPUS in us-central1, 2 left (limit 2, in use 0)"
    assert f"us-central1: quota: {some}" in notes
    for spec in specs:
        create_vm(context, spec, ZONES[:4], search=search)
    assert sorted(zones_of(emulator)) == ["us-central1-a"] * 2 + ["us-east1-c"] * 2


def test_dry_run_counts_no_quota_for_vms_of_open_intents(
    emulator: ComputeEmulator, context: CloudContext, journal: Journal, make_spec: MakeSpec
) -> None:
    specs = [make_spec(name=f"dev-{number}") for number in range(3)]
    journal.intent(specs[0], "us-central1-a", context.new_id())
    emulator.quotas.set("NVIDIA_T4_GPUS", 2)
    assert dry_run(context, specs, ZONES[:1]).candidates.zones == ZONES[:1]


@pytest.mark.parametrize(("limit", "at_once"), [(1, 1), (2, 2), (8, 3)])
def test_zones_asked_at_once_stay_within_the_quota(
    emulator: ComputeEmulator,
    context: CloudContext,
    make_spec: MakeSpec,
    notes: list[str],
    *,
    limit: int,
    at_once: int,
) -> None:
    """Three zones of a region that are asked at once need three times the quota for a moment."""
    zones = ("us-central1-a", "us-central1-b", "us-central1-c")
    emulator.quotas.set("NVIDIA_T4_GPUS", limit, "us-central1")
    emulator.faults.add(*(stock_out(zone) for zone in zones[:2]))
    made = create_vm(context, make_spec(), zones, width=3)
    assert {attempt.zone: attempt.result for attempt in made.tried} == dict(
        zip(zones, ("capacity", "capacity", "created"), strict=True)
    )
    assert (
        "the quota has no room for as many at once: fewer zones are asked at once" in notes
    ) is (at_once < 3)
    assert any(line.startswith(f"asking {at_once} zones at once") for line in notes) is (
        at_once > 1
    )


def test_dry_run_needs_quota_for_vms_to_be_started(
    emulator: ComputeEmulator, context: CloudContext, cloud: GceCloud, make_spec: MakeSpec
) -> None:
    create_vm(context, make_spec(name="old"), ZONES[:1])
    stopped = cloud.stop("old", ZONES[0], request_id=context.new_id())
    emulator.quotas.set("NVIDIA_T4_GPUS", 2, "us-central1")
    emulator.calls.clear()
    assert (
        dry_run(context, [make_spec(name="new")], ZONES[:2], starting=[stopped]).candidates.zones
        == ZONES[:2]
    )
    assert emulator.call_ids().count("regions.get") + emulator.call_ids().count("regions.list") == 1
    with pytest.raises(QuotaRefused) as caught:
        dry_run(
            context,
            [make_spec(name=name) for name in ("new", "newer")],
            ZONES[:2],
            starting=[stopped],
        )
    assert (
        "needs 2 of NVIDIA_T4_GPUS in us-central1, 1 left (limit 2, in use 1)" in caught.value.why
    )


def test_unknown_quota_does_not_stop_create(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    """Spot draws on the preemptible metrics; what is not granted there may be had otherwise."""
    emulator.quotas.set("NVIDIA_T4_GPUS", 0, "us-central1")
    made = create_vm(context, make_spec(provisioning_model="SPOT"), ZONES)
    assert made.vm.zone == "us-central1-a"


def test_unreadable_quotas_do_not_stop_create(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec, notes: list[str]
) -> None:
    emulator.faults.add(
        http_error(
            403, "forbidden", "Required 'compute.projects.get' permission", call="projects.get"
        )
    )
    assert create_vm(context, make_spec(), ZONES).vm.zone == "us-central1-a"
    assert any(
        "so they are not checked" in line and "compute.projects.get" in line for line in notes
    )


def test_second_create_changes_nothing_with_one_request(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    first = create_vm(context, make_spec(), ZONES)
    emulator.calls.clear()
    again = create_vm(context, make_spec(), ("europe-west4-a",))
    assert (again.changed, again.vm) == (False, first.vm)
    assert emulator.call_ids() == ["instances.aggregatedList"]


def test_create_starts_a_stopped_vm(
    cloud: GceCloud, context: CloudContext, make_spec: MakeSpec
) -> None:
    first = create_vm(context, make_spec(), ZONES).vm
    cloud.stop("dev", first.zone, request_id=context.new_id())
    again = create_vm(context, make_spec(), ZONES)
    assert (again.changed, again.vm.status, again.vm.instance_id) == (
        True,
        "RUNNING",
        first.instance_id,
    )


@pytest.mark.parametrize("status", ["STOPPING", "PENDING_STOP"])
def test_create_waits_for_a_stopping_vm_and_starts_it(
    cloud: GceCloud,
    clock: SimulatedClock,
    context: CloudContext,
    make_spec: MakeSpec,
    monkeypatch: pytest.MonkeyPatch,
    *,
    status: str,
) -> None:
    """It is listed as one that stops; it would be stopped a moment after it was called ready."""
    context = replace(context, sleep=clock.sleep)
    first = create_vm(context, make_spec(), ZONES).vm
    cloud.stop("dev", first.zone, request_id=context.new_id())
    get, looks = cloud.get, iter([status, status])

    def being_stopped(name: str, zone: str) -> Vm | None:
        there = get(name, zone)
        return replace(there, status=next(looks, there.status)) if there is not None else None

    monkeypatch.setattr(cloud, "get", being_stopped)
    monkeypatch.setattr(cloud, "list", lambda labels: [replace(first, status=status)])
    again = create_vm(context, make_spec(), ZONES)
    assert (again.changed, again.vm.status, again.tried) == (
        True,
        "RUNNING",
        (Attempt(first.zone, "started"),),
    )


def test_start_without_capacity_asks_no_other_zone(
    emulator: ComputeEmulator, cloud: GceCloud, context: CloudContext, make_spec: MakeSpec
) -> None:
    first = create_vm(context, make_spec(), ZONES).vm
    cloud.stop("dev", first.zone, request_id=context.new_id())
    emulator.faults.add(stock_out("us-central1-a", call="instances.start"))
    with pytest.raises(CloudRefused, match="does not have enough resources"):
        create_vm(context, make_spec(), ZONES)
    assert zones_of(emulator) == ["us-central1-a"]


def test_create_refuses_existing_vm_of_another_shape(
    context: CloudContext, make_spec: MakeSpec
) -> None:
    create_vm(context, make_spec(), ZONES)
    with pytest.raises(CloudError, match="another shape") as caught:
        create_vm(context, make_spec(gpu="l4", machine_type="g2-standard-8"), ZONES)
    assert "machine_type is n1-standard-8, asked g2-standard-8" in caught.value.why
    assert caught.value.fix == "invoke vm.delete --name dev"


def test_create_stops_at_a_vm_of_another_owner(
    emulator: ComputeEmulator, context: CloudContext, journal: Journal, make_spec: MakeSpec
) -> None:
    create_vm(context, make_spec(labels={"provision-owner": "you"}), ZONES)
    emulator.calls.clear()
    with pytest.raises(CloudRefused, match="has another owner"):
        create_vm(context, make_spec(), ZONES)
    assert zones_of(emulator) == ["us-central1-a"]
    assert "instances.delete" not in emulator.call_ids()
    assert [entry.state for entry in journal.open()] == [MADE]


def test_create_takes_a_vm_that_another_run_made_meanwhile(
    emulator: ComputeEmulator,
    context: CloudContext,
    journal: Journal,
    make_spec: MakeSpec,
    tmp_path: Path,
) -> None:
    ours = create_vm(
        replace(context, journal=Journal(tmp_path / "another machine.jsonl", "demo")),
        make_spec(),
        ZONES,
    )
    hidden = "instances.aggregatedList"
    emulator.faults.add(
        Fault(
            kind=FaultKind.BODY,
            call=hidden,
            times=1,
            http_status=200,
            text='{"kind": "compute#instanceAggregatedList", "items": {}}',
        )
    )
    again = create_vm(context, make_spec(), ZONES)
    assert (again.changed, again.vm) == (False, ours.vm)
    assert [entry.state for entry in journal.entries()] == [GONE]


def test_create_looks_up_unlisted_vm_before_making_another(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    ours = create_vm(context, make_spec(), ZONES)
    hidden = "instances.aggregatedList"
    emulator.faults.add(
        Fault(
            kind=FaultKind.BODY,
            call=hidden,
            times=1,
            http_status=200,
            text='{"kind": "compute#instanceAggregatedList", "items": {}}',
        )
    )
    again = create_vm(context, make_spec(), ("us-east1-c",))
    assert (again.changed, again.vm) == (False, ours.vm)
    assert emulator.call_ids().count("instances.insert") == 1


@pytest.mark.parametrize(
    ("changed", "zones"),
    [({"labels": {}}, ZONES), ({}, ()), ({"name": "Dev"}, ZONES), ({"ttl_s": 10}, ZONES)],
)
def test_invalid_spec_sends_no_insert(
    emulator: ComputeEmulator,
    context: CloudContext,
    make_spec: MakeSpec,
    changed: dict[str, object],
    zones: tuple[str, ...],
) -> None:
    with pytest.raises(SettingsError):
        create_vm(context, make_spec(**changed), zones)
    assert "instances.insert" not in emulator.call_ids()


# --- from zone to zone ----------------------------------------------------------------------------


def test_create_asks_the_next_zone_after_a_stock_out(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec, notes: list[str]
) -> None:
    emulator.faults.add(stock_out("us-central1-a"), stock_out("us-central1-b", with_details=False))
    made = create_vm(context, make_spec(), ZONES)
    assert [(attempt.zone, attempt.result) for attempt in made.tried] == [
        ("us-central1-a", "capacity"),
        ("us-central1-b", "capacity"),
        ("us-east1-c", "created"),
    ]
    assert "does not have enough resources" in made.tried[0].reason
    assert zones_of(emulator) == ["us-east1-c"]
    assert "us-central1-b: capacity (ZONE_RESOURCE_POOL_EXHAUSTED)" in notes
    assert not any("does not have enough resources" in line for line in notes), (
        "the table at the end has the verbatim text"
    )


def test_recommended_zones_are_asked_first(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.faults.add(stock_out("us-central1-a", available=["asia-east1-a", "us-west1-b"]))
    assert create_vm(context, make_spec(), ZONES).vm.zone == "us-west1-b"


def test_regional_quota_refusal_skips_the_region(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.faults.add(quota("us-central1-*", region="us-central1"))
    made = create_vm(context, make_spec(), ZONES)
    assert [attempt.zone for attempt in made.tried] == ["us-central1-a", "us-east1-c"]


def test_global_quota_refusal_stops_the_search(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.faults.add(quota(metric="GPUS_ALL_REGIONS"))
    with pytest.raises(QuotaRefused, match="GPUS_ALL_REGIONS"):
        create_vm(context, make_spec(), ZONES)
    assert emulator.call_ids().count("instances.insert") == 1


def test_missing_permission_stops_the_search(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.faults.add(
        http_error(403, "forbidden", "Required 'compute.instances.create' permission", times=None)
    )
    with pytest.raises(CloudAuthError):
        create_vm(context, make_spec(), ZONES)
    assert emulator.call_ids().count("instances.insert") == 1


def test_zone_without_the_gpu_gets_no_insert(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    made = create_vm(context, make_spec(), ("us-west1-c", "us-central1-a"))
    assert emulator.call_ids().count("instances.insert") == 1
    assert [(attempt.zone, attempt.result) for attempt in made.tried] == [
        ("us-west1-c", "not offered"),
        ("us-central1-a", "created"),
    ]
    bundled = create_vm(
        context,
        make_spec(name="two", gpu="l4", machine_type="g2-standard-8"),
        ("us-central1-f", "us-central1-a"),
    )
    assert [(attempt.zone, attempt.result) for attempt in bundled.tried] == [
        ("us-central1-f", "not offered"),
        ("us-central1-a", "created"),
    ]


def test_no_capacity_error_lists_every_zone_with_its_reason(
    emulator: ComputeEmulator, context: CloudContext, journal: Journal, make_spec: MakeSpec
) -> None:
    emulator.faults.add(stock_out("us-central1-*"), quota("us-*", region="us"), stock_out("*"))
    with pytest.raises(NoCapacity) as caught:
        create_vm(context, make_spec(), ZONES)
    assert [zone for zone, _result, _reason in caught.value.tried] == list(ZONES)
    lines = caught.value.why.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(ZONES)
    assert lines[:3] == [
        "us-central1-a   capacity",
        "  ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: The zone 'us-central1-a'",
        "  does not have enough resources available to fulfill the request.",
    ]
    assert max(map(len, lines)) <= 72
    assert " ".join(lines[1:4]).split() == caught.value.tried[0][2].split(), (
        "wrapped, with the verbatim text"
    )
    assert "us-east1-c      quota" in lines
    assert emulator.instances("demo") == []
    assert journal.open() == []


def test_temporary_refusal_gets_a_second_insert_with_a_new_request_id(
    emulator: ComputeEmulator, clock: SimulatedClock, context: CloudContext, make_spec: MakeSpec
) -> None:
    preempted = Fault(
        kind=FaultKind.OPERATION,
        zone="us-central1-a",
        code="UNSUPPORTED_OPERATION",
        message="preempted",
        times=1,
    )
    internal = Fault(
        kind=FaultKind.OPERATION,
        zone="us-central1-a",
        code="INTERNAL_ERROR",
        message="Internal error.",
        times=1,
    )
    context = replace(context, sleep=clock.sleep)
    emulator.faults.add(preempted)
    assert create_vm(context, make_spec(), ZONES).vm.zone == "us-central1-a"
    emulator.faults.add(internal)
    before = clock.now()
    assert create_vm(context, make_spec(name="two"), ZONES).vm.zone == "us-central1-a"
    assert clock.now() >= before + 5
    emulator.faults.add(replace(preempted, times=None))
    made = create_vm(context, make_spec(name="three"), ZONES)
    assert [(attempt.zone, attempt.result) for attempt in made.tried] == [
        ("us-central1-a", "transient"),
        ("us-central1-b", "created"),
    ]
    inserts = [call for call in emulator.calls if call.api == "instances.insert"]
    assert [call.body["name"] for call in inserts if call.body] == ["dev"] * 2 + ["two"] * 2 + [
        "three"
    ] * 3
    assert len({call.query["requestId"] for call in inserts}) == 7


def test_region_and_everywhere_expand_to_offering_zones(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    made = create_vm(context, make_spec(), ("us-west1",))
    assert made.vm.zone == "us-west1-a"
    emulator.faults.add(stock_out("us-*"))
    made = create_vm(context, make_spec(name="two"), ("us-west1", "everywhere"))
    asked = [attempt.zone for attempt in made.tried]
    assert asked[:2] == ["us-west1-a", "us-west1-b"]
    assert (made.vm.zone, len(asked)) == ("asia-east1-a", 3)
    emulator.faults.clear()
    plain = create_vm(context, make_spec(name="three", gpu=None, gpu_count=0), ("us-west1-c",))
    assert plain.vm.zone == "us-west1-c"


def test_create_fails_when_no_zone_offers_the_gpu(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    with pytest.raises(NoCapacity) as caught:
        create_vm(context, make_spec(), ("us-west1-c", "us-nowhere1"))
    assert caught.value.why == (
        "us-west1-c   not offered\n  no nvidia-tesla-t4 is offered there\n"
        "us-nowhere1  not offered\n  there is no such zone or region"
    )
    assert caught.value.fix == "invoke vm.offers --gpu nvidia-tesla-t4"
    assert "instances.insert" not in emulator.call_ids()


def test_create_refuses_namesake_of_the_same_user_only(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    create_vm(
        context, make_spec(labels={"provision-owner": "ann-0123456789ab"}), ("us-central1-a",)
    )
    emulator.calls.clear()
    with pytest.raises(CloudError, match="you have a VM named dev already") as caught:
        create_vm(
            context, make_spec(labels={"provision-owner": "ann-ba9876543210"}), ("us-central1-b",)
        )
    assert (caught.value.exit_code, caught.value.where) == (5, "us-central1-a/dev")
    assert emulator.call_ids() == ["instances.aggregatedList"]
    assert create_vm(
        context, make_spec(labels={"provision-owner": "bob-ba9876543210"}), ("us-central1-b",)
    ).changed


# --- nothing stays behind -------------------------------------------------------------------------


def test_intent_is_on_disk_before_the_insert(
    clock: SimulatedClock, tmp_path: Path, make_spec: MakeSpec
) -> None:
    path = tmp_path / "journal.jsonl"
    seen: list[list[str]] = []

    class Watching(NullBackend):
        def boot(
            self, name: str, zone: str, metadata: dict[str, str], gpu: str | None, gpu_count: int
        ) -> tuple[str, int]:
            seen.append([json.loads(line)["state"] for line in path.read_text().splitlines()])
            return super().boot(name, zone, metadata, gpu, gpu_count)

    with ComputeEmulator(Watching(), clock=clock) as emulator:
        cloud = GceCloud("demo", emulator.endpoint, sleep=clock.sleep)
        create_vm(
            CloudContext(cloud=cloud, journal=Journal(path, "demo"), emit=lambda event: None),
            make_spec(),
            ZONES,
        )
        cloud.close()
    assert seen == [[INTENT]]


def test_vm_of_a_failed_insert_is_deleted_before_the_next_zone(
    emulator: ComputeEmulator, context: CloudContext, journal: Journal, make_spec: MakeSpec
) -> None:
    emulator.faults.add(stock_out("us-central1-a", leaves_vm=True))
    assert create_vm(context, make_spec(), ZONES).vm.zone == "us-central1-b"
    assert zones_of(emulator) == ["us-central1-b"]
    order = [
        call.api for call in emulator.calls if call.api in {"instances.insert", "instances.delete"}
    ]
    assert order == ["instances.insert", "instances.delete", "instances.insert"]
    assert [entry.state for entry in journal.entries()] == [GONE, MADE]


def test_failed_clean_up_stops_the_search(
    emulator: ComputeEmulator, context: CloudContext, journal: Journal, make_spec: MakeSpec
) -> None:
    emulator.faults.add(
        stock_out("us-central1-a", leaves_vm=True),
        http_error(503, "backendError", "no", call="instances.delete", times=None),
    )
    with pytest.raises(CleanupFailed) as caught:
        create_vm(context, make_spec(), ZONES)
    assert caught.value.exit_code == 6
    assert caught.value.where == "us-central1-a/dev"
    assert caught.value.fix == "gcloud compute instances delete dev --zone us-central1-a"
    assert emulator.call_ids().count("instances.insert") == 1
    assert [(entry.state, entry.zone) for entry in journal.open()] == [
        (LEFT_BEHIND, "us-central1-a")
    ]


def test_delete_removes_the_vm_and_closes_its_entry(
    emulator: ComputeEmulator, context: CloudContext, journal: Journal, make_spec: MakeSpec
) -> None:
    made = create_vm(context, make_spec(), ZONES)
    assert [vm.instance_id for vm in delete_vms_by_name(context, "dev", "me")] == [
        made.vm.instance_id
    ]
    assert emulator.instances("demo") == []
    assert journal.open() == []
    assert delete_vms_by_name(context, "dev", "me") == []


def test_delete_refuses_a_vm_of_another_owner(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    create_vm(context, make_spec(labels={"provision-owner": "you"}), ZONES)
    with pytest.raises(CloudRefused, match="has another owner"):
        delete_vm(context, "dev", "us-central1-a", "me")
    assert len(emulator.instances("demo")) == 1


def test_failed_delete_raises_cleanup_failed(
    emulator: ComputeEmulator, context: CloudContext, journal: Journal, make_spec: MakeSpec
) -> None:
    create_vm(context, make_spec(), ZONES)
    emulator.faults.add(http_error(500, "backendError", "no", call="instances.delete", times=None))
    with pytest.raises(CleanupFailed, match="may bill"):
        delete_vm(context, "dev", "us-central1-a", "me")
    assert [entry.state for entry in journal.open()] == [LEFT_BEHIND]


# --- answers that were lost -----------------------------------------------------------------------


def test_lost_insert_stays_open_until_it_is_looked_up_again(
    emulator: ComputeEmulator, context: CloudContext, journal: Journal, make_spec: MakeSpec
) -> None:
    emulator.faults.add(Fault(kind=FaultKind.RESET_BEFORE, zone="us-central1-a"))
    assert create_vm(context, make_spec(), ZONES).vm.zone == "us-central1-b"
    assert [entry.state for entry in journal.entries()] == [UNSURE, MADE]
    assert not create_vm(context, make_spec(), ZONES).changed
    assert [entry.state for entry in journal.entries()] == [GONE, MADE]


def test_insert_with_lost_replies_is_found_by_its_request_id(
    emulator: ComputeEmulator, context: CloudContext, journal: Journal, make_spec: MakeSpec
) -> None:
    emulator.faults.add(Fault(kind=FaultKind.RESET_AFTER, zone="us-central1-a"))
    made = create_vm(context, make_spec(), ZONES)
    assert (made.changed, made.vm.zone, made.vm.status) == (True, "us-central1-a", "RUNNING")
    assert [entry.state for entry in journal.entries()] == [MADE]
    assert emulator.call_ids().count("instances.insert") == 6


def test_operations_are_all_listed_when_the_filter_is_refused(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.faults.add(
        Fault(kind=FaultKind.RESET_AFTER, zone="us-central1-a"),
        http_error(400, "invalid", "Invalid list filter expression.", call="zoneOperations.list"),
    )
    made = create_vm(context, make_spec(), ZONES)
    assert (made.vm.zone, made.tried) == ("us-central1-a", (Attempt("us-central1-a", "created"),))
    assert emulator.call_ids().count("zoneOperations.list") == 2


def test_lost_reply_does_not_hide_the_refusal(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    emulator.faults.add(
        Fault(kind=FaultKind.RESET_BEFORE, call="zoneOperations.wait", zone="us-central1-a"),
        stock_out("us-central1-a"),
    )
    made = create_vm(context, make_spec(), ZONES)
    assert [(attempt.zone, attempt.result) for attempt in made.tried] == [
        ("us-central1-a", "capacity"),
        ("us-central1-b", "created"),
    ]
    assert zones_of(emulator) == ["us-central1-b"]


@pytest.mark.parametrize("width", [1, 2])
def test_missing_vm_after_insert_is_looked_up_once_more(
    emulator: ComputeEmulator,
    context: CloudContext,
    journal: Journal,
    make_spec: MakeSpec,
    width: int,
) -> None:
    """The operation succeeds, and a read right after it returns 404."""
    emulator.faults.add(
        http_error(
            404,
            "notFound",
            "dev was not found",
            call="instances.get",
            zone="us-central1-a",
            times=2,
        )
    )
    made = create_vm(context, make_spec(), ZONES[:2], width=width)
    assert (
        zones_of(emulator)
        == [made.vm.zone]
        == [entry.zone for entry in journal.open() if entry.state == MADE]
    )
    assert width > 1 or made.vm.zone == "us-central1-a"


def test_vm_that_vanishes_after_insert_counts_as_zone_refusal(
    emulator: ComputeEmulator,
    context: CloudContext,
    cloud: GceCloud,
    make_spec: MakeSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Spot VM may be; the next zone is asked."""
    mutate = cloud.client.mutate

    def taken_away(verb: str, what: str, where: str, zone: str, *words: Any, **named: Any) -> None:
        mutate(verb, what, where, zone, *words, **named)
        if (verb, zone) == ("insert", ZONES[0]):
            emulator.preempt("dev", zone)

    monkeypatch.setattr(cloud.client, "mutate", taken_away)
    made = create_vm(
        context, make_spec(provisioning_model="SPOT", termination_action="DELETE"), ZONES
    )
    assert [(attempt.zone, attempt.result) for attempt in made.tried] == [
        (ZONES[0], "transient"),
        (ZONES[1], "created"),
    ]
    assert zones_of(emulator) == [made.vm.zone] == [ZONES[1]]


def test_delete_finds_a_vm_that_the_list_lacks(
    emulator: ComputeEmulator,
    cloud: GceCloud,
    context: CloudContext,
    journal: Journal,
    make_spec: MakeSpec,
) -> None:
    request_id = context.new_id()
    spec = make_spec(labels={"provision-owner": "me", "provision-request": request_id})
    journal.intent(spec, "us-east1-c", request_id)
    journal.mark(request_id, UNSURE)
    cloud.create(spec, "us-east1-c", request_id=request_id)
    emulator.faults.add(
        Fault(
            kind=FaultKind.BODY,
            call="instances.aggregatedList",
            times=1,
            http_status=200,
            text='{"kind": "compute#instanceAggregatedList", "items": {}}',
        )
    )
    assert [vm.zone for vm in delete_vms_by_name(context, "dev", "me")] == ["us-east1-c"]
    assert emulator.instances("demo") == []
    assert journal.open() == []


@pytest.mark.parametrize(
    ("has_s", "asked_s", "says"),
    [
        (7200, 10800, "dev keeps its time limit of 2h, less than"),
        (7200, None, "dev keeps its time limit of 2h, less than"),
        (None, 7200, "dev has no time limit"),
        (10800, 7200, ""),
        (7200, 7200, ""),
    ],
)
def test_existing_vm_with_another_time_limit_is_kept_with_a_note(
    context: CloudContext,
    make_spec: MakeSpec,
    notes: list[str],
    *,
    has_s: int | None,
    asked_s: int | None,
    says: str,
) -> None:
    create_vm(context, make_spec(ttl_s=has_s), [ZONES[0]])
    notes.clear()
    assert not create_vm(context, make_spec(ttl_s=asked_s), [ZONES[0]]).changed
    assert notes == ([line for line in notes if says and line.startswith(says)])
    assert len(notes) == bool(says)


def test_ctrl_c_leaves_an_open_intent(
    context: CloudContext, journal: Journal, make_spec: MakeSpec
) -> None:
    class Interrupting(GceCloud):
        def create(self, spec: VmSpec, zone: str, *, request_id: str) -> Vm:
            raise KeyboardInterrupt

    assert isinstance(context.cloud, GceCloud)
    with pytest.raises(KeyboardInterrupt):
        create_vm(
            replace(context, cloud=Interrupting("demo", context.cloud.endpoint)), make_spec(), ZONES
        )
    assert [entry.state for entry in journal.open()] == [INTENT]
    assert create_vm(context, make_spec(), ZONES).changed


def test_zone_that_does_not_take_the_shape_gets_no_insert(
    emulator: ComputeEmulator, context: CloudContext, make_spec: MakeSpec
) -> None:
    spec = make_spec(gpu="p100", gpu_count=4, machine_type="n1-standard-96")
    with pytest.raises(NoCapacity, match="64 vCPUs"):
        create_vm(context, spec, ("us-east1-c", "europe-west1-d"))
    assert "instances.insert" not in emulator.call_ids()
