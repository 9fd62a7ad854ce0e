"""The checks of `doctor` on zones, project, quotas, image and firewall."""

from __future__ import annotations

from typing import Any

import pytest

from provision.cloud.market.catalog import Shape
from provision.cloud.market.quota import Quota, Quotas
from provision.cloud.preflight.firewall import ANYWHERE, firewall_check
from provision.cloud.preflight.image import image_check, milestone
from provision.cloud.preflight.project import os_login_check, service_account_check
from provision.cloud.preflight.quotas import quota_checks
from provision.cloud.preflight.zones import zone_check
from provision.report.checks import Verdict
from tests.specs import vm_spec

L4 = Shape("g2-standard-8", "nvidia-l4", 1)
H100 = Shape("a3-highgpu-8g", "nvidia-h100-80gb", 8)
H100_SPEC = vm_spec(machine_type="a3-highgpu-8g", gpu="nvidia-h100-80gb", gpu_count=8)
G4 = Shape("g4-standard-48", "nvidia-rtx-pro-6000", 1)
TUNNELS = "35.235.240.0/20"


# --- zones ----------------------------------------------------------------------------------------

HAVE_L4 = ["us-central1-a", "us-central1-b", "us-east1-b"]


def test_zone_check_lists_fitting_zones_in_order() -> None:
    check, zones = zone_check(L4, ["us-east1", "us-central1-a"], HAVE_L4, HAVE_L4)
    assert (check.status, zones) == (Verdict.OK, ("us-east1-b", "us-central1-a"))
    assert "us-east1-b, us-central1-a" in check.what


def test_zone_check_warns_for_some_and_fails_for_all_unfit_zones() -> None:
    check, zones = zone_check(
        L4, ["us-central1-a", "us-central1-b", "us-west1-z"], HAVE_L4, ["us-central1-a"]
    )
    assert (check.status, zones) == (Verdict.WARN, ("us-central1-a",))
    assert (
        check.why == "us-west1-z does not list nvidia-l4; us-central1-b does not list g2-standard-8"
    )
    check, zones = zone_check(L4, ["us-west1-z"], HAVE_L4, HAVE_L4)
    assert (check.status, zones) == (Verdict.FAIL, ())
    assert check.fix == "set provision.zones to some of: us-central1-a, us-central1-b, us-east1-b"


def test_zone_check_reports_misspelt_zones_and_lists_nearest_first() -> None:
    offering = [
        f"us-{region}-{letter}" for region in ("central1", "east1", "west1") for letter in "abc"
    ] + ["asia-east1-a", "us-east4-a"]
    check, _zones = zone_check(
        L4, ["us-east4-b", "us-east9"], offering, offering, known=[*offering, "us-east4-b"]
    )
    assert check.why == "us-east4-b does not list nvidia-l4; there is no zone or region us-east9"
    nearest = "us-east4-a, us-central1-a, us-central1-b, us-central1-c, us-east1-a, us-east1-b"
    assert check.fix == f"set provision.zones to some of: {nearest} and 5 more (invoke vm.offers)"


# --- what the project brings ----------------------------------------------------------------------


def test_service_account_check_fails_without_default_account() -> None:
    assert (
        service_account_check(
            {"defaultServiceAccount": "1-compute@developer.gserviceaccount.com"}
        ).status
        is Verdict.OK
    )
    gone = service_account_check({"name": "demo"})
    assert (gone.status, gone.fix) == (
        Verdict.FAIL,
        "gcloud iam service-accounts list --project demo",
    )


@pytest.mark.parametrize(
    ("metadata", "setting", "status"),
    [
        ("", "auto", Verdict.OK),
        ("FALSE", "auto", Verdict.OK),
        ("TRUE", "auto", Verdict.UNKNOWN),
        ("", "on", Verdict.UNKNOWN),
        ("TRUE", "off", Verdict.WARN),
        ("", "off", Verdict.OK),
    ],
)
def test_os_login(metadata: str, setting: str, status: Verdict) -> None:
    items = [{"key": "enable-oslogin", "value": metadata}] if metadata else []
    check = os_login_check({"name": "demo", "commonInstanceMetadata": {"items": items}}, setting)
    assert check.status is status
    assert bool(check.fix) == (status is not Verdict.OK)


# --- quotas ---------------------------------------------------------------------------------------


def quotas(**l4: float) -> Quotas:
    def rows(limit: float) -> dict[str, Quota]:
        return {"NVIDIA_L4_GPUS": Quota("NVIDIA_L4_GPUS", limit, 0), "CPUS": Quota("CPUS", 64, 0)}

    project = {"GPUS_ALL_REGIONS": Quota("GPUS_ALL_REGIONS", 8, 0)}
    return Quotas(project, {name.replace("_", "-"): rows(limit) for name, limit in l4.items()})


def test_quota_check_warns_while_another_region_has_room() -> None:
    zones = ["us-central1-a", "us-east1-b"]
    checks = quota_checks(quotas(us_central1=0, us_east1=1), vm_spec(), zones, "demo")
    assert [(check.id, check.status) for check in checks] == [
        ("quota-us-central1", Verdict.WARN),
        ("quota-us-east1", Verdict.OK),
    ]
    assert checks[0].why == "needs 1 of NVIDIA_L4_GPUS in us-central1, 0 left (limit 0, in use 0)"
    assert "project=demo" in checks[0].fix
    assert (
        checks[1].what == "room for g2-standard-8 + 1 x nvidia-l4; "
        "left are NVIDIA_L4_GPUS 1, GPUS_ALL_REGIONS 8, CPUS 64"
    )
    checks = quota_checks(quotas(us_central1=0, us_east1=0), vm_spec(), zones, "demo")
    assert {check.status for check in checks} == {Verdict.FAIL}


def test_quota_check_without_metric_is_unknown() -> None:
    [check] = quota_checks(quotas(us_central1=8), H100_SPEC, ["us-central1-a"], "demo")
    assert check.status is Verdict.UNKNOWN
    assert "Cloud Quotas" in check.why


def test_unknown_quotas_of_several_regions_are_one_check() -> None:
    nothing = Quotas({}, {"us-central1": {}, "us-east4": {}})
    checks = quota_checks(nothing, H100_SPEC, ["us-central1-a", "us-east4-a"], "demo")
    assert [(check.id, check.status) for check in checks] == [("quota", Verdict.UNKNOWN)]
    assert checks[0].what.startswith("it is unknown whether us-central1, us-east4 have room for")
    assert "nvidia-h100-80gb in us-central1, us-east4 (" in checks[0].why


# --- the image ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("cos-125-lts", 125),
        ("cos-125-19216-655-28", 125),
        ("cos-stable-129-19506-448-36", 129),
        ("cos-arm64-125-19216-655-28", 125),
        ("cos-arm64-stable-129-19506-448-36", 129),
        ("cos-stable", None),
        ("debian-12", None),
    ],
)
def test_milestone_is_parsed_from_the_image_name(name: str, number: int | None) -> None:
    assert milestone(name) == number


@pytest.mark.parametrize(
    ("image", "shape", "status", "reported"),
    [
        ({"name": "cos-125-19216-655-28"}, L4, Verdict.OK, "milestone 125"),
        (
            {"name": "cos-125-19216-655-28", "deprecated": {"state": "DEPRECATED"}},
            L4,
            Verdict.WARN,
            "deprecated",
        ),
        (
            {"name": "cos-125-19216-655-28", "deprecated": {"state": "OBSOLETE"}},
            L4,
            Verdict.FAIL,
            "no longer",
        ),
        ({"name": "cos-arm64-125-1-2-3", "architecture": "ARM64"}, L4, Verdict.FAIL, "Arm"),
        (
            {"name": "cos-arm64-125-1-2-3", "architecture": "ARM64"},
            Shape("n1-standard-8"),
            Verdict.OK,
            "125",
        ),
        ({"name": "cos-dev-133-1-2-3", "family": "cos-dev"}, L4, Verdict.FAIL, "dev channel"),
        ({"name": "cos-121-18867-584-23"}, G4, Verdict.FAIL, "too old"),
        ({"name": "cos-125-19216-655-28"}, H100, Verdict.WARN, "trouble"),
        ({"name": "cos-121-18867-584-23"}, H100, Verdict.OK, "milestone 121"),
    ],
)
def test_an_image(image: dict[str, Any], shape: Shape, status: Verdict, reported: str) -> None:
    check = image_check(image, shape)
    assert (check.id, check.status) == ("image", status)
    assert reported in check.what
    assert bool(check.fix) is (status is not Verdict.OK)


# --- the firewall ---------------------------------------------------------------------------------


def rule(name: str, ranges: list[str] | None = None, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name,
        "network": "https://x/projects/demo/global/networks/default",
        "direction": "INGRESS",
    }
    made |= {"priority": 1000, "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]} | more
    return made | ({"sourceRanges": ranges} if ranges else {})


OPEN, INSIDE, TUNNEL = (
    rule("open", [ANYWHERE]),
    rule("inside", ["10.0.0.0/8"]),
    rule("tunnel", [TUNNELS]),
)
CLOSED = {
    key: value
    for key, value in rule(
        "closed", [ANYWHERE], denied=[{"IPProtocol": "all"}], priority=500
    ).items()
    if key != "allowed"
}


@pytest.mark.parametrize(
    ("rules", "source", "status"),
    [
        ([OPEN], ANYWHERE, Verdict.OK),
        ([OPEN], TUNNELS, Verdict.OK),
        ([TUNNEL], TUNNELS, Verdict.OK),
        ([INSIDE, OPEN], ANYWHERE, Verdict.OK),
        ([rule("all", [ANYWHERE], allowed=[{"IPProtocol": "all"}])], ANYWHERE, Verdict.OK),
        (
            [rule("range", [ANYWHERE], allowed=[{"IPProtocol": "tcp", "ports": ["80", "20-25"]}])],
            ANYWHERE,
            Verdict.OK,
        ),
        ([rule("no-range")], ANYWHERE, Verdict.OK),
        ([INSIDE], ANYWHERE, Verdict.WARN),
        ([TUNNEL], ANYWHERE, Verdict.WARN),
        ([INSIDE], TUNNELS, Verdict.WARN),
        ([], ANYWHERE, Verdict.FAIL),
        ([OPEN, CLOSED], ANYWHERE, Verdict.FAIL),
        ([OPEN, {**CLOSED, "priority": 1000}], ANYWHERE, Verdict.FAIL),
        ([OPEN, {**CLOSED, "priority": 2000}], ANYWHERE, Verdict.OK),
        ([OPEN, {**CLOSED, "disabled": True}], ANYWHERE, Verdict.OK),
        ([rule("off", [ANYWHERE], disabled=True)], ANYWHERE, Verdict.FAIL),
        ([rule("out", [ANYWHERE], direction="EGRESS")], ANYWHERE, Verdict.FAIL),
        ([rule("tagged", [ANYWHERE], targetTags=["web"])], ANYWHERE, Verdict.FAIL),
        ([rule("from-tags", None, sourceTags=["web"])], ANYWHERE, Verdict.FAIL),
        (
            [
                rule(
                    "elsewhere", [ANYWHERE], network="https://x/projects/demo/global/networks/other"
                )
            ],
            ANYWHERE,
            Verdict.FAIL,
        ),
        (
            [rule("web", [ANYWHERE], allowed=[{"IPProtocol": "tcp", "ports": ["80"]}])],
            ANYWHERE,
            Verdict.FAIL,
        ),
        ([rule("ping", [ANYWHERE], allowed=[{"IPProtocol": "icmp"}])], ANYWHERE, Verdict.FAIL),
        ([rule("six", ["::/0"])], ANYWHERE, Verdict.WARN),
    ],
)
def test_the_firewall(rules: list[dict[str, Any]], source: str, status: Verdict) -> None:
    check = firewall_check(rules, "default", source, "demo")
    assert check.status is status, check
    if status is Verdict.FAIL:
        assert f"--allow tcp:22 --source-ranges {source} --project demo" in check.fix
