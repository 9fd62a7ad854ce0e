"""What refusals mean, and the order of zones after a refusal."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.cloud.market.zone_order import Candidates, ZonePlan, zones_in_order
from provision.cloud.refusal import (
    AuthRefused,
    CloudRefused,
    NotFoundRefused,
    QuotaRefused,
    Refusal,
    from_operation,
)
from provision.cloud.refusal_table import (
    BlastRadius,
    Classification,
    RefusalKind,
    classify,
    refusal_error,
)
from provision.core.errors import CloudAuthError, CloudNotFound, QuotaExceeded

CASES: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8")
)["case"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_refusal_is_classified_as_the_table_says(case: dict[str, Any]) -> None:
    refusal = Refusal(
        code=case["code"],
        message=case["message"],
        http_status=case.get("http_status", 0),
        quota=case.get("quota", {}),
    )
    assert classify(refusal) == Classification(
        RefusalKind(case["kind"]),
        BlastRadius(case["blast_radius"]),
        case.get("retry", False),
        case.get("new_inserts", 0),
    )


def test_every_kind_and_blast_radius_has_a_case() -> None:
    assert {case["kind"] for case in CASES} == set(RefusalKind)
    assert {case["blast_radius"] for case in CASES} == set(BlastRadius)


@given(code=st.text(), message=st.text(), status=st.integers(0, 599))
def test_any_refusal_is_classified(code: str, message: str, status: int) -> None:
    assert isinstance(
        classify(Refusal(code=code, message=message, http_status=status)), Classification
    )


@pytest.mark.parametrize(
    ("code", "kind", "parent"),
    [
        ("QUOTA_EXCEEDED", QuotaRefused, QuotaExceeded),
        ("forbidden", AuthRefused, CloudAuthError),
        ("notFound", NotFoundRefused, CloudNotFound),
        ("invalid", CloudRefused, CloudRefused),
    ],
)
def test_error_class_follows_the_refusal_kind(
    code: str, kind: type[CloudRefused], parent: type[Exception]
) -> None:
    error = refusal_error(
        "no", Refusal(code=code, message="verbatim"), where="z/dev", project="demo"
    )
    assert type(error) is kind
    assert isinstance(error, parent)
    assert (error.exit_code, error.where, error.why) == (5, "z/dev", f"{code}: verbatim")
    assert error.fix


# --- operations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        {"status": "DONE"},
        {"status": "DONE", "error": {}},
        {"error": {"errors": []}, "httpErrorStatusCode": 0},
    ],
)
def test_operation_without_error_is_not_a_refusal(operation: dict[str, Any]) -> None:
    assert from_operation(operation) is None


def test_operation_error_without_http_code_is_a_refusal() -> None:
    assert from_operation({"error": {"errors": [{"code": "X", "message": "m"}]}}) == Refusal(
        code="X", message="m"
    )


def test_http_code_without_errors_is_a_refusal() -> None:
    assert from_operation(
        {"httpErrorStatusCode": 503, "httpErrorMessage": "SERVICE UNAVAILABLE"}
    ) == Refusal(code="", message="SERVICE UNAVAILABLE", http_status=503)


def test_refusal_contains_recommended_zones_and_quota() -> None:
    details = [
        {"help": {"links": []}},
        {"errorInfo": {"reason": "stockout", "metadatas": {"zonesAvailable": " us-a-b, us-c-d ,"}}},
        {"quotaInfo": {"limit": 0.0}},
    ]
    found = from_operation(
        {"error": {"errors": [{"code": "X", "message": "m", "errorDetails": details}]}}
    )
    assert found is not None
    assert found.zones_available == ("us-a-b", "us-c-d")
    assert found.quota == {"limit": 0.0}


# --- zones ----------------------------------------------------------------------------------------

ZONES = ("us-central1-a", "us-central1-b", "us-east1-c", "europe-west4-a")


@pytest.mark.parametrize(
    ("radius", "left"),
    [
        (BlastRadius.ZONE, ("us-central1-b", "us-east1-c", "europe-west4-a")),
        (BlastRadius.REGION, ("us-east1-c", "europe-west4-a")),
        (BlastRadius.PROJECT, ()),
        (BlastRadius.NEVER, ()),
    ],
)
def test_refusal_drops_the_zones_within_its_blast_radius(
    radius: BlastRadius, left: tuple[str, ...]
) -> None:
    assert (
        Candidates.of(ZONES)
        .after("us-central1-a", Classification(RefusalKind.UNKNOWN, radius))
        .zones
        == left
    )


def test_recommended_zones_come_first_and_add_none() -> None:
    after = Candidates.of(ZONES).after(
        "us-central1-a",
        Classification(RefusalKind.CAPACITY, BlastRadius.ZONE),
        ["asia-east1-a", "europe-west4-a", "us-central1-a"],
    )
    assert after.zones == ("europe-west4-a", "us-central1-b", "us-east1-c")
    assert after.next() == ("europe-west4-a",)
    assert after.next(2) == ("europe-west4-a", "us-central1-b")


@pytest.mark.parametrize(
    ("rooms", "asked"),
    [
        ({}, ("us-central1-a", "us-central1-b", "us-east1-c")),
        ({"us-central1": 1}, ("us-central1-a", "us-east1-c", "europe-west4-a")),
        ({"us-central1": 1, "": 2}, ("us-central1-a", "us-east1-c")),
        ({"us-central1": 9, "": 1}, ("us-central1-a",)),
    ],
)
def test_zones_asked_at_once_are_limited_by_the_quota(
    rooms: dict[str, int], asked: tuple[str, ...]
) -> None:
    assert Candidates.of(ZONES).next(3, rooms) == asked


@pytest.mark.parametrize(
    ("code", "message", "fix"),
    [
        (
            "notFound",
            "The resource 'projects/cos-cloud/global/images/family/cos-9' was not found",
            "gcloud compute images list --project cos-cloud",
        ),
        (
            "notFound",
            "The resource 'projects/p/zones/z/instances/dev' was not found",
            "gcloud compute instances list --project p",
        ),
        (
            "notFound",
            "The resource 'projects/p/zones/z/acceleratorTypes/x' was not found",
            "gcloud compute accelerator-types list",
        ),
        (
            "notFound",
            "The resource 'projects/p/regions/r/subnetworks/mine' was not found",
            "gcloud compute networks subnets list --project p",
        ),
        ("notFound", "The resource 'projects/p/serviceAccounts/me' was not found", "invoke doctor"),
        ("invalid", "Invalid value for field 'resource.disks[0]'", "invoke doctor"),
        ("internalError", "Internal error", "gcloud compute operations list --project p --limit 5"),
    ],
)
def test_remedy_lists_the_resources_that_the_message_names(
    code: str, message: str, fix: str
) -> None:
    assert (
        refusal_error("no", Refusal(code=code, message=message), where="z/dev", project="p").fix
        == fix
    )


def test_region_is_compared_as_a_whole_name() -> None:
    verdict = Classification(RefusalKind.QUOTA, BlastRadius.REGION)
    assert Candidates.of(["us-east1-b", "us-east10-b"]).after("us-east1-b", verdict).zones == (
        "us-east10-b",
    )


@given(
    st.lists(st.sampled_from(ZONES)),
    st.lists(st.sampled_from([*BlastRadius]), min_size=1),
    st.lists(st.sampled_from(ZONES)),
)
def test_search_ends_and_asks_no_zone_twice(
    zones: list[str], radii: list[BlastRadius], recommended: list[str]
) -> None:
    candidates, asked = Candidates.of(zones), []
    while batch := candidates.next():
        (zone,) = batch
        asked.append(zone)
        candidates = candidates.after(
            zone, Classification(RefusalKind.UNKNOWN, radii[len(asked) % len(radii)]), recommended
        )
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize(
    ("places", "zones", "lacking"),
    [
        (("us-east1-c", "us-central1-a"), ("us-east1-c", "us-central1-a"), ()),
        (("us-central1",), ("us-central1-a", "us-central1-b"), ()),
        (
            ("us-east1-c", "us-central1", "us-central1-b"),
            ("us-east1-c", "us-central1-a", "us-central1-b"),
            (),
        ),
        (
            ("us-east1", "everywhere"),
            ("us-east1-c", "us-central1-a", "us-central1-b", "europe-west4-a"),
            (),
        ),
        (("us-east1-z", "us-east9", "us-east1-c"), ("us-east1-c",), ("us-east1-z", "us-east9")),
        (("us-central",), (), ("us-central",)),
    ],
)
def test_places_are_expanded_to_zones_in_order(
    places: tuple[str, ...], zones: tuple[str, ...], lacking: tuple[str, ...]
) -> None:
    assert zones_in_order(places, ZONES) == ZonePlan(zones, lacking)


def test_no_offering_zone_gives_an_empty_plan() -> None:
    assert zones_in_order(("everywhere", "us-east1-c"), ()) == ZonePlan(
        (), ("everywhere", "us-east1-c")
    )
