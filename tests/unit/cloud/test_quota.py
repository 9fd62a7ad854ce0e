"""Quotas compared with the needs of machines: short only where that is certain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from provision.cloud.market import quota_room
from provision.cloud.market.catalog import Shape
from provision.cloud.market.quota import (
    Quota,
    Quotas,
    QuotaVerdict,
    Room,
    judge_quotas,
    other_needs,
    quotas_by_metric,
)
from provision.cloud.market.quota_room import (
    judge_starts,
    no_room_error,
    no_room_to_start_error,
    quotas_after_starts,
    room_by_region,
    short_verdicts,
    undetermined_lines,
    worst_verdict,
    zones_short_of_quota,
)
from provision.core.errors import EXIT_CLOUD
from provision.core.model import Vm, VmSpec
from tests.specs import vm_spec

HERE = "us-central1"
L4 = Shape("g2-standard-8", "nvidia-l4", 1)
T4X4 = Shape("n1-standard-32", "nvidia-tesla-t4", 4)
H100 = Shape("a3-highgpu-8g", "nvidia-h100-80gb", 8)
PLENTY = {"GPUS_ALL_REGIONS": (16.0, 0.0), "CPUS_ALL_REGIONS": (512.0, 0.0)}


def quotas(
    project: Mapping[str, tuple[float, float]] = PLENTY, **regional: tuple[float, float]
) -> Quotas:
    def rows(pairs: Mapping[str, tuple[float, float]]) -> dict[str, Quota]:
        return {metric: Quota(metric, *pair) for metric, pair in pairs.items()}

    return Quotas(rows(project), {HERE: rows(regional)})


def rooms(verdicts: tuple[QuotaVerdict, ...]) -> dict[str, str]:
    return {verdict.metric: verdict.room.value for verdict in verdicts}


@pytest.mark.parametrize(
    ("limit", "usage", "room"),
    [(1, 0, Room.OK), (1, 1, Room.SHORT), (0, 0, Room.SHORT), (8, 7, Room.OK), (4, 9, Room.SHORT)],
)
def test_regional_gpu_quota_is_judged(limit: float, usage: float, room: Room) -> None:
    found = judge_quotas(quotas(NVIDIA_L4_GPUS=(limit, usage), CPUS=(64, 0)), L4, HERE)
    assert rooms(found) == {
        "NVIDIA_L4_GPUS": room,
        "GPUS_ALL_REGIONS": Room.OK,
        "CPUS": Room.OK,
        "CPUS_ALL_REGIONS": Room.OK,
    }


def test_global_gpu_quota_of_zero_is_short() -> None:
    found = judge_quotas(
        quotas({"GPUS_ALL_REGIONS": (0, 0)}, NVIDIA_L4_GPUS=(1, 0), CPUS=(64, 0)), L4, HERE
    )
    assert [str(verdict) for verdict in short_verdicts(found)] == [
        "needs 1 of GPUS_ALL_REGIONS over all regions, 0 left (limit 0, in use 0)"
    ]


def test_gpus_of_all_machines_are_counted() -> None:
    enough = quotas(NVIDIA_T4_GPUS=(8, 0), CPUS=(64, 0))
    assert short_verdicts(judge_quotas(enough, T4X4, HERE, count=2)) == ()
    short = short_verdicts(judge_quotas(enough, T4X4, HERE, count=3))
    assert [str(verdict) for verdict in short] == [
        "needs 12 of NVIDIA_T4_GPUS in us-central1, 8 left (limit 8, in use 0)",
        "needs 96 of CPUS in us-central1, 64 left (limit 64, in use 0)",
    ]


@pytest.mark.parametrize(
    "gpu",
    [
        "nvidia-h100-80gb",
        "nvidia-h100-mega-80gb",
        "nvidia-h200-141gb",
        "nvidia-b200",
        "nvidia-rtx-pro-6000",
    ],
)
def test_gpu_without_metric_is_unknown(gpu: str) -> None:
    machines = {
        "nvidia-h100-80gb": "a3-highgpu-8g",
        "nvidia-h100-mega-80gb": "a3-megagpu-8g",
        "nvidia-h200-141gb": "a3-ultragpu-8g",
        "nvidia-b200": "a4-highgpu-8g",
    }
    found = judge_quotas(quotas(), Shape(machines.get(gpu, "g4-standard-384"), gpu, 8), HERE)
    assert found[0].room is Room.UNKNOWN
    assert "Cloud Quotas" in str(found[0])


def test_spot_uses_preemptible_quota_once_granted() -> None:
    found = judge_quotas(
        quotas(NVIDIA_T4_GPUS=(0, 0), PREEMPTIBLE_NVIDIA_T4_GPUS=(4, 4)),
        T4X4,
        HERE,
        provisioning="SPOT",
    )
    assert (
        str(short_verdicts(found)[0])
        == "needs 4 of PREEMPTIBLE_NVIDIA_T4_GPUS in us-central1, 0 left (limit 4, in use 4)"
    )
    found = judge_quotas(
        quotas(NVIDIA_T4_GPUS=(4, 0), PREEMPTIBLE_NVIDIA_T4_GPUS=(0, 0)),
        T4X4,
        HERE,
        provisioning="SPOT",
    )
    assert (found[0].metric, found[0].room) == ("NVIDIA_T4_GPUS", Room.OK)


def test_h100_has_a_metric_as_spot_only() -> None:
    have = quotas(PREEMPTIBLE_NVIDIA_H100_GPUS=(8, 0))
    assert judge_quotas(have, H100, HERE, provisioning="SPOT")[0].room is Room.OK
    assert judge_quotas(have, H100, HERE)[0].room is Room.UNKNOWN


@pytest.mark.parametrize("provisioning", ["FLEX_START", "RESERVATION_BOUND"])
def test_other_provisioning_models_are_never_short(provisioning: str) -> None:
    found = judge_quotas(
        quotas({"GPUS_ALL_REGIONS": (0, 0)}, NVIDIA_T4_GPUS=(0, 0), CPUS=(0, 0)),
        T4X4,
        HERE,
        provisioning=provisioning,
    )
    assert {verdict.room for verdict in found} == {Room.UNKNOWN}


def test_vcpus_are_short_only_when_the_metric_certainly_counts_them() -> None:
    assert "CPUS" in {
        verdict.metric
        for verdict in short_verdicts(
            judge_quotas(quotas(NVIDIA_T4_GPUS=(8, 0), CPUS=(8, 0)), T4X4, HERE)
        )
    }
    assert short_verdicts(judge_quotas(quotas(NVIDIA_L4_GPUS=(8, 0), CPUS=(4, 0)), L4, HERE)) == ()
    a100 = Shape("a2-highgpu-1g", "nvidia-tesla-a100", 1)
    assert (
        rooms(judge_quotas(quotas(NVIDIA_A100_GPUS=(8, 0), A2_CPUS=(4, 0)), a100, HERE))["A2_CPUS"]
        == Room.SHORT
    )
    assert (
        rooms(judge_quotas(quotas(NVIDIA_A100_GPUS=(8, 0), CPUS=(4, 0)), a100, HERE))["CPUS"]
        == Room.UNKNOWN
    )


def test_missing_metric_is_unknown() -> None:
    assert {verdict.room for verdict in judge_quotas(Quotas(), L4, HERE)} == {Room.UNKNOWN}


def test_machine_without_gpu_is_judged_by_vcpus() -> None:
    assert rooms(judge_quotas(quotas(CPUS=(8, 0)), Shape("n1-standard-8"), HERE)) == {
        "CPUS": Room.OK,
        "CPUS_ALL_REGIONS": Room.OK,
    }


def test_zones_short_of_quota_are_returned_with_numbers() -> None:
    have = Quotas(
        quotas().project,
        {
            "us-central1": quotas_by_metric([{"metric": "NVIDIA_L4_GPUS"}]),
            "us-east1": quotas_by_metric([{"metric": "NVIDIA_L4_GPUS", "limit": 2.0}]),
        },
    )
    short = zones_short_of_quota(
        have, L4, ["us-central1-a", "us-east1-b", "us-central1-b", "us-central1-a"]
    )
    assert short == dict.fromkeys(
        ("us-central1-a", "us-central1-b"),
        "needs 1 of NVIDIA_L4_GPUS in us-central1, 0 left (limit 0, in use 0)",
    )
    error = no_room_error(L4, short, "demo")
    assert error.exit_code == EXIT_CLOUD
    assert (error.where, error.why) == (
        "us-central1",
        "needs 1 of NVIDIA_L4_GPUS in us-central1, 0 left (limit 0, in use 0)",
    )
    assert "project=demo" in error.fix


@pytest.mark.parametrize(
    ("spec", "draws"),
    [
        (vm_spec(), {"SSD_TOTAL_GB": 200, "IN_USE_ADDRESSES": 1}),
        (vm_spec(external_ip=False, disk_gb=500), {"SSD_TOTAL_GB": 500}),
        (
            vm_spec(machine_type="g4-standard-48", gpu="nvidia-rtx-pro-6000"),
            {"HDB_TOTAL_GB": 200, "IN_USE_ADDRESSES": 1},
        ),
    ],
)
def test_disk_and_address_are_judged_by_their_own_metrics(
    spec: VmSpec, draws: dict[str, float]
) -> None:
    assert other_needs(spec) == draws
    have = quotas(
        NVIDIA_L4_GPUS=(8, 0), CPUS=(640, 0), SSD_TOTAL_GB=(500, 0), IN_USE_ADDRESSES=(8, 0)
    )
    more = {verdict.metric for verdict in judge_quotas(have, L4, HERE, more=draws)} - {
        verdict.metric for verdict in judge_quotas(have, L4, HERE)
    }
    assert more == {*draws} - {"HDB_TOTAL_GB"}, "metrics that the reply lacks are not judged"


def test_disk_quota_limits_the_number_of_vms() -> None:
    have = quotas(
        NVIDIA_L4_GPUS=(8, 0), CPUS=(640, 0), SSD_TOTAL_GB=(500, 0), IN_USE_ADDRESSES=(8, 0)
    )
    assert room_by_region(have, L4, [HERE], count=3, more=other_needs(vm_spec())) == ({HERE: 2}, 2)
    short = zones_short_of_quota(have, L4, ["us-central1-a"], count=3, more=other_needs(vm_spec()))
    assert short == {
        "us-central1-a": "needs 600 of SSD_TOTAL_GB in us-central1, 500 left (limit 500, in use 0)"
    }


def stopped(
    zone: str = "us-central1-a",
    gpu: str | None = "nvidia-l4",
    count: int = 1,
    model: str = "STANDARD",
) -> Vm:
    return Vm(
        name="x",
        zone=zone,
        status="TERMINATED",
        machine_type="g2-standard-8",
        gpu=gpu,
        gpu_count=count,
        provisioning_model=model,
    )


def test_stopped_vms_are_judged_together() -> None:
    have = quotas(
        {"GPUS_ALL_REGIONS": (4, 1)}, NVIDIA_L4_GPUS=(8, 2), PREEMPTIBLE_NVIDIA_L4_GPUS=(1, 0)
    )
    vms = [
        stopped(),
        stopped(count=2),
        stopped(model="SPOT"),
        stopped(gpu=None),
        stopped(gpu="nvidia-b200"),
        stopped("asia-east1-a"),
    ]
    starts = judge_starts(have, vms)
    assert [(verdict.metric, verdict.needed, verdict.room) for verdict in starts] == [
        ("NVIDIA_L4_GPUS", 3, Room.OK),
        ("GPUS_ALL_REGIONS", 5, Room.SHORT),
        ("PREEMPTIBLE_NVIDIA_L4_GPUS", 1, Room.OK),
    ]
    after = quotas_after_starts(have, starts)
    assert (after.regions[HERE]["NVIDIA_L4_GPUS"].left, after.project["GPUS_ALL_REGIONS"].left) == (
        3,
        0,
    )
    assert have.regions[HERE]["NVIDIA_L4_GPUS"].left == 6
    error = no_room_to_start_error(short_verdicts(starts), len(vms), "demo")
    assert (error.where, error.why) == (
        "all regions",
        "needs 5 of GPUS_ALL_REGIONS over all regions, 3 left (limit 4, in use 1)",
    )
    assert error.fix.startswith("start fewer of them, or open https://console")


def test_room_for_a_million_vms_needs_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def counted(*args: Any, **how: Any) -> tuple[QuotaVerdict, ...]:
        looks.append(how["count"])
        return judge_quotas(*args, **how)

    monkeypatch.setattr(quota_room, "judge_quotas", counted)
    have = quotas(
        {"GPUS_ALL_REGIONS": (10**6, 0)}, NVIDIA_L4_GPUS=(700_000, 0), CPUS=(64_000_000, 0)
    )
    assert room_by_region(have, L4, [HERE], count=1_000_000) == ({HERE: 700_000}, 700_000)
    assert len(looks) <= 2 * 21


def test_unknown_quotas_are_reported_in_one_line() -> None:
    lines = undetermined_lines(quotas(), H100, ["us-central1-a", "us-central1-c", "us-east1-d"])
    assert [line.split(" (")[0] for line in lines] == [
        "quota: cannot tell: nvidia-h100-80gb in us-central1, us-east1"
    ]
    (many,) = undetermined_lines(quotas(), H100, [f"us-west{number}-a" for number in range(1, 8)])
    assert "in us-west1, us-west2, us-west3, us-west4 and 3 more (" in many
    assert (
        undetermined_lines(quotas(NVIDIA_L4_GPUS=(8, 0), CPUS=(64, 0)), L4, ["us-central1-a"]) == []
    )
    assert undetermined_lines(quotas(), Shape("n1-standard-8"), ["us-central1-a"]) == []


def test_worst_verdict_is_short_then_unknown_then_least_room() -> None:
    found = judge_quotas(quotas({"GPUS_ALL_REGIONS": (1, 1)}, NVIDIA_L4_GPUS=(8, 0)), L4, HERE)
    first = worst_verdict(found)
    assert first is not None
    assert first.metric == "GPUS_ALL_REGIONS"
    assert worst_verdict(()) is None
